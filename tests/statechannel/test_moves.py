"""Which planned moves the fold remembers: from where, to where, when; how many, and of how many bundles."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.law import codec
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.partition import MOVES_KEPT_A_BUNDLE, Move, Moves
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change

from .auditor import History
from .snapshots import Topic, newest, replay_all, write


class Cluster:
    """The ledger's bundles, all at A at the beginning; each record is of the time that stands in `now_ms`."""

    def __init__(self, ledger) -> None:
        self.ledger, self.table = ledger, ledger.table
        self.A, self.B, self.C = ledger.A, ledger.B, ledger.C
        self.now_ms = 1_000
        self.bundles = ledger.begin(4)
        self.hot, self.warm, *_ = self.bundles
        for bundle in self.bundles:
            ledger.assign(bundle)

    def write(
        self, action: Action, bundle: Bundle, by: BrokerId, role: Role = Role.BROKER, cause: str = "", **more
    ) -> None:
        epoch = 1 if role is Role.LEADER else 0
        record = self.ledger.record(action, bundle, by, role=role, epoch=epoch, **more)
        verdict = self.ledger.replay(msgspec.structs.replace(record, at_ms=self.now_ms, cause=cause))
        assert isinstance(verdict, Change), verdict

    def lead(self, action: Action, bundle: Bundle, **more) -> None:
        self.write(action, bundle, self.ledger.LEADER, Role.LEADER, **more)

    def transfer(self, bundle: Bundle, to: BrokerId, role: Role = Role.LEADER) -> None:
        """All of it, asked for in this role."""
        source = self.ledger.entry(bundle).holder
        by = {Role.LEADER: self.ledger.LEADER, Role.ADMIN: self.B, Role.BROKER: source}[role]
        self.write(Action.TRANSFER, bundle, by, role, to=to)
        self.finish(bundle, source, to)

    def finish(self, bundle: Bundle, source: BrokerId, to: BrokerId) -> None:
        self.write(Action.READY, bundle, to)
        self.write(Action.RELEASE, bundle, source)
        self.write(Action.RETURN, bundle, to)

    def reassign(self, bundle: Bundle, to: BrokerId) -> None:
        """From its holder, which stops, to whoever a lookup finds."""
        self.write(Action.RELEASE, bundle, self.ledger.entry(bundle).holder)
        self.write(Action.OWN, bundle, to, to=to)
        self.write(Action.RETURN, bundle, to)

    def moves(self, bundle: Bundle) -> list[tuple[BrokerId, BrokerId, int]]:
        return [(move.source, move.destination, move.at_ms) for move in self.table.moves(bundle)]


@pytest.fixture
def cluster(ledger) -> Cluster:
    return Cluster(ledger)


# --- which count


@pytest.mark.parametrize("role", [Role.LEADER, Role.ADMIN])
def test_planned_move_is_remembered_with_source_destination_and_time(cluster: Cluster, role):
    cluster.write(Action.TRANSFER, cluster.hot, cluster.ledger.LEADER, role, to=cluster.B)
    cluster.now_ms = 5_000
    assert cluster.moves(cluster.hot) == []
    cluster.finish(cluster.hot, cluster.A, cluster.B)
    assert cluster.moves(cluster.hot) == [(cluster.A, cluster.B, 5_000)]
    assert cluster.moves(cluster.warm) == []


def test_moves_of_a_bundle_are_told_in_the_order_in_which_they_arrived(cluster: Cluster):
    cluster.transfer(cluster.hot, cluster.B)
    cluster.now_ms = 500  # another author's clock is behind
    cluster.transfer(cluster.hot, cluster.C, Role.ADMIN)
    assert cluster.moves(cluster.hot) == [(cluster.A, cluster.B, 1_000), (cluster.B, cluster.C, 500)]


def test_unloaded_bundle_moved_from_its_old_owner_to_the_lookups_owner(cluster: Cluster):
    cluster.write(Action.UNLOAD, cluster.hot, cluster.B, Role.ADMIN)
    cluster.reassign(cluster.hot, cluster.B)
    assert cluster.moves(cluster.hot) == [(cluster.A, cluster.B, 1_000)]


def test_unloaded_bundle_left_its_origin_and_the_first_choice_that_declined(cluster: Cluster):
    cluster.lead(Action.UNLOAD, cluster.hot)
    cluster.write(Action.RELEASE, cluster.hot, cluster.A)
    cluster.write(Action.OWN, cluster.hot, cluster.B, to=cluster.B)
    cluster.write(Action.RELEASE, cluster.hot, cluster.B)
    cluster.write(Action.OWN, cluster.hot, cluster.C, to=cluster.C)
    cluster.write(Action.RETURN, cluster.hot, cluster.C)
    assert cluster.moves(cluster.hot) == [(cluster.A, cluster.B, 1_000), (cluster.B, cluster.C, 1_000)]


