"""Pages: how every list is read in parts, with `limit` and `cursor`.

Every page but the last has a `Link` header (RFC 8288) with the URL of the next page. A body that is an object has the
same cursor as `next`. A cursor is opaque to clients; any broker takes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from starlette.exceptions import HTTPException

from loadmanager.errors import Invalid

T = TypeVar("T")

NEXT = "loadmanager.next"
"""The key in an ASGI scope of the cursor of the next page."""

MOST = 1_000
"""The most entries of a page."""

Limit = Annotated[int, Query(ge=1, le=MOST, description="the most entries of the page")]
Cursor = Annotated[str | None, Query(max_length=1_000, description="the `next` of the previous page")]
Prefix = Annotated[str | None, Query(max_length=1_000, description="only names that begin so", examples=["balancing_"])]
SinceMs = Annotated[
    int | None,
    Query(ge=0, le=2**53, description="only what is from this time or later, in ms", examples=[1_900_000_000_000]),
]


class Pages:
    """The pages of one list, as asked for."""

    def __init__(self, request: Request) -> None:
        self._scope = request.scope

    def next(self, cursor: object | None) -> str | None:
        """Say where the next page begins (None: there is none); returns the cursor as the body has it."""
        if cursor is None:
            return None
        self._scope[NEXT] = str(cursor)
        return str(cursor)

    @property
    def following(self) -> str | None:
        """The cursor of the next page, once `next` or `of` has found it."""
        return self._scope.get(NEXT)

    def read(self, cursor: str | None, parse: Callable[[str], T]) -> T | None:
        """What the cursor says to `parse`, which raises Invalid or ValueError. Raises HTTPException (400) then."""
        try:
            return None if cursor is None else parse(cursor)
        except (Invalid, ValueError):
            raise _no_cursor(cursor or "") from None

    def of(self, items: Iterable[T], name: Callable[[T], str], limit: int, cursor: str | None, form: str) -> list[T]:
        """The page of a list that is in memory, in the order of unique names, each of which fully matches the pattern
        `form`. Raises HTTPException (400) for another cursor.
        """
        if cursor is not None and re.fullmatch(form, cursor) is None:
            raise _no_cursor(cursor)
        rest = (each for each in sorted(items, key=name) if cursor is None or name(each) > cursor)
        found = list(islice(rest, limit + 1))
        if len(found) > limit:
            self.next(name(found[limit - 1]))
        return found[:limit]


def _no_cursor(given: str) -> HTTPException:
    return HTTPException(
        400, f"query.cursor: {given[:100]!r} is not a cursor of this list; use the `next` of a page, or leave it out"
    )


async def _pages(request: Request) -> Pages:
    return Pages(request)


Paging = Annotated[Pages, Depends(_pages)]
"""The pages of the list that the request asks for."""


def linked(request: Request, response: Response) -> Response:
    """The response, with a `Link` to the next page if there is one. Belongs to the endpoints' loop."""
    cursor = request.scope.get(NEXT)
    if cursor is not None:
        given = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
        query = urlencode([*given, ("cursor", cursor)])
        response.headers["Link"] = f'<{request.url.path}?{query}>; rel="next"'
    return response
