"""What members of consumer groups ask of their coordinator: heartbeats, commits, and the farewell.

Beside FastAPI, since they are the most frequent requests after lookups, and heartbeats wait for news.

    POST   /v1/groups/{tenant}/{namespace}/{group}/members/{member}/heartbeat?wait_ms=3000
    POST   /v1/groups/{tenant}/{namespace}/{group}/members/{member}/commit
    DELETE /v1/groups/{tenant}/{namespace}/{group}/members/{member}?process=c0ffee

421 and 503 as in `loadmanager.client.redirection`: ask there, ask again. A heartbeat that is refused (409) says `why`.
All here runs on the endpoints' loop; the coordinator answers on the service's.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.responses import Response

from loadmanager.broker.node import Node
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.client.redirection import problem_of as redirected
from loadmanager.consumers.coordinator.messages import Beat, Refusal, group_key
from loadmanager.consumers.coordinator.records import Partition
from loadmanager.errors import Forbidden, Invalid
from loadmanager_api.access.access import Access
from loadmanager_api.access.rules import rule_for
from loadmanager_api.access.sender import PRINCIPAL, proven_name
from loadmanager_api.groups.calling import ask, the_coordinator_of
from loadmanager_api.http.counts import HttpCounts
from loadmanager_api.http.limits import Limits
from loadmanager_api.http.methods import refused
from loadmanager_api.problems import problem, problem_of, respond
from statechannel.errors import InvalidName
from statechannel.law.bundle import Key

AT_ONCE = 4_096
"""Requests of members that may run at the same time: each of them waits on a connection of its own."""
LONGEST_WAIT_MS = 30_000
PREFIX = b"/v1/groups/"
_PATH = re.compile(r"/v1/groups/([^/]+)/([^/]+)/([^/]+)/members/([^/]+)(?:/(heartbeat|commit))?", re.ASCII)
_KEPT = re.compile(r"%(2F|25)", re.IGNORECASE | re.ASCII)
_TEMPLATE = "/v1/groups/{tenant}/{namespace}/{consumer_group}/members/{member}"

T = TypeVar("T")
_log = logging.getLogger("loadmanager")


_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Commit(msgspec.Struct, frozen=True):
    """The body of a commit: by topic and partition, the offset at which the group goes on, and the first one that the
    member has not pulled. `sequence`, `coordinator`: as `Coordinator.commit` has them."""

    epoch: int
    revision: int
    offsets: dict[str, dict[int, _Offset]]
    pulled: dict[str, dict[int, _Offset]] = {}
    sequence: _Offset = 0
    coordinator: str = ""


class Refused(msgspec.Struct, frozen=True):
    """The answer to a commit: what of it was refused."""

    refused: Mapping[str, Mapping[int, Refusal]]


_beat, _commit = msgspec.json.Decoder(Beat), msgspec.json.Decoder(Commit)


class Asked(msgspec.Struct, frozen=True):
    """A member's request: the words of its path."""

    method: str
    tenant: str
    namespace: str
    group: str
    member: str
    verb: str

    @property
    def name(self) -> str:
        """The group's full name."""
        return group_of(self.tenant, self.namespace, self.group).full_name

    @property
    def rule_path(self) -> str:
        """The template of its path, under which `rules.py` has who may ask it."""
        return f"{_TEMPLATE}/{self.verb}" if self.verb else _TEMPLATE


