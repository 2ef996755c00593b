"""A topic's owner as bytes: where the request was parsed, beside FastAPI, or many in one request.

**One lookup**, `GET /lookup/v2/topic/…`, is the most frequent request. Every answer is what `Lookup.peek` says at that
moment, on the endpoints' thread. Only the bytes are cached, by bundle, and reused while owner, token and registration
are unchanged. `LookupConnection` answers what has an answer now (`at_once`) without a task and ASGI, which are most of
the cost of such a request (figures in docs/decisions/0007). As an ASGI application, `LookupPath` asks the control loop
for lookups that have to wait. FastAPI gets everything unusual: another method, a name that does not parse, `/bundle`,
the channel's own topics, a broker that is not ready.

Uvicorn handles a lookup that has to wait, but its answer is written in one piece. Uvicorn keeps the parser, flow
control and all other requests; `connections.py` has the bounds. Order is kept: nothing is answered at once while an
earlier request of the connection is being answered. The table is read when the whole request has arrived. A request
that announces a body, or calls the broker by a foreign name, is not answered at once; nor one whose sender is not known
from an earlier request.

**Many lookups in one request**: those with an answer now are answered together; the others wait, once for each bundle.
A client that starts, or has lost a broker, asks for all its topics at once, so the cost per topic matters, not the cost
per request. The answer is that of `LookupAnswers`, made without an object per topic. Batches wait for a bounded number
of bundles.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import quote, unquote_to_bytes

import msgspec
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from loadmanager.broker.lookup import Located, Lookup
from loadmanager.broker.node import Node
from loadmanager.channel.owner.service import owner_of
from loadmanager.client.redirection import TOKEN_HEADER
from loadmanager.embedding.handover import Handover
from loadmanager.errors import LoadManagerError, NotFound, Unavailable
from loadmanager.model.policies.model import AccessRole
from loadmanager.model.registration import Peer, Registration
from loadmanager_api.access.access import Access, May
from loadmanager_api.access.rates import Rates
from loadmanager_api.access.sender import PRINCIPAL, Principal
from loadmanager_api.http.connections import Connection
from loadmanager_api.http.counts import Requests
from loadmanager_api.http.guard import Names, has_body, is_encoded
from loadmanager_api.problems import problem_of, respond
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key
from statechannel.law.record import BrokerId, Token

CHANNEL_TOPICS = frozenset(
    {
        "persistent://pulsar/system/loadbalancer-service-unit-state",
        "non-persistent://pulsar/system/loadbalancer-service-unit-state",
        "persistent://loadmanager/system/bundle-state",
    }
)
"""The channel's own topics, under Pulsar's name and under ours; the table has no owner for them."""

_PARTITION = re.compile(r"-partition-([0-9]{1,9})$")

BUNDLE_HEADER = "X-Bundle"
BROKER_HEADER = "X-Broker"


def lookup_urls(registration: Registration) -> dict[str, str]:
    """URLs of a broker's service, as `LookupData` has them; its admin URL stands in for those it did not register."""
    urls = registration.urls
    http_url = urls.get("http", "") or registration.admin_url
    broker_url = urls.get("pulsar", "") or http_url
    return {
        "brokerUrl": broker_url,
        "httpUrl": http_url,
        "nativeUrl": broker_url,
        "brokerUrlSsl": urls.get("pulsar+ssl", ""),
    }


def known_peer(located: Located) -> Peer:
    """The owner's registration. Raises Unavailable if nothing is known of it."""
    if located.peer is None:
        raise Unavailable(f"{located.owner} owns {located.bundle}, but its addresses are not known here yet; try again")
    return located.peer


def lookup_headers(located: Located) -> dict[str, str]:
    """Headers for what Pulsar's answer has no field for."""
    return {
        BUNDLE_HEADER: str(located.bundle),
        BROKER_HEADER: quote(located.owner.name, safe=":[]"),
        TOKEN_HEADER: str(located.token),
    }


def lookup_body(peer: Peer) -> bytes:
    """The answer as Pulsar's JSON."""
    return msgspec.json.encode(lookup_urls(peer.registration))


def channel_owner(node: Node, topic: Key) -> tuple[BrokerId, Peer]:
    """The owner for one of the channel's own topics: the owner of that partition, of partition 0 if none is named.

    Raises NotFound if there is no such partition, Unavailable while it has no owner.
    """
    partition, partitions = _partition_of(topic), node.channel.table.partitions
    if partition >= partitions:
        raise NotFound(f"the channel has the partitions 0 to {partitions - 1}, not {partition}")
    owner = owner_of(node.world.coordination, node.membership, partition)
    peer = node.membership.peers.get(owner.name) if owner is not None else None
    if owner is None or peer is None:
        raise Unavailable(f"partition {partition} of the channel has no owner at the moment; try again")
    return owner, peer


def is_channel_topic(topic: Key) -> bool:
    """Whether this is one of the channel's own topics, whole or a partition of it."""
    return _PARTITION.sub("", topic.full_name) in CHANNEL_TOPICS


