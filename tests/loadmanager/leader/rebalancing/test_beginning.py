"""How moves begin: each only where its bundle still is, groups together, and called off together."""

from __future__ import annotations

from typing import Any, cast

import pytest

from loadmanager.cluster.fitness import Fitness
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.leader.rebalancing.moves import MoveStarter
from loadmanager.leader.service import DutyExecutor
from loadmanager.model.policies.model import BrokerPolicy, Policies
from loadmanager.strategies.rebalancing.decision import Move
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Reason, Refusal, Unknown, Verdict

A, B, C = (BrokerId(f"{name}:1", 1) for name in "abc")
REFUSED = Refusal(Reason.STALE, "b:1 was first")


class Cluster:
    """Bundles at their brokers; stands in for a leader's view of them, and for its hands."""

    def __init__(self) -> None:
        self.table: dict[Bundle, Ownership] = {}
        self.policy = Policies()
        self.takes = {A, B, C}
        self.fitness = Fitness(lambda: 0.0)
        self.answers: dict[Bundle, Verdict] = {}
        self.log: list[str] = []
        self.meanwhile: Any = None
        self.ruled_out: set[tuple[int, BrokerId]] = set()

    def has(self, number: int, holder: BrokerId = A, *, revision: int = 5, state: State = State.ASSIGNED) -> Bundle:
        bundle = Bundle("t/n", number, number + 1)
        self.table[bundle] = Ownership(bundle, state, holder, None, revision, 5, Action.RETURN, holder)
        return bundle

    def policies(self) -> Policies:
        return self.policy

    def taking(self, name: str) -> BrokerId | None:
        return next((broker for broker in self.takes if broker.name == name), None)

    async def move(self, bundle: Bundle, seen: int, to: BrokerId | None, reason: str, cause: str) -> Verdict:
        self.log.append(f"move {bundle.lo} to {to}, seen {seen}, {cause}")
        if self.meanwhile is not None:
            self.meanwhile()
        return self.answers.get(bundle) or Change(0, 77, Record("", Action.TRANSFER, A))

    async def call_off(self, bundle: Bundle, seen: int, reason: str, cause: str) -> Verdict:
        self.log.append(f"call off {bundle.lo}, seen {seen}, {cause}")
        return Change(0, 78, Record("", Action.CANCEL, A))

    def forbids(self, bundle: Bundle, to: BrokerId) -> str:
        return "isolation policy 'pay'" if (bundle.lo, to) in self.ruled_out else ""

    async def begin(
        self, *moves: Move, seen: dict[Bundle, int] | None = None, decided_under: int | None = None
    ) -> dict[int, str]:
        starter = MoveStarter(cast("Decider", self), cast("DutyExecutor", self))
        outcomes = await starter.begin(moves, "1.7", seen, decided_under)
        self.details = {bundle.lo: outcome.detail for bundle, outcome in outcomes.items()}
        return {bundle.lo: outcome.outcome for bundle, outcome in outcomes.items()}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def move(bundle: Bundle, source: BrokerId = A, to: BrokerId | None = B, group: int = 0) -> Move:
    return Move(bundle, source, to, "because", group=group)


async def test_move_begins_with_the_seen_revision_and_its_round_as_cause(cluster: Cluster):
    assert await cluster.begin(move(cluster.has(1, revision=9))) == {1: "begun"}
    assert cluster.log == ["move 1 to b:1#1, seen 9, 1.7"]


async def test_what_is_not_where_it_was_is_not_touched(cluster: Cluster):
    moves = [
        move(cluster.has(1, C)),
        move(cluster.has(2, state=State.SPLITTING)),
        move(Bundle("t/n", 3, 4)),
        move(cluster.has(4, BrokerId("a:1", 2))),
    ]
    assert await cluster.begin(*moves) == dict.fromkeys((1, 2, 3, 4), "moved on")
    assert cluster.log == []


async def test_a_plans_move_begins_only_if_nothing_has_happened_to_the_bundle(cluster: Cluster):
    first, second = cluster.has(1, revision=9), cluster.has(2, revision=8)
    found = await cluster.begin(move(first), move(second), seen={first: 5, second: 8})
    assert found == {1: "moved on", 2: "begun"}


async def test_a_destination_that_takes_nothing_gets_nothing(cluster: Cluster):
    cluster.takes = {A, BrokerId("b:1", 2)}
    assert await cluster.begin(move(cluster.has(1)), move(cluster.has(2), to=None)) == {1: "no destination", 2: "begun"}


async def test_a_pause_that_came_meanwhile_is_kept(cluster: Cluster):
    bundles = [cluster.has(number) for number in range(40)]

    def pause() -> None:
        cluster.policy = Policies(brokers={"b:1": BrokerPolicy(paused=True)})

    cluster.meanwhile = pause
    found = await cluster.begin(*map(move, bundles))
    assert set(found.values()) == {"begun", "held back"}
    assert list(found.values()).count("begun") == len(cluster.log) < 40


async def test_a_refusal_and_silence_are_told_as_they_are(cluster: Cluster):
    first, second = cluster.has(1), cluster.has(2)
    cluster.answers = {first: REFUSED, second: Unknown("id", "no verdict")}
    assert await cluster.begin(move(first), move(second)) == {1: "refused", 2: "no answer"}
    assert cluster.details == {1: "stale: b:1 was first", 2: "no verdict"}


async def test_of_a_group_with_a_move_that_cannot_begin_none_begins(cluster: Cluster):
    swap = move(cluster.has(1), group=3), move(cluster.has(2, C), B, A, group=3)
    assert await cluster.begin(*swap) == {1: "moved on", 2: "moved on"}
    assert cluster.log == []
    assert cluster.details[1].startswith("only together with t/n/0x00000002_0x00000003")


async def test_what_has_begun_of_a_group_is_called_off_when_the_next_is_refused(cluster: Cluster):
    chain = [cluster.has(1), cluster.has(2), cluster.has(3), cluster.has(4)]
    cluster.answers = {chain[2]: REFUSED}
    found = await cluster.begin(*(move(bundle, group=3) for bundle in chain[:4]))
    assert found == {1: "called off", 2: "called off", 3: "refused", 4: "refused"}
    assert cluster.log[3:] == ["call off 1, seen 77, 1.7", "call off 2, seen 77, 1.7"]
    assert not any("move 4" in line for line in cluster.log)


async def test_move_under_a_newer_policy_does_not_begin_and_nor_does_its_group(
    cluster: Cluster,
):
    cluster.ruled_out = {(1, B)}
    moves = [
        move(cluster.has(1), group=1),
        move(cluster.has(2, B), B, A, group=1),
        move(cluster.has(3)),
    ]
    cluster.policy = Policies(revision=8)
    assert await cluster.begin(*moves, decided_under=7) == {1: "forbidden", 2: "forbidden", 3: "begun"}
    assert "a policy has changed since the decision: isolation policy 'pay'" in cluster.details[1]
    assert await cluster.begin(moves[0], decided_under=8) == {1: "begun"}, "the strategy has looked at these rules"
