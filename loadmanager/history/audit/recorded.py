"""Compares the lakehouse's rows of each record with those of a fresh replay, in all columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmanager.channel.audit.auditor import Broken, Invariant
from loadmanager.history.folding.lists import Row
from loadmanager.history.folding.rows import UNKNOWN
from loadmanager.history.schemas import CHANNEL, TRANSITION
from statechannel.law.record import Record

_VERDICT = CHANNEL.names.index("verdict")
_OFFSET = CHANNEL.names.index("offset")

Tell = Callable[[int, Broken, Record | None], None]


class Recorded:
    """For each entry in order: call `expect` with the right rows, then pass the recorded rows.

    `until` is how far rows must be there; rows beyond belong to an incomplete batch, and are ignored.
    """

    def __init__(self, until: int, tell: Tell) -> None:
        self._until = until
        self._tell = tell
        self._offset = -1
        self._record: Record | None = None
        self._row: Row | None = None
        self._moves: list[Row] = []
        self._found: list[Row] = []
        self._found_moves: list[Row] = []

    def expect(self, offset: int, record: Record | None, row: Row | None, moves: list[Row]) -> None:
        """The replay's rows of the next entry; no row where the entry cannot be read."""
        self.settle()
        self._offset, self._record, self._row, self._moves = offset, record, row, moves

    def channel(self, row: Row) -> None:
        """A row of `channel`."""
        (self._found if self._is_expected(row) else []).append(row)

    def transition(self, row: Row) -> None:
        """A row of `transition`."""
        (self._found_moves if self._is_expected(row) else []).append(row)

    def _is_expected(self, row: Row) -> bool:
        offset = row[_OFFSET]
        if offset == self._offset:
            return True
        assert isinstance(offset, int)
        if offset < self._until:
            self._say(offset, "there is a row of it, and the log has no such record", None)
        return False

    def settle(self) -> None:
        """Judge the last entry, once all its rows are there."""
        found, self._found = self._found, []
        moved, self._found_moves = self._found_moves, []
        if self._offset >= self._until or any(row[_VERDICT] == UNKNOWN for row in found):
            return
        expected = [self._row] if self._row is not None else []
        self._compare("channel", CHANNEL.names, expected, found)
        self._compare("transition", TRANSITION.names, self._moves, moved)

    def _compare(self, table: str, names: Sequence[str], expected: Sequence[Row], found: Sequence[Row]) -> None:
        if len(found) != len(expected):
            self._say(self._offset, f"{table} has {len(found)} rows of it, not {len(expected)}", self._record)
            return
        for right, row in zip(expected, found, strict=True):
            wrong = [
                f"{name} is {said!r}, not {true!r}"
                for name, said, true in zip(names, row, right, strict=True)
                if said != true
            ]
            if wrong:
                self._say(self._offset, f"{table}: {'; '.join(wrong)}", self._record)

    def _say(self, offset: int, detail: str, record: Record | None) -> None:
        self._tell(offset, Broken(Invariant.RECORDED, detail), record)
