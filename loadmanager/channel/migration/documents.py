"""Copies policies, settings and plans along with the channel: reads their topics, and fills those of a new log.

Entries are copied unchanged, refused ones too: the same entries in the same order give every reader the same documents.
Copying goes on where an earlier run ended, by the entries' ids. Decisions stay in the old log, since they refer to its
offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing

import msgspec

from loadmanager.channel.migration.patience import patiently
from loadmanager.errors import Conflict
from loadmanager.settings.documents.model import DOCUMENT_TOPICS, Entry
from statechannel.ports import Log, Payload, TopicSpec

ENTRIES_AT_ONCE = 500

DocumentEntries = Mapping[str, tuple[bytes, ...]]
"""The values of each document topic, in their order."""


async def documents_in(log: Log) -> DocumentEntries:
    """All entries of the document topics; creates missing topics. Raises LogUnavailable."""
    return {topic: await patiently(lambda topic=topic: _entries(log, topic)) for topic in DOCUMENT_TOPICS}


async def fill_documents(log: Log, documents: DocumentEntries) -> int:
    """Append the entries that a new log lacks; returns how many. Raises Conflict if it has other documents already."""
    found = await documents_in(log)
    lacking = {topic: _lacking(topic, found[topic], wanted) for topic, wanted in documents.items()}
    for topic, values in lacking.items():
        for begin in range(0, len(values), ENTRIES_AT_ONCE):
            payloads = [Payload(None, value) for value in values[begin : begin + ENTRIES_AT_ONCE]]
            await patiently(lambda topic=topic, payloads=payloads: log.append(topic, 0, payloads))
    return sum(map(len, lacking.values()))


def _lacking(topic: str, found: Sequence[bytes], wanted: Sequence[bytes]) -> Sequence[bytes]:
    """The wanted values that are missing. Those found must be the first ones; an append may be partial or repeated."""
    ids = list(dict.fromkeys(map(_id, found)))
    if ids != list(dict.fromkeys(map(_id, wanted)))[: len(ids)]:
        raise Conflict(f"the new log's topic {topic!r} has documents of its own: choose a new log or topic prefix")
    there = set(ids)
    return [value for value in wanted if _id(value) not in there]


def _id(value: bytes) -> str:
    """An entry's id; for a value that is no entry of ours, the whole value."""
    try:
        return msgspec.json.decode(value, type=Entry).id
    except (ValueError, RecursionError):  # no JSON, no entry, no Unicode, nested too deeply
        return value.hex()


async def _entries(log: Log, topic: str) -> tuple[bytes, ...]:
    await log.open_topic(TopicSpec(topic, 1))
    values: list[bytes] = []
    batches = log.read(topic, 0, 0)
    async with aclosing(batches):
        async for batch in batches:
            values += [entry.value for entry in batch if entry.value is not None]
    return tuple(values)
