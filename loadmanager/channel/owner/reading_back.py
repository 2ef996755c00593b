"""Compares a snapshot that was read back with the state it was written from. Pure.

Chunk by chunk, keeping nothing: a second copy of a large partition would cost memory, and a pause to free it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statechannel.errors import BadSnapshot
from statechannel.law.partition import PartitionState
from statechannel.law.record import BrokerId
from statechannel.law.snapshot import Head, Section, entries, unpack


def compare(chunks: Sequence[bytes], state: PartitionState) -> Iterator[None]:
    """Compare in steps of a few milliseconds. Raises BadSnapshot unless the chunks equal `state`."""
    top, place = _Top(state), _Place(state)
    for value in chunks:
        chunk = unpack(value)
        if chunk.head is not None:
            top.check(chunk.head)
        for section in chunk.sections:
            place.check(section, [None, *chunk.brokers])
        yield
    top.check_end()
    place.check_end()


class _Top:
    """How far the lists of the head have been compared."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self._incarnations = self._leaving = self._arrived = 0
        self._read = False

    def check(self, piece: Head) -> None:
        """Compare the next piece of the head."""
        state, self._read = self._state, True
        incarnations, self._incarnations = self._incarnations, self._incarnations + len(piece.incarnations)
        leaving, self._leaving = self._leaving, self._leaving + len(piece.leaving)
        arrived, self._arrived = self._arrived, self._arrived + len(piece.arrived)
        written = Head(
            state.cluster_identity,
            state.lead,
            state.retired,
            state.incarnations[incarnations : self._incarnations],
            state.leaving[leaving : self._leaving],
            state.arrived[arrived : self._arrived],
            state.agreed,
        )
        if piece != written:
            raise BadSnapshot("its head differs from what was written")

    def check_end(self) -> None:
        """Raises BadSnapshot unless the whole head was compared."""
        state = self._state
        read = (self._incarnations, self._leaving, self._arrived)
        if not self._read or read != (len(state.incarnations), len(state.leaving), len(state.arrived)):
            raise BadSnapshot("it lacks a part of its head")


class _Place:
    """How far the namespaces have been compared."""

    def __init__(self, state: PartitionState) -> None:
        self._namespaces = state.namespaces
        self._at = 0
        self._begin = 0

    def check(self, section: Section, brokers: Sequence[BrokerId | None]) -> None:
        """Compare the next section."""
        if self._at == len(self._namespaces):
            raise BadSnapshot(f"it holds more than was written: {section.namespace}")
        cut, read = self._namespaces[self._at], entries(section, brokers)
        end = self._begin + len(read)
        same = (cut.name, cut.revision) == (section.namespace, section.revision)
        if not same or list(cut.entries[self._begin : end]) != read:
            raise BadSnapshot(f"{section.namespace} differs from what was written")
        self._at, self._begin = (self._at + 1, 0) if end == len(cut.entries) else (self._at, end)

    def check_end(self) -> None:
        """Raises BadSnapshot unless all namespaces were compared."""
        if self._at < len(self._namespaces):
            raise BadSnapshot(f"it lacks what was written from {self._namespaces[self._at].name} on")