class MembersPath:
    """An ASGI application: answers members of groups, gives everything else to `app`. When `closing` is set, no
    request waits any more."""

    def __init__(
        self,
        node: Node,
        app: Any,
        closing: asyncio.Event,
        counts: HttpCounts,
        access: Access | None = None,
        unsent_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._app = app
        self._node = node
        self._closing = closing
        self._access = access
        self._bounded = Limits(self._answer, node.settings, counts, unsent_bytes, AT_ONCE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["raw_path"].startswith(PREFIX):
            if _asked(scope) is not None:
                await self._bounded(scope, receive, send)
                return
            scope = {**scope, "path": with_slashes(scope["raw_path"])}
        await self._app(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        asked = _asked(scope)
        assert asked is not None
        if asked.method != ("POST" if asked.verb else "DELETE"):
            await refused(asked.method, scope["path"])(scope, receive, send)
            return
        try:
            if self._access is not None:
                self._check(self._access, scope, asked)
            response = await self._done(asked, scope, receive)
        except Moved as error:
            status, headers, body = redirected(error)
            response = Response(body, status, headers)
        except msgspec.MsgspecError as error:
            response = respond(problem(400, f"body: {error}"))
        except Exception as error:  # noqa: BLE001 - as `errors.install` has it for all routes
            found = problem_of(error)
            if found.status == 500:
                _log.exception("a request of member %s of %s failed", asked.member, asked.name)
            response = respond(found)
        await response(scope, receive, send)

    def _check(self, access: Access, scope: Any, asked: Asked) -> None:
        """Raises Forbidden."""
        path = {"tenant": asked.tenant, "namespace": asked.namespace}
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        try:
            access.check(scope[PRINCIPAL], rule_for(asked.method, asked.rule_path), path, query)
        except Forbidden as error:
            access.refuse("role", scope, 403, str(error))
            raise

    async def _done(self, asked: Asked, scope: Any, receive: Any) -> Response:
        query: bytes = scope["query_string"]
        coordinator, name, member = the_coordinator_of(self._node), asked.name, asked.member
        body = await _body(receive)
        match asked.verb:
            case "heartbeat":
                beat = _beat.decode(body)
                wait_s = _wait_s(query)
                beating = ask(coordinator, lambda it: it.heartbeat(name, member, beat, wait_s, proven_name(scope)))
                answer = await (self._while_there(beating, receive) if wait_s else beating)
                return _json(answer, 409 if isinstance(answer, Refusal) else 200)
            case "commit":
                wanted = _commit.decode(body)
                offsets, pulled = _flat(wanted.offsets), _flat(wanted.pulled)
                found = await ask(
                    coordinator,
                    lambda it: it.commit(
                        name,
                        member,
                        wanted.epoch,
                        wanted.revision,
                        offsets,
                        pulled,
                        wanted.sequence,
                        wanted.coordinator,
                    ),
                )
                nested: dict[str, dict[int, Refusal]] = {}
                for (topic, number), refusal in found.items():
                    nested.setdefault(topic, {})[number] = refusal
                return _json(Refused(nested))
            case _:
                process = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)).get("process")
                await ask(coordinator, lambda it: it.leave(name, member, process))
                return Response(status_code=204)

    async def _while_there(self, work: Coroutine[Any, Any, T], receive: Any) -> T:
        """The result, unless the client leaves before, or these endpoints close. Raises NotServing then."""
        answering = asyncio.ensure_future(work)
        ends = [asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._closing.wait())]
        try:
            await asyncio.wait((answering, *ends), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise NotServing("this broker is ending: look the group up again")
            return answering.result()
        finally:
            for task in (answering, *ends):
                task.cancel()


def _asked(scope: Any) -> Asked | None:
    """What a member asks; None if the request is another one."""
    raw = scope["raw_path"]
    if not raw.startswith(PREFIX) or not raw.isascii() or scope["method"] == "OPTIONS":
        return None
    match = _PATH.fullmatch(raw.decode())
    return None if match is None else Asked(scope["method"], *(unquote(word or "") for word in match.groups()))


def with_slashes(raw_path: bytes) -> str:
    """The path for the routes, in which a slash or `%` within a name is still `%2F` or `%25`: `group_of` reads it."""
    return unquote(_KEPT.sub("%25\\1", raw_path.decode("utf-8", "replace")))


def group_of(tenant: str, namespace: str, group: str) -> Key:
    """The key of a group, from the words of its path. Raises InvalidName."""
    if "/" in tenant or "/" in namespace:
        raise InvalidName(f"{tenant}/{namespace} is not a namespace: only the name of a group may have slashes (%2F)")
    return group_key(f"persistent://{tenant}/{namespace}/{group}")


def _flat(offsets: Mapping[str, Mapping[int, int]]) -> dict[Partition, int]:
    return {(topic, number): offset for topic, its in offsets.items() for number, offset in its.items()}


async def _body(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise NotServing("the client has left")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _gone(receive: Any) -> None:
    """Return when the client has left."""
    with suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _wait_s(query: bytes) -> float:
    text = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)).get("wait_ms", "0")
    if not text.isdecimal() or len(text) > 20 or int(text) > LONGEST_WAIT_MS:
        raise Invalid(f"wait_ms is {text[:100]!r}: give milliseconds, from 0 to {LONGEST_WAIT_MS}")
    return int(text) / 1000


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