def test_an_unloaded_bundle_that_its_old_owner_took_back_did_not_move(cluster: Cluster):
    cluster.lead(Action.UNLOAD, cluster.hot)
    cluster.reassign(cluster.hot, cluster.A)
    assert cluster.moves(cluster.hot) == []
    cluster.write(Action.UNLOAD, cluster.hot, cluster.A)
    cluster.reassign(cluster.hot, cluster.B)
    assert cluster.moves(cluster.hot) == [], "nor does the old plan count for a later drain"


def test_what_was_drained_or_fled_a_dead_broker_owes_nobody_a_rest(cluster: Cluster):
    cluster.transfer(cluster.hot, cluster.B, Role.BROKER)
    cluster.lead(Action.REVOKE, cluster.warm)
    cluster.lead(Action.RELEASE, cluster.warm, to=cluster.B)
    cluster.write(Action.RETURN, cluster.warm, cluster.B)
    assert (cluster.moves(cluster.hot), cluster.moves(cluster.warm)) == ([], [])


def test_a_planned_move_that_ended_in_a_failure_does_not_count(cluster: Cluster):
    cluster.lead(Action.TRANSFER, cluster.hot, to=cluster.B)
    cluster.lead(Action.REVOKE, cluster.hot)
    cluster.lead(Action.RELEASE, cluster.hot, to=cluster.B)
    cluster.write(Action.RETURN, cluster.hot, cluster.B)
    assert cluster.moves(cluster.hot) == []


def test_a_move_that_is_called_off_does_not_count_and_leaves_nothing_for_the_next_one(cluster: Cluster):
    cluster.lead(Action.TRANSFER, cluster.hot, to=cluster.B)
    cluster.write(Action.CANCEL, cluster.hot, cluster.A, Role.ADMIN)
    cluster.lead(Action.TRANSFER, cluster.warm, to=cluster.B)
    cluster.write(Action.CANCEL, cluster.warm, cluster.A)
    cluster.lead(Action.TRANSFER, cluster.warm, to=cluster.B)
    cluster.write(Action.CANCEL, cluster.warm, cluster.B, Role.ADMIN)  # an administrator's request, sent to B
    assert cluster.table.cut(0).leaving == ()
    cluster.transfer(cluster.hot, cluster.C, Role.BROKER)
    assert (cluster.moves(cluster.hot), cluster.moves(cluster.warm)) == ([], [])


# --- failed moves: the target could not take the bundle


def test_a_move_that_its_target_could_not_prepare_counts_as_an_arrival_from_it(cluster: Cluster):
    cluster.lead(Action.TRANSFER, cluster.hot, to=cluster.B)
    cluster.now_ms = 5_000
    cluster.write(Action.CANCEL, cluster.hot, cluster.B)
    assert cluster.moves(cluster.hot) == [(cluster.B, cluster.A, 5_000)]
    assert cluster.table.cut(0).leaving == ()


def test_a_move_that_the_leader_ended_counts_as_an_arrival_from_its_target(cluster: Cluster):
    cluster.lead(Action.TRANSFER, cluster.hot, to=cluster.B)
    cluster.lead(Action.CANCEL, cluster.hot)
    assert cluster.moves(cluster.hot) == [(cluster.B, cluster.A, 1_000)]


def test_a_move_that_the_leader_calls_off_by_a_decision_did_not_fail(cluster: Cluster):
    cluster.lead(Action.TRANSFER, cluster.hot, to=cluster.B)
    cluster.lead(Action.CANCEL, cluster.hot, cause="1.7")
    assert (cluster.moves(cluster.hot), cluster.table.cut(0).leaving) == ([], ())


@pytest.mark.parametrize("end", ["declined", "stuck"])
@pytest.mark.parametrize("then", ["A", "C"])
def test_a_bundle_that_its_target_could_not_acquire_arrived_there_and_left_again(cluster: Cluster, end: str, then: str):
    to = getattr(cluster, then)
    cluster.lead(Action.TRANSFER, cluster.hot, to=cluster.B)
    cluster.write(Action.READY, cluster.hot, cluster.B)
    cluster.write(Action.RELEASE, cluster.hot, cluster.A)
    cluster.now_ms = 5_000
    if end == "declined":
        cluster.write(Action.RELEASE, cluster.hot, cluster.B)
        cluster.write(Action.OWN, cluster.hot, to, to=to)
    else:
        cluster.lead(Action.REVOKE, cluster.hot)
        cluster.lead(Action.RELEASE, cluster.hot, to=to)
    cluster.now_ms = 6_000
    cluster.write(Action.RETURN, cluster.hot, to)
    assert cluster.moves(cluster.hot) == [(cluster.A, cluster.B, 5_000), (cluster.B, to, 6_000)]
    assert cluster.table.cut(0).leaving == ()


