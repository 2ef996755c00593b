"""Conditional requests (RFC 9110): clients change only what they have seen, and fetch nothing that they have.

Each answer to a GET whose body is one piece of JSON has an `ETag`, made of its content; with the same in
`If-None-Match` the answer is 304. The `ETag` of a thing with versions begins with its version, and a change of it takes
`If-Match`; the store compares the version and writes in one step.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from hashlib import blake2b
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header
from starlette.datastructures import MutableHeaders

from loadmanager.documents.fold import ABSENT, Version
from loadmanager.errors import Invalid, VersionConflict
from loadmanager_api.access.rates import LOOKUPS
from loadmanager_api.problems import PreconditionFailed

T = TypeVar("T")

_TAG = re.compile(r'"?(\d{1,15})(?:-[0-9a-f]+)?"?')
"""A version, with or without the digest of an answer behind it."""


class Tagged:
    """An ASGI application that gives the answers of another one their `ETag`, and answers 304."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] != "GET" or scope["path"].startswith(LOOKUPS):
            await self._app(scope, receive, send)
            return
        head: Any = None

        async def sent(message: Any) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                if message["status"] == 200 and headers.get("content-type") == "application/json":
                    head = message
                    return
            elif head is not None:
                begun, head = head, None
                if not message.get("more_body"):
                    message = _tagged(scope, begun, message)
                await send(begun)
            await send(message)

        await self._app(scope, receive, sent)


def _tagged(scope: Any, head: Any, body: Any) -> Any:
    """Give the head its tag; the body to send with it, which is empty if the client has this one."""
    headers = MutableHeaders(raw=head["headers"])
    version = headers.get("etag", "").strip('"')
    digest = blake2b(body.get("body", b""), digest_size=8).hexdigest()
    headers["etag"] = tag = f'"{version}-{digest}"' if version else f'"{digest}"'
    held = MutableHeaders(raw=scope["headers"]).get("if-none-match", "")
    if held != "*" and tag not in (each.strip().removeprefix("W/") for each in held.split(",")):
        return body
    head["status"] = 304
    head["headers"] = [(n, v) for n, v in head["headers"] if n not in (b"content-length", b"content-type")]
    return {**body, "body": b""}


class Conditions:
    """What a change of a thing with versions asks for in its headers."""

    def __init__(self, if_match: str | None, if_none_match: str | None) -> None:
        self._match = None if if_match is None else if_match.strip()
        self._none_match = None if if_none_match is None else if_none_match.strip()
        if self._none_match not in (None, "*"):
            raise Invalid("If-None-Match of a change can only be *: make it only if there is none yet")

    def seen(self, named: int | None, present: Version[Any] | None) -> int | None:
        """The version to replace (0: there is none yet; None: any), by the headers or as `named` otherwise.

        Raises PreconditionFailed if `*` does not hold, Invalid for headers that say nothing or contradict `named`.
        """
        version = ABSENT if present is None else present.version
        exists = present is not None and present.value is not None
        if self._none_match is not None:
            if exists:
                raise PreconditionFailed(f"it exists already, at version {version}")
            return version
        if self._match is None:
            return named
        if self._match == "*":
            if not exists:
                raise PreconditionFailed("it does not exist")
            return version
        found = _TAG.fullmatch(self._match)
        if found is None:
            raise Invalid(f'If-Match: {self._match} is not a version; write the ETag of a GET, or "{named or version}"')
        if named not in (None, int(found[1])):
            raise Invalid(f"the version {named} and If-Match: {self._match} are different; give one")
        return int(found[1])

    async def met(self, change: Awaitable[T]) -> T:
        """The result of a change. Raises PreconditionFailed if a header named another version than the present one."""
        try:
            return await change
        except VersionConflict as error:
            if self._match is None and self._none_match is None:
                raise
            raise PreconditionFailed(str(error)) from None


async def _conditions(
    if_match: Annotated[str | None, Header(description='the ETag of a GET, or a version, such as "3"')] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only if there is none yet")] = None,
) -> Conditions:
    return Conditions(if_match, if_none_match)


When = Annotated[Conditions, Depends(_conditions)]
"""The conditions of a change."""
