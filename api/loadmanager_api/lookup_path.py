"""The fast path of `GET /lookup/v2/topic/…`, beside FastAPI, for the most frequent request.

Every answer is what `Lookup.peek` says at that moment, on the endpoints' thread. Only the bytes are cached, by bundle,
and reused while owner, token and registration are unchanged. `at_once` is for `lookup_protocol.py`, which needs no
ASGI; as an ASGI application it asks the control loop for lookups that have to wait. FastAPI gets everything unusual:
another method, a name that does not parse, `/bundle`, the channel's own topics, a broker that is not ready.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from loadmanager.broker.lookup import Located
from loadmanager.embedding.handover import Handover
from loadmanager.errors import LoadManagerError
from loadmanager.model.policies.model import AccessRole
from loadmanager.model.registration import Peer
from loadmanager_api.access.access import Access
from loadmanager_api.access.principal import PRINCIPAL, Principal
from loadmanager_api.access.rates import Rates
from loadmanager_api.answers import is_channel_topic, known_peer, lookup_body, lookup_headers
from loadmanager_api.errors import problem_of, respond
from loadmanager_api.guard import Names
from loadmanager_api.request_counts import Requests
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import BrokerId, Token

PREFIX = b"/lookup/v2/topic/"
WHOLE = "loadmanager.whole"
"""The ASGI extension, a function, that takes an answer's headers and body in one piece; False if it cannot now."""

KEPT = 65_536
"""The most cached paths, and answers; beyond it the whole cache is dropped and filled anew."""

KEPT_PATH_BYTES, KEPT_BYTES = 512, 8 << 20
"""Longer paths are not cached, nor encoded ones, whose topics take up to five times as many bytes; and no more bytes
of paths than this."""


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """The two ASGI messages of an answer, the same as bytes (less the status line), and what they were made from."""

    owner: BrokerId
    token: Token
    peer: Peer | None
    wire: bytes
    start: dict[str, Any]
    body: dict[str, Any]


class LookupPath:
    """An ASGI application: answers lookups, gives everything else to `app`. `names` are those of the broker.

    With `access` it answers those who may look up; `app` refuses the others.
    """

    def __init__(
        self,
        handover: Handover,
        names: Names,
        app: Any,
        access: Access | None = None,
        rates: Rates | None = None,
        requests: Requests | None = None,
    ) -> None:
        self.names = names
        self.requests = requests or Requests()
        """Counts the lookups that are answered where they are parsed; others are counted before they come here."""
        self.rates = rates
        """How many lookups each client may send; None: as many as it likes."""
        self.access = access
        self._handover = handover
        self._node = handover.node
        self._app = app
        self._topics: dict[bytes, Key | None] = {}
        self._topics_bytes = 0
        self._answers: dict[Bundle, _Answer] = {}
        self._bodies: dict[BrokerId, tuple[Peer, bytes]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        topic = self._topic(scope["raw_path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if topic is None or not self._node.ready.is_set() or not self._may(scope.get(PRINCIPAL), topic):
            await self._app(scope, receive, send)
            return
        lookup, timeout_s = self._node.current.lookup, self._node.settings.lookup_timeout_s
        try:
            answer = self._answer(await self._handover.ask(partial(lookup.locate, topic, timeout_s), light=True))
        except LoadManagerError as error:
            await respond(problem_of(error))(scope, receive, send)
            return
        whole = scope.get("extensions", {}).get(WHOLE)
        if whole is None or not whole(answer.wire):
            await send(answer.start)
            await send(answer.body)

    def at_once(self, raw_path: bytes, principal: Principal | None = None) -> bytes | None:
        """Headers and body of the answer for the principal if there is one at this moment, else None."""
        topic = self._topic(raw_path)
        if topic is None or not self._node.ready.is_set() or not self._may(principal, topic):
            return None
        lookup = self._node.current.lookup
        located = lookup.peek(topic)
        if located is None or located.peer is None:
            return None
        lookup.counts.at_once += 1
        return self._answer(located).wire

    def _may(self, principal: Principal | None, topic: Key) -> bool:
        return self.access is None or (
            principal is not None
            and self.access.grants.in_namespace(principal.name, AccessRole.CLIENT, topic.namespace)
        )

    def _topic(self, raw_path: bytes) -> Key | None:
        """The requested topic, None if FastAPI has to answer."""
        if not raw_path.startswith(PREFIX):
            return None
        try:
            return self._topics[raw_path]
        except KeyError:
            topic = _parse(raw_path)
            if len(raw_path) <= KEPT_PATH_BYTES and b"%" not in raw_path:
                if len(self._topics) >= KEPT or self._topics_bytes + len(raw_path) > KEPT_BYTES:
                    self._topics.clear()
                    self._topics_bytes = 0
                self._topics[raw_path] = topic
                self._topics_bytes += len(raw_path)
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
            answer = self._answers[located.bundle] = _make(located, self._body(located))
        return answer

    def _body(self, located: Located) -> bytes:
        """The answer's body, the same for all bundles of an owner while its registration is unchanged."""
        peer = known_peer(located)
        kept = self._bodies.get(located.owner)
        if kept is None or kept[0] is not peer:
            if len(self._bodies) >= KEPT:
                self._bodies.clear()
            kept = self._bodies[located.owner] = (peer, lookup_body(peer))
        return kept[1]


def _parse(raw_path: bytes) -> Key | None:
    if raw_path.endswith(b"/bundle") or not raw_path.isascii():
        return None
    try:
        domain, _, rest = unquote_to_bytes(raw_path[len(PREFIX) :]).decode().partition("/")
        if domain not in ("persistent", "non-persistent"):
            return None
        topic = Key.parse(f"{domain}://{rest}")
    except (UnicodeDecodeError, InvalidName):
        return None
    return None if is_channel_topic(topic) else topic


def _make(located: Located, body: bytes) -> _Answer:
    headers = [(name.lower().encode(), value.encode("ascii")) for name, value in lookup_headers(located).items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    wire = b"".join([*(b"%b: %b\r\n" % header for header in headers), b"\r\n", body])
    return _Answer(
        located.owner,
        located.token,
        located.peer,
        wire,
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": body},
    )
