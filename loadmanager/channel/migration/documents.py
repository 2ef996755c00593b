"""Policies, settings and plans go with the channel: their topics are read, written to a file, and filled again.

Entries are copied as they are, the refused ones too: the same entries in the same order give every reader the same
documents. Copying goes on where an earlier run ended, by the entries' ids. What decisions were made stays in the old
log: it is the past of that log's offsets.
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
    """All entries of the document topics; creates those that are not there. Raises LogUnavailable."""
    return {topic: await patiently(lambda topic=topic: _entries(log, topic)) for topic in DOCUMENT_TOPICS}


async def fill_documents(log: Log, documents: DocumentEntries) -> int:
    """Append what a new log lacks; how many entries. Raises Conflict if the log has other documents already."""
    found = await documents_in(log)
    lacking = {topic: _lacking(topic, found[topic], wanted) for topic, wanted in documents.items()}
    for topic, values in lacking.items():
        for begin in range(0, len(values), ENTRIES_AT_ONCE):
            payloads = [Payload(None, value) for value in values[begin : begin + ENTRIES_AT_ONCE]]
            await patiently(lambda topic=topic, payloads=payloads: log.append(topic, 0, payloads))
    return sum(map(len, lacking.values()))


def _lacking(topic: str, found: Sequence[bytes], wanted: Sequence[bytes]) -> Sequence[bytes]:
    """An append may have happened in part, and twice: what is there must be the beginning of what is wanted."""
    ids = list(dict.fromkeys(map(_id, found)))
    if ids != list(dict.fromkeys(map(_id, wanted)))[: len(ids)]:
        raise Conflict(f"the new log's topic {topic!r} has documents of its own: choose a new log or topic prefix")
    there = set(ids)
    return [value for value in wanted if _id(value) not in there]


def _id(value: bytes) -> str:
    """What tells one entry from another; for what is no entry of ours, all of it."""
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
