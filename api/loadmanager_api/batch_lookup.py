"""Many lookups in one request: those with an answer now are answered together; the others wait, once for each bundle.

A client that starts, or has lost a broker, asks for all its topics at once, so the cost per topic matters, not the cost
per request. The answer is that of `LookupAnswers`, made without an object per topic. Runs on the endpoints' loop: only
lookups that wait go to the control loop, and batches wait for a bounded number of bundles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from loadmanager.broker.lookup import Located, Lookup
from loadmanager.embedding.handover import Handover
from loadmanager.errors import LoadManagerError, Unavailable
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.gate import May
from loadmanager_api.answers import known_peer
from loadmanager_api.errors import problem_of
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key

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
    """The fields of an answer besides the topic, in the order of `LocatedShown`."""

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
