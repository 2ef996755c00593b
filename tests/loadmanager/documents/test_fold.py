"""The law of documents: the first attempt that names the present version counts, for every reader alike."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.documents.fold import DELETED, Accepted, DocumentFold, Entry, Refused, Skipped
from statechannel.ports import LogEntry

Attempt = tuple[str, int, int | None]
attempts = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.none() | st.integers(0, 9)), min_size=1, max_size=30
)


def read_number(data: bytes) -> int:
    return msgspec.json.decode(data, type=int)


def read_even_number(data: bytes) -> int:
    """An older release, which does not know odd numbers."""
    number = read_number(data)
    if number % 2:
        raise ValueError("what is an odd number?")
    return number


def entries_of(history: list[Attempt]) -> list[LogEntry]:
    return [entry(offset, *attempt) for offset, attempt in enumerate(history)]


def entry(offset: int, name: str, seen: int, value: int | None) -> LogEntry:
    raw = msgspec.Raw(DELETED if value is None else msgspec.json.encode(value))
    data = msgspec.json.encode(Entry(f"id-{offset}", name, seen, raw, f"author-{offset}", 1000 + offset, "why not"))
    return LogEntry(0, offset, name.encode(), data, 0)


def folded(entries: list[LogEntry], decode: Callable[[bytes], int] = read_number) -> DocumentFold[int]:
    fold: DocumentFold[int] = DocumentFold(decode)
    for each in entries:
        fold.apply(each)
    return fold


@given(attempts)
def test_only_the_first_attempt_that_names_the_present_version_counts(history: list[Attempt]) -> None:
    versions, values = dict.fromkeys("ab", 0), dict[str, int]()
    fold: DocumentFold[int] = DocumentFold(read_number)
    for offset, (name, seen, value) in enumerate(history):
        outcome = fold.apply(entry(offset, name, seen, value))
        if seen == versions[name]:
            versions[name] += 1
            values.pop(name, None)
            values |= {} if value is None else {name: value}
            assert isinstance(outcome, Accepted)
            assert (outcome.new.version, outcome.new.value, outcome.new.offset) == (versions[name], value, offset)
        else:
            assert isinstance(outcome, Refused)
        assert fold.values() == values


@given(attempts)
def test_a_release_that_cannot_read_every_value_agrees_on_who_won(history: list[Attempt]) -> None:
    new, old = folded(entries_of(history)), folded(entries_of(history), read_even_number)
    assert [(v.name, v.version, v.author, v.offset) for v in new.history()] == [
        (v.name, v.version, v.author, v.offset) for v in old.history()
    ]
    assert new.revision == old.revision


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 9)), min_size=1), st.data())
def test_an_append_that_the_log_took_twice_changes_nothing(
    late: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """An author names what he has read, which may be older than the present version and never newer."""
    once: DocumentFold[int] = DocumentFold(read_number)
    twice: DocumentFold[int] = DocumentFold(read_number)
    written: list[LogEntry] = []
    for offset, (name, behind, value) in enumerate(late):
        now = once.get(name)
        written.append(entry(2 * offset, name, max(0, (now.version if now else 0) - behind), value))
        once.apply(written[-1])
        twice.apply(written[-1])
        again = data.draw(st.sampled_from(written))
        assert isinstance(twice.apply(msgspec.structs.replace(again, offset=2 * offset + 1)), Refused)
    assert once.history() == twice.history()


@given(attempts, st.integers(-1, 31))
def test_what_held_after_an_offset_is_what_a_reader_had_there(history: list[Attempt], offset: int) -> None:
    entries = entries_of(history)
    assert folded(entries).at(offset) == folded([each for each in entries if each.offset <= offset]).values()


def test_newer_releases_value_advances_the_version_and_the_old_value_holds() -> None:
    fold = folded([entry(0, "a", 0, 2), entry(1, "a", 1, 3)], read_even_number)
    now = fold.get("a")
    assert now is not None
    assert (now.version, now.value, now.readable) == (2, 2, False)
    assert fold.values() == {"a": 2}
    assert isinstance(fold.apply(entry(2, "a", 1, 4)), Refused)


def test_a_deletion_is_a_version_and_what_follows_it_must_name_it() -> None:
    fold = folded([entry(0, "a", 0, 1), entry(1, "a", 1, None), entry(2, "a", 0, 5)])
    assert fold.values() == {}
    fold.apply(entry(3, "a", 2, 6))
    assert [(v.version, v.value) for v in fold.history("a")] == [(1, 1), (2, None), (3, 6)]


DEEP = b'{"id":"i","name":"a","seen":0,"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NO_UNICODE = b'{"id":"\xff\xfe","name":"a","seen":0,"value":1}'


@pytest.mark.parametrize("data", [None, b"", b"what?", b"{}", b'{"id":1}', DEEP, NO_UNICODE], ids=range(7))
def test_foreign_bytes_are_skipped(data: bytes | None) -> None:
    fold: DocumentFold[int] = DocumentFold(read_number)
    assert isinstance(fold.apply(LogEntry(0, 0, b"a", data, 0)), Skipped)
    assert fold.revision == -1