def _partition_of(topic: Key) -> int:
    suffix = _PARTITION.search(topic.full_name)
    return int(suffix[1]) if suffix else 0


PREFIX = b"/lookup/v2/topic/"
WHOLE = "loadmanager.whole"
"""The ASGI extension, a function, that takes an answer's headers and body in one piece; False if it cannot now."""

KEPT = 65_536
"""Maximum number of cached paths, and of answers; beyond it the whole cache is dropped and filled again."""

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
        plain = scope["type"] == "http" and scope["method"] == "GET" and not has_body(scope["headers"])
        topic = self._topic(scope["raw_path"]) if plain else None
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
    if raw_path.endswith(b"/bundle") or not is_encoded(raw_path):
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


_STATUS = b"HTTP/1.1 200 OK\r\n"
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


class LookupConnection(Connection):
    """A connection to endpoints with a `LookupPath`."""

    def __init__(self, lookups: LookupPath, *args: Any) -> None:
        super().__init__(*args)
        self._lookups = lookups
        self._answer: bytes | None = None
        self._asker: Principal | None = None
        """Who sent the request that is answered here."""

    def begin_answer(self) -> None:
        """The request line and headers have arrived: decide whether to answer here or leave it to uvicorn."""
        self._answer = self._answer_at_once() if self._is_plain_lookup() else None
        if self._answer is None:
            super().begin_answer()
            cycle = cast("RequestResponseCycle | None", self.cycle)
            if cycle is not None and cycle.scope is self.scope:  # not so if the connection is to be upgraded
                cast("Any", self.scope)["extensions"] = {WHOLE: partial(self._write_whole, cycle)}
                if not cast("Any", self.parser).should_keep_alive():  # older releases of uvicorn look when they answer
                    cycle.keep_alive = False

    def _answer_at_once(self) -> bytes | None:
        access, principal = self._lookups.access, None
        self._asker = None
        if access is not None:
            principal = self._asker = access.known(self.headers, self.certified)
            if principal is None:
                return None  # who it is takes a verification, or a refusal
        answer, rates = self._lookups.at_once(self.url.partition(b"?")[0], principal), self._lookups.rates
        if answer is None or rates is None:
            return answer
        client = principal.name if principal is not None else self.client[0] if self.client else ""
        return None if rates.wait_s(client) else answer

    def _is_plain_lookup(self) -> bool:
        if not self.url.startswith(PREFIX) or b"#" in self.url or not is_encoded(self.url.partition(b"?")[2]):
            return False
        parser, cycle = cast("Any", self.parser), cast("RequestResponseCycle | None", self.cycle)
        return (
            (cycle is None or cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.transport.is_closing()
            and parser.get_method() == b"GET"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.reserved
            and self._has_plain_headers()
        )

    def _has_plain_headers(self) -> bool:
        """No body, one `Host` that is ours, and no cluster but ours."""
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
                if not self._lookups.names.know(value):
                    return False
            elif name in _BODY_HEADERS:
                return False
        return hosts == 1 and not self._lookups.names.another_cluster(self.headers)

    def complete_request(self) -> None:
        """The whole request has arrived: now it may be answered."""
        answer, self._answer = self._answer, None
        if answer is None:
            super().complete_request()
            return
        self._write(answer)
        self._lookups.requests.add(self._asker, "lookup", 200)
        self.on_response_complete()

    def _write(self, answer: bytes) -> None:
        headers = [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join((_STATUS, *headers, answer)))

    def _write_whole(self, cycle: RequestResponseCycle, answer: bytes) -> bool:
        """Do what two calls of `cycle.send` would do, on a healthy connection that stays open; else return False."""
        if cycle.disconnected or cycle.response_started or not cycle.keep_alive or self.flow.write_paused:
            return False
        if self.transport.is_closing():
            return False
        self._write(answer)
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True


MAX_TOPICS = 1_000
TOPIC_BYTES = 8
"""A topic has at least so many bytes in a body, with its quotes and comma."""

STEP = 100
"""Topics that are read in one turn of the endpoints' loop."""

AWAITED_AT_MOST = 2_000
"""Bundles for which all batches of these endpoints may wait at a time. A batch that waits alone is never refused."""

FEW, FEW_SHARE = 32, 8
"""One in so many of these is reserved for batches of few topics, as routers send them."""


class _Owner(msgspec.Struct, frozen=True):
    """The fields of an answer besides the topic, in the order of `LookupAnswer`."""

    bundle: str
    broker: str
    incarnation: int
    admin_url: str
    urls: dict[str, str]
    token: str
    error: None = None


class _Unanswered(msgspec.Struct, frozen=True):
    """The same for a topic without a known owner."""

    error: object
    bundle: None = None
    broker: None = None
    incarnation: None = None
    admin_url: None = None
    urls: None = None
    token: None = None


_encode = msgspec.json.Encoder().encode


class Batches:
    """The batch lookups of one broker's endpoints. They cost what they wait for: one for each bundle.

    They are read one after another, in steps, so that however many come, the endpoints' loop goes on in between.
    """

    def __init__(self) -> None:
        self.awaited = 0
        self._reading = asyncio.Lock()

    def refusal(self, topics: int) -> str:
        """Why there is no room for a batch of so many topics; empty if there is. None of them has to be owned yet."""
        most = AWAITED_AT_MOST if topics <= FEW else AWAITED_AT_MOST - AWAITED_AT_MOST // FEW_SHARE
        if not self.awaited or self.awaited + topics <= most:
            return ""
        return f"batch lookups wait for {self.awaited} bundles here already; try again, or ask another broker"

    def refusal_by_size(self, declared_bytes: int | None) -> str:
        """The same before the body is read, for as many topics as it may have; None: the size is not known."""
        return self.refusal(MAX_TOPICS if declared_bytes is None else min(MAX_TOPICS, declared_bytes // TOPIC_BYTES))

    async def look_up_all(
        self, handover: Handover, lookup: Lookup, names: Sequence[str], timeout_s: float, may: May
    ) -> bytes:
        """The JSON of `LookupAnswers` for these topics, in their order; `may` says which the client may look up.

        Raises Unavailable, with nothing looked up, if there is no room.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        answers = [b""] * len(names)
        async with self._reading:
            if refusal := self.refusal(len(names)):
                raise Unavailable(refusal)
            waiting = await _read(lookup, names, answers, may)
            groups = _by_bundle(handover, waiting)
            self.awaited += (cost := len(groups))
        try:
            while groups:
                waiting = await _await(handover, lookup, names, answers, groups, until_s)
                groups = _by_bundle(handover, waiting)
        finally:
            self.awaited -= cost
        return b'{"answers":[%b]}' % b",".join(answers)


_Topics = dict[int, Key]
"""Topics by their places in the request."""


async def _read(lookup: Lookup, names: Sequence[str], answers: list[bytes], may: May) -> _Topics:
    """Answer those topics that have an answer now. Returns the others."""
    owners: dict[Bundle, bytes] = {}
    waiting: _Topics = {}
    for index, name in enumerate(names):
        if index and index % STEP == 0:
            await asyncio.sleep(0)
        try:
            topic = Key.parse(name)
            may.require(AccessRole.CLIENT, topic.namespace)
            located = lookup.peek(topic)
            if located is None:
                waiting[index] = topic
                continue
            owner = owners.get(located.bundle)
            if owner is None:
                owner = owners[located.bundle] = _owner(located)
            lookup.counts.at_once += 1
        except (LoadManagerError, InvalidName) as error:
            owner = _unanswered(error)
        answers[index] = _answer(name, owner)
    return waiting


def _by_bundle(handover: Handover, waiting: _Topics) -> list[_Topics]:
    """The topics that wait together: those of one bundle, or of one namespace that does not exist."""
    table, groups = handover.node.channel.table, dict[Bundle | str, _Topics]()
    for index, topic in waiting.items():
        entry = table.locate(topic)
        groups.setdefault(topic.namespace if entry is None else entry.bundle, {})[index] = topic
    return list(groups.values())


async def _await(
    handover: Handover,
    lookup: Lookup,
    names: Sequence[str],
    answers: list[bytes],
    groups: Sequence[_Topics],
    until_s: float,
) -> _Topics:
    """Look up one topic of each group, and answer those of its bundle. Returns the others: the bundle was split."""
    left_s = max(0.0, until_s - asyncio.get_running_loop().time())
    asked = {next(iter(each)) for each in groups}
    some = (partial(lookup.locate, next(iter(each.values())), left_s) for each in groups)
    found = await asyncio.gather(*(handover.ask(one, light=True) for one in some), return_exceptions=True)
    left: _Topics = {}
    for group, outcome in zip(groups, found, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, LoadManagerError):
            raise outcome
        for index, topic in group.items():
            located = outcome if isinstance(outcome, Located) and topic.position in outcome.bundle else None
            try:
                located = located or lookup.peek(topic)
                if located is not None:
                    owner = _owner(located)
                    lookup.counts.at_once += index not in asked
                elif isinstance(outcome, LoadManagerError):
                    owner = _unanswered(outcome)
                else:
                    left[index] = topic
                    continue
            except LoadManagerError as error:
                owner = _unanswered(error)
            answers[index] = _answer(names[index], owner)
    return left


def _answer(name: str, owner: bytes) -> bytes:
    return b'{"topic":%b,%b' % (_encode(name), owner)


def _owner(located: Located) -> bytes:
    """All fields of an answer but the topic, without the opening brace."""
    registration = known_peer(located).registration
    owner = _Owner(
        str(located.bundle),
        located.owner.name,
        located.owner.incarnation,
        registration.admin_url,
        dict(registration.urls),
        str(located.token),
    )
    return _encode(owner)[1:]


def _unanswered(error: Exception) -> bytes:
    return _encode(_Unanswered(problem_of(error)))[1:]