def test_a_drained_bundle_owes_no_rest_for_targets_that_failed(cluster: Cluster):
    cluster.write(Action.TRANSFER, cluster.hot, cluster.A, to=cluster.B)
    cluster.write(Action.CANCEL, cluster.hot, cluster.B)
    cluster.write(Action.UNLOAD, cluster.warm, cluster.A)
    cluster.write(Action.RELEASE, cluster.warm, cluster.A)
    cluster.write(Action.OWN, cluster.warm, cluster.B, to=cluster.B)
    cluster.reassign(cluster.warm, cluster.C)
    assert (cluster.moves(cluster.hot), cluster.moves(cluster.warm)) == ([], [])


def test_a_split_does_not_count_as_a_move(cluster: Cluster):
    cluster.lead(Action.SPLIT, cluster.hot)
    cluster.lead(Action.CANCEL, cluster.hot)
    assert (cluster.moves(cluster.hot), cluster.table.cut(0).leaving) == ([], ())


def test_a_refused_record_is_no_plan(cluster: Cluster):
    cluster.ledger.as_leader(Action.TRANSFER, cluster.hot, to=cluster.B, epoch=9)
    cluster.ledger.as_admin(Action.UNLOAD, cluster.hot, seen=0)
    assert cluster.table.cut(0).leaving == ()


def test_a_bundle_that_is_gone_is_forgotten_and_its_successors_begin_anew(cluster: Cluster):
    cluster.transfer(cluster.hot, cluster.B)
    middle = (cluster.hot.lo + cluster.hot.hi) // 2
    cluster.write(Action.CREATE, cluster.hot, cluster.B, boundaries=(middle,))
    assert cluster.moves(cluster.hot) == []
    cluster.write(Action.MERGE, cluster.ledger.bundles()[:2], cluster.B)
    assert cluster.ledger.entry(cluster.hot).holder == cluster.B
    assert cluster.moves(cluster.hot) == [], "the same range is another bundle"


def test_a_deleted_namespace_leaves_no_moves_behind(cluster: Cluster):
    cluster.transfer(cluster.hot, cluster.B)
    for bundle in cluster.bundles:
        cluster.lead(Action.UNLOAD, bundle)
        cluster.write(Action.RELEASE, bundle, cluster.ledger.entry(bundle).holder)
    assert len(cluster.table.cut(0).leaving) == 4
    cluster.ledger.delete_namespace("shop/orders")
    cut = cluster.table.cut(0)
    assert (cut.leaving, cut.arrived) == ((), ())


# --- the same told in another way, on random histories


NOWHERE = BrokerId("", 0)


def told_by(story: list[tuple[Change, Bundle]], bundle: Bundle) -> tuple[Move, ...]:
    """What a bundle's story says, read from one arrival to the next: a move is a segment that a plan began, that no
    revoke of another than its target interrupted, and that ended elsewhere than it began. A target that failed ends a
    move, and begins the next."""
    planned, at, found = False, NOWHERE, list[Move]()
    for change, each in story:
        if each != bundle:
            continue
        record, transition = change.record, [one for one in change.transitions if one.bundle == bundle][-1]
        before, after = transition.before, transition.after
        if after is None or before is None:
            planned, at, found = False, NOWHERE, []
            continue
        holder, target = before.holder or NOWHERE, before.target or NOWHERE
        aim = holder if before.state is State.ASSIGNING else target
        off = record.action is Action.CANCEL and before.state is State.TRANSFERRING
        if record.action in (Action.TRANSFER, Action.UNLOAD):
            planned, at = record.role is not Role.BROKER, holder
        elif (
            planned
            and off
            and ((record.role is Role.LEADER and not record.cause) or (record.role, record.actor) == (Role.BROKER, aim))
        ):
            found.append(Move(aim, holder, record.at_ms))
        elif planned and before.state is State.ASSIGNING and record.action in (Action.RELEASE, Action.REVOKE):
            found += [Move(at, aim, record.at_ms)] if at != aim else []
            at = aim
        elif planned and after.state is State.ASSIGNED and not off and at != after.holder:
            found.append(Move(at, after.holder or NOWHERE, record.at_ms))
        revoked = record.action is Action.REVOKE and before.state is not State.ASSIGNING
        planned = planned and after.state is not State.ASSIGNED and not revoked
    return tuple(found[-MOVES_KEPT_A_BUNDLE:])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_kept_is_what_the_bundles_story_tells(new_ledger, seed: int):
    ledger, story = new_ledger(partitions=2), []
    for record, home in History(ledger, seed).steps(150):
        verdict = ledger.replay(record, home)
        if isinstance(verdict, Change):
            story += [(verdict, bundle) for bundle in dict.fromkeys(t.bundle for t in verdict.transitions)]
    for bundle in {bundle for _, bundle in story}:
        assert ledger.table.moves(bundle) == told_by(story, bundle)


