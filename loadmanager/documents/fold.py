"""Documents with versions, in a topic: the record format, and the law that makes documents of records. Pure.

Each change is an entry in a topic of one partition that keeps everything. A compacted topic would not do: if the log
took an append twice it keeps the later copy, which may be refused by then. As in the state channel, the first entry
that names the present version wins, and every reader refuses the later ones. So no writer overwrites what it has not
seen. A table of last values would keep the loser.

The same entries give the same documents to every reader of any release. An attempt is accepted if it names the present
version of its document (`seen`), else refused. A value that only a newer release can read still moves the version on,
and the previous value stays in force here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from statechannel.errors import CorruptRecord
from statechannel.law.codec import nests_too_deep
from statechannel.ports import LogEntry

T = TypeVar("T")

ABSENT = 0
"""The version of a document that was never written; a deletion is a version as well."""

DELETED = b"null"
"""The value that deletes a document; no document's value is null."""


POLICIES_TOPIC, SETTINGS_TOPIC, PLANS_TOPIC = "policies", "settings", "plans"
DOCUMENT_TOPICS = (POLICIES_TOPIC, SETTINGS_TOPIC, PLANS_TOPIC)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to change a document. `seen` is the version that its author saw; `value` null deletes."""

    id: str
    name: str
    seen: int
    value: msgspec.Raw
    author: str = ""
    at_ms: int = 0
    reason: str = ""


class Version(msgspec.Struct, Generic[T], frozen=True):
    """One accepted version of a document. `value` None: it was deleted. `offset`: its place in the topic.

    If not `readable`, `defect` says why this release cannot use it: a newer release wrote it in an unknown form, or an
    older one accepted what is now refused. `value` is then that of the version before.
    """

    name: str
    version: int
    value: T | None
    author: str
    at_ms: int
    reason: str
    offset: int
    defect: str = ""

    @property
    def readable(self) -> bool:
        """Whether the value is what was written."""
        return not self.defect


_offset_of: Callable[[Version[Any]], int] = attrgetter("offset")
_read_entry = msgspec.json.Decoder(Entry).decode


class Accepted(msgspec.Struct, Generic[T], frozen=True):
    """An accepted attempt: the version before, and the new one."""

    id: str
    old: Version[T] | None
    new: Version[T]


class Refused(msgspec.Struct, Generic[T], frozen=True):
    """A refused attempt, which named another version than the present one."""

    id: str
    present: Version[T] | None


class Skipped(msgspec.Struct, frozen=True):
    """An entry that is not a document entry, and why."""

    detail: str


class DocumentFold(Generic[T]):
    """The documents after the entries applied so far, with their history."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._all: list[Version[T]] = []
        self._by_name: dict[str, list[Version[T]]] = {}

    def apply(self, entry: LogEntry) -> Accepted[T] | Refused[T] | Skipped:
        """Take the next entry, in the order of offsets."""
        try:
            attempt = _read(entry)
        except Exception as error:  # noqa: BLE001 - whatever foreign bytes do to the decoder, the reader goes on
            return Skipped(f"not a document entry: {error}")
        old = self.get(attempt.name)
        if attempt.seen != (ABSENT if old is None else old.version):
            return Refused(attempt.id, old)
        new = self._version(attempt, old, entry.offset)
        self._all.append(new)
        self._by_name.setdefault(attempt.name, []).append(new)
        return Accepted(attempt.id, old, new)

    def value_in(self, entry: LogEntry) -> T | None:
        """The value that an entry would set, accepted or not; None if it sets none that can be read."""
        try:
            raw = bytes(_read(entry).value)
            return None if raw == DELETED else self._decode(raw)
        except Exception:  # noqa: BLE001 - `apply` says what is wrong with it
            return None

    def _version(self, attempt: Entry, old: Version[T] | None, offset: int) -> Version[T]:
        value, defect = None, ""
        raw = bytes(attempt.value)
        if raw != DELETED:
            try:
                value = self._decode(raw)
            except Exception as error:  # noqa: BLE001 - whatever a foreign value does to the decoder, the reader goes on
                value, defect = None if old is None else old.value, str(error) or repr(error)
        return Version(
            attempt.name,
            attempt.seen + 1,
            value,
            attempt.author,
            attempt.at_ms,
            attempt.reason,
            offset,
            defect,
        )

    @property
    def revision(self) -> int:
        """The offset of the last accepted entry; -1 if there is none."""
        return self._all[-1].offset if self._all else -1

    def get(self, name: str) -> Version[T] | None:
        """The newest version of a document."""
        versions = self._by_name.get(name)
        return versions[-1] if versions else None

    def values(self) -> Mapping[str, T]:
        """The documents that exist."""
        return {
            name: last.value for name, versions in self._by_name.items() if (last := versions[-1]).value is not None
        }

    def newest(self) -> list[Version[T]]:
        """The newest version of each document that exists, readable or not. Any thread: versions are only added."""
        newest = (versions[-1] for versions in list(self._by_name.values()))
        return [each for each in newest if each.value is not None or not each.readable]

    def history(self, name: str | None = None) -> Sequence[Version[T]]:
        """The accepted versions, oldest first."""
        return tuple(self._all if name is None else self._by_name.get(name, ()))

    def at(self, offset: int) -> Mapping[str, T]:
        """The documents that existed after the entry at `offset`."""
        found: dict[str, T] = {}
        for name, versions in self._by_name.items():
            count = bisect_right(versions, offset, key=_offset_of)
            value = versions[count - 1].value if count else None
            if value is not None:
                found[name] = value
        return found


def _read(entry: LogEntry) -> Entry:
    """Raises what the decoder raises, and CorruptRecord for nesting that only some readers could decode."""
    value = entry.value or b""
    if nests_too_deep(value):
        raise CorruptRecord("nested too deep")
    return _read_entry(value)
