"""Many lookups in one request: those with an answer now are answered together; only the others wait, one by one.

A client that starts, or has lost a broker, asks for all its topics at once, so the cost per topic matters, not the cost
per request. The answer is that of `LookupAnswers`, made without an object per topic. Runs on the endpoints' loop: only
lookups that wait go to the control loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from loadmanager.broker.lookup import Located, Lookup
from loadmanager.embedding.handover import Handover
from loadmanager.errors import LoadManagerError
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.gate import May
from loadmanager_api.answers import known_peer
from loadmanager_api.errors import problem_of
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key


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


async def look_up_all(handover: Handover, lookup: Lookup, names: Sequence[str], timeout_s: float, may: May) -> bytes:
    """The JSON of `LookupAnswers` for these topics, in their order; `may` says which the client may look up."""
    owners: dict[Bundle, bytes] = {}
    answers: list[bytes] = []
    waiting: dict[int, Key] = {}
    for index, name in enumerate(names):
        try:
            topic = Key.parse(name)
            may.require(AccessRole.CLIENT, topic.namespace)
            located = lookup.peek(topic)
            if located is None:
                waiting[index] = topic
                answers.append(b"")
                continue
            owner = owners.get(located.bundle)
            if owner is None:
                owner = owners[located.bundle] = _owner(located)
            lookup.counts.at_once += 1
        except (LoadManagerError, InvalidName) as error:
            owner = _unanswered(error)
        answers.append(_answer(name, owner))
    found = await asyncio.gather(*(_wait_for(handover, lookup, topic, timeout_s) for topic in waiting.values()))
    for index, owner in zip(waiting, found, strict=True):
        answers[index] = _answer(names[index], owner)
    return b'{"answers":[%b]}' % b",".join(answers)


async def _wait_for(handover: Handover, lookup: Lookup, topic: Key, timeout_s: float) -> bytes:
    try:
        return _owner(await handover.ask(partial(lookup.locate, topic, timeout_s), light=True))
    except LoadManagerError as error:
        return _unanswered(error)


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