# --- bounds


def test_of_a_bundle_the_newest_moves_are_kept(cluster: Cluster):
    for number, to in zip(range(MOVES_KEPT_A_BUNDLE + 5), itertools.cycle((cluster.B, cluster.C)), strict=False):
        cluster.now_ms = number
        cluster.transfer(cluster.hot, to)
    kept = [at_ms for _, _, at_ms in cluster.moves(cluster.hot)]
    assert kept == list(range(5, MOVES_KEPT_A_BUNDLE + 5))


def test_partition_keeps_its_last_moves_and_a_restored_replica_the_same(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster
):
    monkeypatch.setattr("statechannel.law.partition.BUNDLES_KEPT", 3)
    first, second, third, fourth = cluster.bundles
    for bundle in (first, second, third):
        cluster.transfer(bundle, cluster.B)
    cluster.transfer(first, cluster.C)  # so now the second is the one that rested longest
    topic = Topic()
    write(topic, cluster.table.cut(0), "s")
    cluster.transfer(fourth, cluster.B)
    assert [bool(cluster.moves(bundle)) for bundle in cluster.bundles] == [True, False, True, True]
    replica = OwnershipTable(1)
    replica.restore(newest(topic))
    replay_all(replica, cluster.ledger.log)
    assert replica.digest(0) == cluster.table.digest(0)
    assert [replica.moves(bundle) for bundle in cluster.bundles] == [cluster.table.moves(b) for b in cluster.bundles]


def test_bundles_that_were_forgotten_may_move_again(monkeypatch: pytest.MonkeyPatch, cluster: Cluster):
    monkeypatch.setattr("statechannel.law.partition.BUNDLES_KEPT", 1)
    cluster.transfer(cluster.hot, cluster.B)
    cluster.transfer(cluster.warm, cluster.B)
    cluster.now_ms = 9_000
    cluster.transfer(cluster.hot, cluster.C)
    assert cluster.moves(cluster.hot) == [(cluster.B, cluster.C, 9_000)]
    assert cluster.moves(cluster.warm) == []


def test_each_partition_keeps_its_own(new_ledger, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("statechannel.law.partition.BUNDLES_KEPT", 1)
    ledger = new_ledger(partitions=2)
    for partition in range(2):
        ledger.lead(1, partition=partition)
    homes = {ledger.table.partition_of(f"t/n{i}"): f"t/n{i}" for i in range(20)}
    for name in homes.values():
        ledger.create_namespace(name, even_boundaries(1))
        [bundle] = ledger.bundles(name)
        ledger.assign(bundle)
        ledger.as_admin(Action.UNLOAD, bundle)
        ledger.write(Action.RELEASE, bundle)
        ledger.assign(bundle, ledger.B)
    assert [len(ledger.table.moves(ledger.bundles(name)[0])) for name in homes.values()] == [1, 1]


@pytest.mark.parametrize("at_ms", [0, -5, 2**63, 10**30, -(10**30)])
def test_a_time_that_no_snapshot_could_hold_does_no_harm(cluster: Cluster, at_ms: int):
    cluster.lead(Action.UNLOAD, cluster.hot)
    cluster.write(Action.RELEASE, cluster.hot, cluster.A)
    cluster.write(Action.OWN, cluster.hot, cluster.B, to=cluster.B)
    written = cluster.ledger.record(Action.RETURN, cluster.hot, cluster.B)
    data = codec._encoder.encode(written)[:-1] + b',"at_ms":%d}' % at_ms
    record = msgspec.json.decode(data, type=Record)
    assert record.at_ms == at_ms
    assert isinstance(cluster.ledger.replay(record), Change)
    [move] = cluster.table.moves(cluster.hot)
    assert move.at_ms == min(max(0, at_ms), 2**63 - 1)
    topic = Topic()
    write(topic, cluster.table.cut(0), "s")
    assert newest(topic).digest() == cluster.table.digest(0)


def test_an_empty_memory_tells_nothing():
    assert (Moves().of(Bundle("t/n", 0, 9)), Moves().leaving, Moves().arrived) == ((), (), ())
