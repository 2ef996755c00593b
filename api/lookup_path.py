"""The fast path of `GET /lookup/v2/topic/…`: raw ASGI in front of FastAPI, for what clients ask all the time.

Every answer is what `Lookup.peek` says at that moment; only the bytes are kept, by bundle, and used again while token
and registration are the same objects as when they were made. Whatever is unusual (another method, a name that does not
parse, `/bundle`, the channel's own topics, a broker that is not ready) is FastAPI's.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from api.answers import is_channel_topic, known_peer, lookup_body, lookup_headers
from api.errors import problem_of, respond
from loadmanager.errors import LoadManagerError
from loadmanager.lookup import Located
from loadmanager.node import Node
from loadmanager.registration import Peer
from statechannel.bundle import Bundle, Topic
from statechannel.errors import InvalidName
from statechannel.record import Broker, Token

PREFIX = b"/lookup/v2/topic/"
KEPT = 65_536
"""Parsed paths, and answers, that are kept; beyond it all are dropped and made anew as they are asked for."""


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """The two ASGI messages of an answer, and what they were made from."""

    owner: Broker
    token: Token
    peer: Peer | None
    start: dict[str, Any]
    body: dict[str, Any]


class LookupPath:
    """An ASGI application: answers lookups, gives everything else to `app`."""

    def __init__(self, node: Node, app: Any) -> None:
        self._node = node
        self._app = app
        self._topics: dict[bytes, Topic | None] = {}
        self._answers: dict[Bundle, _Answer] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        topic = self._topic(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if topic is None or not self._node.ready.is_set():
            await self._app(scope, receive, send)
            return
        lookup = self._node.current.lookup
        located = lookup.peek(topic)
        try:
            if located is None:
                located = await lookup.locate(topic, self._node.settings.lookup_timeout_s)
            else:
                lookup.counts.answered += 1
            answer = self._answer(located)
        except LoadManagerError as error:
            await respond(problem_of(error))(scope, receive, send)
            return
        await send(answer.start)
        await send(answer.body)

    def _topic(self, scope: Any) -> Topic | None:
        """The topic that is asked for, None if this is not for us."""
        raw = cast("bytes", scope.get("raw_path") or b"")
        if not raw.startswith(PREFIX):
            return None
        try:
            return self._topics[raw]
        except KeyError:
            if len(self._topics) >= KEPT:
                self._topics.clear()
            topic = self._topics[raw] = _parse(raw, cast("str", scope["path"]))
            return topic

    def _answer(self, located: Located) -> _Answer:
        answer = self._answers.get(located.bundle)
        if (
            answer is None
            or answer.peer is not located.peer
            or answer.token != located.token
            or answer.owner != located.owner
        ):
            if len(self._answers) >= KEPT:
                self._answers.clear()
            answer = self._answers[located.bundle] = _make(located)
        return answer


def _parse(raw: bytes, path: str) -> Topic | None:
    if raw.endswith(b"/bundle"):
        return None
    domain, _, rest = path[len(PREFIX) :].partition("/")
    if domain not in ("persistent", "non-persistent"):
        return None
    try:
        topic = Topic.parse(f"{domain}://{rest}")
    except InvalidName:
        return None
    return None if is_channel_topic(topic) else topic


def _make(located: Located) -> _Answer:
    body = lookup_body(known_peer(located))
    headers = [(name.lower().encode(), value.encode("ascii")) for name, value in lookup_headers(located).items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return _Answer(
        located.owner,
        located.token,
        located.peer,
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
