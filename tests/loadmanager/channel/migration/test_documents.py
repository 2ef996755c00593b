"""Policies, settings and plans go with the channel: through a file, and from log to log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.channel.migration.export import _seal, decode, documents_in, encode, fill_documents
from loadmanager.documents.fold import DocumentFold, Entry
from loadmanager.errors import Conflict, Invalid
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import LogEntry, Payload, TopicSpec
from tests.loadmanager.channel.migration.channels import exported, replaced, two_namespaces


def entry(number: int, seen: int, value: bytes) -> bytes:
    return msgspec.json.encode(Entry(f"id-{number}", "broker/a:1", seen, msgspec.Raw(value)))


ENTRIES = (entry(1, 0, b'{"drain":true}'), entry(2, 0, b'{"drain":false}'), entry(3, 1, b"null"))
"""The second one is refused, wherever it is read."""
DOCUMENTS = {"policies": ENTRIES, "settings": (entry(4, 0, b"3"),), "plans": ()}


def test_a_file_carries_them_and_says_so_in_its_version():
    export = replaced(exported(two_namespaces()), documents=DOCUMENTS)
    data = encode(export)
    assert data.startswith(b"LMEXPORT 02 ")
    assert decode(data).documents == {"policies": ENTRIES, "settings": DOCUMENTS["settings"]}
    assert encode(replaced(export, documents={})).startswith(b"LMEXPORT 01 ")


def test_a_header_that_counts_more_than_there_is_is_refused():
    data = encode(replaced(exported(two_namespaces()), documents=DOCUMENTS))
    body = data[:-33].replace(b'["settings",1]', b'["settings",2]', 1)
    with pytest.raises(Invalid, match="lacks documents"):
        decode(body + _seal(body))


async def opened(path: Path) -> SqliteLog:
    log = SqliteLog(path)
    await log.start(5)
    return log


async def test_they_go_from_log_to_log_and_mean_the_same(tmp_path: Path):
    old, new = await opened(tmp_path / "old.db"), await opened(tmp_path / "new.db")
    try:
        assert await documents_in(old) == {"policies": (), "settings": (), "plans": ()}
        await old.append("policies", 0, [Payload(b"any key", value) for value in ENTRIES])
        found = await documents_in(old)
        assert await fill_documents(new, found) == 3
        assert await documents_in(new) == found
        assert await fill_documents(new, found) == 0
    finally:
        await old.close()
        await new.close()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 3), st.booleans())
async def test_an_interrupted_copy_goes_on_whatever_was_appended_twice(tmp_path_factory, there: int, twice: bool):
    new = await opened(tmp_path_factory.mktemp("copy") / "new.db")
    try:
        await new.open_topic(TopicSpec("policies", 1))
        for value in ENTRIES[:there]:
            await new.append("policies", 0, [Payload(None, value)] * (2 if twice else 1))
        await fill_documents(new, DOCUMENTS)
        found = await documents_in(new)
        fold: DocumentFold[object] = DocumentFold(msgspec.json.decode)
        for offset, value in enumerate(found["policies"]):
            fold.apply(LogEntry(0, offset, None, value, 0))
        assert [(each.version, each.value) for each in fold.history()] == [(1, {"drain": True}), (2, None)]
    finally:
        await new.close()


async def test_a_log_with_documents_of_its_own_is_refused(tmp_path: Path):
    new = await opened(tmp_path / "new.db")
    try:
        await new.open_topic(TopicSpec("policies", 1))
        await new.append("policies", 0, [Payload(None, entry(9, 0, b"{}"))])
        with pytest.raises(Conflict, match="documents of its own"):
            await fill_documents(new, DOCUMENTS)
        assert (await documents_in(new))["settings"] == ()
    finally:
        await new.close()
