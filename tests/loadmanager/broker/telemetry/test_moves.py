"""Moves are timed from records, on one clock: by whom, from when, until when, and when they are forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadmanager.broker import observations as module
from loadmanager.broker.observations import Kind, Move, Moves
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change
from statechannel.runtime.durations import Durations

A, B, LEADER = BrokerId("a:1", 1), BrokerId("b:1", 1), BrokerId("leader:1", 1)
LOW, MIDDLE, HIGH = even_boundaries(2)
BUNDLE, OTHER = Bundle("t/n", LOW, MIDDLE), Bundle("t/n", MIDDLE, HIGH)


class Seen:
    """A table, and what two brokers make of its changes; `now_s` is everybody's clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.table = OwnershipTable(1)
        self.ended: list[tuple[str, Move, Action]] = []
        self.at = {who: self._moves(who.name) for who in (A, B)}
        self.offset = -1
        self._record(Record("", Action.GENESIS, A, cluster="c"))
        self._record(
            Record(
                "", Action.CREATE_NAMESPACE, A, Role.ADMIN, namespace="t/n",
                boundaries=even_boundaries(2), seen_namespace=NEVER,
            )
        )  # fmt: skip
        self._record(Record("", Action.LEAD, LEADER, Role.LEADER, 1))

    def _moves(self, name: str) -> Moves:
        def ended(move: Move, record: Record) -> None:
            self.ended.append((name, move, record.action))

        return Moves(name, lambda: self.now_s, lambda: 0, ended)

    def _record(self, record: Record) -> None:
        self.offset += 1
        change = self.table.replay(0, self.offset, record)
        assert isinstance(change, Change), change
        for moves in self.at.values():
            moves.saw(change)

    def write(self, action: Action, by: BrokerId, to: BrokerId | None = None, *, after_s: float = 0.0) -> None:
        """A record about BUNDLE, read so many seconds later."""
        self.now_s += after_s
        entry = self.table.get(BUNDLE)
        assert entry is not None
        role, epoch = (Role.LEADER, 1) if by is LEADER else (Role.BROKER, 0)
        self._record(Record("", action, by, role, epoch, (Subject(BUNDLE, entry.revision),), to, cause="1.7"))

    def serve(self, at: BrokerId, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.at[at].served(BUNDLE, "a claim")

    def assign(self, to: BrokerId) -> None:
        self.write(Action.OWN, A, to)
        self.serve(to)
        self.write(Action.RETURN, to)

    def transfer(self, source: BrokerId, to: BrokerId) -> None:
        """Three seconds, in two of which nobody serves."""
        self.write(Action.TRANSFER, LEADER, to)
        self.write(Action.READY, to, after_s=1.0)
        self.write(Action.RELEASE, source, after_s=0.5)
        self.serve(to, after_s=1.5)
        self.write(Action.RETURN, to)


def figures(durations: Durations) -> tuple[int, float]:
    return sum(durations.counts), durations.sum_s


def test_the_new_owner_alone_counts_a_transfer_and_its_gap() -> None:
    seen = Seen()
    seen.assign(A)
    seen.transfer(A, B)
    assert figures(seen.at[B].took[Kind.TRANSFER]) == (1, 3.0)
    assert figures(seen.at[B].gaps[Kind.TRANSFER]) == (1, 2.0)
    assert figures(seen.at[A].took[Kind.TRANSFER]) == (0, 0.0)
    assert figures(seen.at[A].took[Kind.ASSIGN]) == (1, 0.0)
    assert Kind.ASSIGN not in seen.at[A].gaps, "nobody had served it"


def test_an_unload_lasts_until_somebody_serves_again() -> None:
    seen = Seen()
    seen.assign(A)
    seen.write(Action.UNLOAD, LEADER)
    assert seen.at[A].oldest_s() == 0
    seen.now_s += 1
    assert seen.at[A].oldest_s() == 1
    seen.write(Action.RELEASE, A)
    assert seen.at[A].oldest_s() == 0, "nobody asks for it: nothing is under way"
    seen.write(Action.OWN, A, B, after_s=10)
    seen.serve(B)
    assert figures(seen.at[B].gaps[Kind.UNLOAD]) == (1, 11.0)


def test_a_takeover_in_the_middle_of_a_transfer_keeps_the_begin_of_the_gap() -> None:
    seen = Seen()
    seen.assign(A)
    seen.write(Action.TRANSFER, LEADER, B)
    seen.write(Action.READY, B)
    seen.write(Action.REVOKE, LEADER, after_s=4)
    seen.write(Action.RELEASE, LEADER, B, after_s=1)
    seen.serve(B)
    assert figures(seen.at[B].gaps[Kind.TAKEOVER]) == (1, 5.0)
    assert figures(seen.at[B].took[Kind.TAKEOVER]) == (1, 1.0)
    assert figures(seen.at[B].took[Kind.TRANSFER]) == (0, 0.0)


def test_a_cancelled_transfer_ends_without_a_figure() -> None:
    seen = Seen()
    seen.assign(A)
    seen.write(Action.TRANSFER, LEADER, B)
    seen.write(Action.CANCEL, LEADER)
    assert seen.at[A].of(BUNDLE) is None
    assert [(name, end) for name, _, end in seen.ended][-2:] == [("a:1", Action.CANCEL), ("b:1", Action.CANCEL)]
    assert figures(seen.at[B].took[Kind.TRANSFER]) == (0, 0.0)


def test_who_comes_back_within_ten_minutes_is_a_return() -> None:
    seen = Seen()
    seen.assign(A)
    seen.transfer(A, B)
    seen.transfer(B, A)
    assert (seen.at[A].returns, seen.at[B].returns) == (1, 0)
    seen.now_s += 601
    seen.transfer(A, B)
    assert seen.at[B].returns == 0, "B gave it away long ago"


def test_a_move_knows_its_records_and_its_cause() -> None:
    seen = Seen()
    seen.assign(A)
    seen.transfer(A, B)
    _, move, _ = seen.ended[-1]
    assert [(step.action, step.by) for step in move.steps] == [
        (Action.TRANSFER, "leader:1"), (Action.READY, "b:1"), (Action.RELEASE, "a:1"), (Action.RETURN, "b:1"),
    ]  # fmt: skip
    assert (move.begin.cause, move.former, move.kind) == ("1.7", "a:1", Kind.TRANSFER)


@pytest.mark.parametrize("way", ["a snapshot", "a deleted namespace", "a split"])
def test_a_move_is_forgotten_after(way: str) -> None:
    seen = Seen()
    seen.assign(A)
    seen.write(Action.UNLOAD, LEADER)
    seen.write(Action.RELEASE, A)
    moves = seen.at[A]
    assert moves.of(BUNDLE) is not None
    if way == "a snapshot":
        moves.missed(0)
    elif way == "a deleted namespace":
        now = seen.table.namespace("t/n")
        assert now is not None
        seen._record(
            Record(
                "", Action.DELETE_NAMESPACE, A, Role.ADMIN, namespace="t/n", seen_namespace=now.revision,
                seen_latest=seen.offset,
            )
        )  # fmt: skip
    else:
        seen.assign(A)
        seen.write(Action.SPLIT, A)
        middle = (BUNDLE.lo + BUNDLE.hi) // 2
        entry = seen.table.get(BUNDLE)
        assert entry is not None
        seen._record(Record("", Action.CREATE, A, subjects=(Subject(BUNDLE, entry.revision),), boundaries=(middle,)))
    assert moves.of(BUNDLE) is None


def test_of_too_many_moves_the_oldest_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOWED_AT_MOST", 1)
    seen = Seen()
    seen.write(Action.OWN, A, A)
    entry = seen.table.get(OTHER)
    assert entry is not None
    seen._record(Record("", Action.OWN, A, subjects=(Subject(OTHER, entry.revision),), to=B))
    assert seen.at[A].of(BUNDLE) is None
    assert seen.at[A].of(OTHER) is not None
    assert seen.at[A].not_followed == 1
    seen.serve(A)
    assert figures(seen.at[A].took[Kind.ASSIGN]) == (0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [((), [0, 0, 0]), ((-1.0, 0.5), [2, 0, 0]), ((1.0, 1.1, 2.0, 2.1), [1, 2, 1])],
)
def test_durations_fall_into_the_bucket_of_the_next_bound(seconds: Sequence[float], counts: list[int]) -> None:
    durations = Durations((1.0, 2.0))
    for each in seconds:
        durations.add(each)
    assert durations.counts == counts
    assert list(durations.cumulative())[-1] == (float("inf"), len(seconds))
    assert durations.sum_s == pytest.approx(sum(max(0.0, each) for each in seconds))
