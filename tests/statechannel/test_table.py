"""Replay, rule by rule: revisions, incarnations, epochs, partitions, several bundles a record, copies, reads."""

from __future__ import annotations

import msgspec
import pytest

from statechannel.errors import InvariantError
from statechannel.law.bundle import FULL_UPPER, Bundle, Key, even_boundaries
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject, Token
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Reason, Refusal

from .auditor import but_for_incarnations


def refused(verdict: object, reason: Reason) -> Refusal:
    assert isinstance(verdict, Refusal), f"accepted: {verdict}"
    assert verdict.reason is reason, verdict.detail
    return verdict


def accepted(verdict: object) -> Change:
    assert isinstance(verdict, Change), f"refused: {verdict}"
    return verdict


def whole(table: OwnershipTable) -> list[object]:
    """Everything a reader can see, but for offsets and the incarnations noted."""
    return [*but_for_incarnations(table), table.cluster_identity, table.holders(), list(table)]


# --- first valid wins


def test_of_two_that_saw_the_same_the_first_wins_and_the_second_learns_it(ledger):
    x, _ = ledger.begin()
    seen = ledger.revision(x)
    accepted(ledger.write(Action.OWN, x, ledger.A, to=ledger.B, seen=seen))
    refusal = refused(ledger.write(Action.OWN, x, ledger.B, to=ledger.A, seen=seen), Reason.STALE)
    assert refusal.winner == ledger.entry(x)
    assert refusal.winner is not None
    assert (refusal.winner.action, refusal.winner.by, refusal.winner.holder) == (Action.OWN, ledger.A, ledger.B)
    assert refusal.bundle == x


def test_a_record_that_saw_the_future_is_as_stale_as_one_that_saw_the_past(ledger):
    x, _ = ledger.begin()
    for seen in (NEVER, ledger.revision(x) - 1, ledger.revision(x) + 1):
        refused(ledger.write(Action.OWN, x, to=ledger.A, seen=seen), Reason.STALE)


def test_copy_of_an_accepted_record_is_refused_even_when_its_state_is_back(ledger):
    x, _ = ledger.begin()
    accepted(ledger.write(Action.OWN, x, to=ledger.A))
    own = ledger.log[-1][2]
    refused(ledger.replay(own), Reason.STALE)
    accepted(ledger.write(Action.RELEASE, x, ledger.A))
    assert ledger.entry(x).state is State.UNASSIGNED
    before = whole(ledger.table)
    refused(ledger.replay(own), Reason.STALE)
    assert whole(ledger.table) == before


def test_a_full_transfer_hands_over_and_begins_a_new_token(ledger):
    x, _ = ledger.begin()
    old = ledger.assign(x, ledger.A)
    accepted(ledger.as_leader(Action.TRANSFER, x, to=ledger.B))
    assert (ledger.entry(x).holder, ledger.entry(x).target) == (ledger.A, ledger.B)
    accepted(ledger.write(Action.READY, x, ledger.B))
    assert ledger.entry(x).token == old.token
    accepted(ledger.write(Action.RELEASE, x, ledger.A, hand_off=b"warm"))
    taken = ledger.entry(x)
    assert (taken.state, taken.holder, taken.target, taken.hand_off) == (State.ASSIGNING, ledger.B, None, b"warm")
    assert taken.token == taken.revision > old.token
    accepted(ledger.write(Action.RETURN, x, ledger.B))
    assert ledger.entry(x).hand_off is None
    assert ledger.entry(x).token == taken.token


def test_a_hand_off_goes_to_the_direct_successor_only_and_revoke_discards_it(ledger):
    x, _ = ledger.begin()
    ledger.assign(x, ledger.A)
    ledger.write(Action.TRANSFER, x, ledger.A, to=ledger.B)
    ledger.write(Action.READY, x, ledger.B)
    ledger.write(Action.RELEASE, x, ledger.A, hand_off=b"warm")
    accepted(ledger.as_leader(Action.REVOKE, x))
    assert ledger.entry(x).hand_off is None
    accepted(ledger.as_leader(Action.RELEASE, x, to=ledger.C, hand_off=b"invented"))
    assert ledger.entry(x).hand_off is None


# --- who: incarnation, role, epoch


@pytest.mark.parametrize("action", [Action.TRANSFER, Action.UNLOAD, Action.SPLIT])
def test_a_restarted_broker_of_the_same_name_is_not_the_holder(ledger, action):
    x, _ = ledger.begin()
    ledger.assign(x, ledger.A)
    refused(ledger.write(action, x, ledger.A2, to=ledger.B), Reason.NOT_ALLOWED)
    accepted(ledger.write(action, x, ledger.A, to=ledger.B))


def test_a_dead_incarnation_cannot_return_what_its_successor_was_given(ledger):
    x, _ = ledger.begin()
    ledger.write(Action.OWN, x, to=ledger.A2)
    refused(ledger.write(Action.RETURN, x, ledger.A), Reason.NOT_ALLOWED)
    accepted(ledger.write(Action.RETURN, x, ledger.A2))
    assert ledger.table.held_by(ledger.A) == ()
    assert ledger.table.held_by(ledger.A2) == (x,)


def test_bundle_is_not_transferred_to_its_holder_in_any_incarnation(ledger):
    x, _ = ledger.begin()
    ledger.assign(x, ledger.A)
    for to in (None, ledger.A, ledger.A2):
        refusal = refused(ledger.as_admin(Action.TRANSFER, x, to=to), Reason.BAD_DESTINATION)
        assert "destination" in refusal.detail


def test_only_the_leader_of_the_present_epoch_revokes(ledger):
    x, _ = ledger.begin()
    ledger.assign(x, ledger.A)
    for role in (Role.BROKER, Role.ADMIN):
        refused(ledger.write(Action.REVOKE, x, ledger.LEADER, role=role, epoch=1), Reason.NOT_ALLOWED)
    for epoch in (0, 2):
        refused(ledger.as_leader(Action.REVOKE, x, epoch=epoch), Reason.DEPOSED)
    refused(ledger.write(Action.REVOKE, x, ledger.B, role=Role.LEADER, epoch=1), Reason.DEPOSED)
    accepted(ledger.as_leader(Action.REVOKE, x))


def test_nobody_leads_before_the_first_lead_record(ledger):
    ledger.create_namespace("shop/orders", even_boundaries(1))
    [x] = ledger.bundles()
    ledger.assign(x)
    refused(ledger.as_leader(Action.REVOKE, x, epoch=0), Reason.DEPOSED)


def test_deposed_leader_is_ignored_though_it_saw_the_present_revision(ledger):
    x, _ = ledger.begin()
    ledger.assign(x, ledger.A)
    accepted(ledger.lead(2, ledger.B))
    refused(ledger.as_leader(Action.REVOKE, x), Reason.DEPOSED)
    refused(ledger.as_leader(Action.MERGE, ledger.bundles()), Reason.DEPOSED)
    accepted(ledger.write(Action.REVOKE, x, ledger.B, role=Role.LEADER, epoch=2))


def test_an_epoch_is_taken_once_and_only_grows(ledger):
    accepted(ledger.lead(5, ledger.A))
    refused(ledger.lead(5, ledger.B), Reason.DEPOSED)
    refused(ledger.lead(5, ledger.A), Reason.DEPOSED)
    refused(ledger.lead(4, ledger.B), Reason.DEPOSED)
    refused(ledger.replay(Record("r", Action.LEAD, ledger.B, Role.BROKER, 9), 0), Reason.DEPOSED)
    assert (ledger.table.lead(0).epoch, ledger.table.lead(0).leader) == (5, ledger.A)
    accepted(ledger.lead(7, ledger.B))


def test_an_epoch_counts_in_its_own_partition_only(new_ledger):
    ledger = new_ledger(partitions=4)
    x, _ = ledger.begin()
    home = ledger.table.partition_of(x.namespace)
    for partition in set(range(4)) - {home}:
        accepted(ledger.lead(9, ledger.B, partition))
    ledger.assign(x)
    accepted(ledger.as_leader(Action.REVOKE, x))


def test_highest_incarnation_of_any_record_is_kept_even_of_refused_ones(ledger):
    x, _ = ledger.begin()
    assert ledger.table.highest_incarnation("nobody:1") == 0
    refused(ledger.write(Action.RETURN, x, BrokerId("a:6650", 9), to=BrokerId("d:6650", 4)), Reason.ILLEGAL)
    assert (ledger.table.highest_incarnation("a:6650"), ledger.table.highest_incarnation("d:6650")) == (9, 4)


# --- several bundles a record


def test_bundles_of_one_record_are_judged_one_by_one(ledger):
    w, x, y, z = ledger.begin(4)
    ledger.assign(x, ledger.B)
    stale = Subject(y, ledger.revision(y) - 1)
    subjects = (Subject(w, ledger.revision(w)), Subject(x, ledger.revision(x)), stale, Subject(z, ledger.revision(z)))
    change = accepted(ledger.replay(Record("many", Action.OWN, ledger.A, subjects=subjects, to=ledger.A)))
    assert [t.bundle for t in change.transitions] == [w, z]
    assert [(r.bundle, r.reason) for r in change.refused] == [(x, Reason.ILLEGAL), (y, Reason.STALE)]
    assert ledger.table.held_by(ledger.A) == (w, z)
    assert ledger.entry(w).revision == ledger.entry(z).revision == change.offset


def test_where_all_bundles_are_refused_each_is_told_why(ledger):
    x, y = ledger.begin()
    ledger.assign(x, ledger.B)
    seen = ledger.revision(y)
    refusal = ledger.write(Action.RETURN, (x, y), seen=seen)
    refused(refusal, Reason.STALE)
    assert [(r.bundle, r.reason, r.winner) for r in (refusal, *refusal.others)] == [
        (x, Reason.STALE, ledger.entry(x)),
        (y, Reason.ILLEGAL, ledger.entry(y)),
    ]


def test_a_bundle_named_twice_in_one_record_changes_once(ledger):
    x, _ = ledger.begin()
    change = accepted(ledger.write(Action.OWN, (x, x), to=ledger.A))
    assert (len(change.transitions), [r.reason for r in change.refused]) == (1, [Reason.STALE])


def test_a_record_without_a_bundle_is_malformed(ledger):
    for action in set(Action) - {Action.NOOP, Action.LEAD, Action.GENESIS, Action.RETIRE, Action.AMEND}:
        refused(ledger.write(action), Reason.MALFORMED)


def test_a_bundle_that_is_not_there_is_named_in_the_refusal(ledger):
    ledger.begin()
    gone = Bundle("shop/orders", 5, 9)
    assert refused(ledger.write(Action.OWN, gone, to=ledger.A), Reason.NO_BUNDLE).bundle == gone


def test_a_split_names_one_bundle_and_its_cuts_lie_inside(ledger):
    x, y = ledger.begin()
    ledger.assign(x)
    ledger.assign(y)
    refused(ledger.write(Action.SPLIT, (x, y)), Reason.MALFORMED)
    for cuts in [(x.lo,), (x.hi,), (9, 9), (9, 5), (x.hi + 1,)]:
        refusal = refused(ledger.write(Action.SPLIT, x, boundaries=cuts), Reason.BAD_BOUNDARIES)
        assert "upwards" in refusal.detail
    accepted(ledger.write(Action.SPLIT, x, boundaries=(5, 9)))
    assert (ledger.entry(x).state, ledger.entry(x).boundaries) == (State.SPLITTING, (5, 9))
    accepted(ledger.as_admin(Action.CANCEL, x))
    assert (ledger.entry(x).boundaries, ledger.entry(x).cutting) == ((), None)


def test_a_split_may_say_how_to_find_the_cuts_and_that_is_told_until_it_ends(ledger):
    x, _ = ledger.begin()
    ledger.assign(x)
    split = msgspec.structs.replace(ledger.record(Action.SPLIT, x), algorithm="by-load", parts=3)
    accepted(ledger.replay(split))
    entry = ledger.entry(x)
    assert (entry.state, entry.algorithm, entry.parts, entry.boundaries) == (State.SPLITTING, "by-load", 3, ())
    accepted(ledger.as_leader(Action.REVOKE, x))
    assert (ledger.entry(x).algorithm, ledger.entry(x).parts, ledger.entry(x).cutting) == ("", 0, None)


# --- partitions, offsets, genesis


def test_a_record_in_another_partition_than_its_namespaces_is_refused(new_ledger):
    ledger = new_ledger(partitions=4)
    x, _ = ledger.begin()
    home = ledger.table.partition_of(x.namespace)
    for partition in set(range(4)) - {home}:
        refused(ledger.replay(ledger.record(Action.OWN, x, to=ledger.A), partition), Reason.WRONG_PARTITION)
        create = Record("n", Action.CREATE_NAMESPACE, ledger.A, Role.ADMIN, namespace="t/n", boundaries=(0, FULL_UPPER))
        if ledger.table.partition_of("t/n") != partition:
            refused(ledger.replay(create, partition), Reason.WRONG_PARTITION)
    assert ledger.entry(x).state is State.UNASSIGNED


def test_verdict_in_a_partition_does_not_depend_on_how_far_another_is(new_ledger):
    behind, ahead = new_ledger(partitions=2), new_ledger(partitions=2)
    [x] = ahead.begin(1)
    away = 1 - ahead.table.partition_of(x.namespace)
    behind.lead(1, partition=away)
    record = Record("r", Action.OWN, ahead.A, subjects=(Subject(x, 1),), to=ahead.A)
    assert ahead.replay(record, away) == behind.replay(record, away)
    assert ahead.table.digest(away) == behind.table.digest(away)


def test_a_replica_never_goes_back_and_gaps_are_fine():
    table = OwnershipTable(1)
    noop = Record("r", Action.NOOP, BrokerId("a", 1))
    table.replay(0, 5, noop)
    table.skip(0, 9)
    assert table.next_offset(0) == 10
    for offset in (0, 5, 9):
        with pytest.raises(InvariantError, match="never goes back"):
            table.replay(0, offset, noop)
        with pytest.raises(InvariantError, match="never goes back"):
            table.skip(0, offset)
    table.replay(0, 10, noop)


def test_first_genesis_names_the_cluster_and_the_generation_of_tokens(ledger):
    genesis = Record("g-1", Action.GENESIS, ledger.A, epoch=3, cluster="north")
    accepted(ledger.replay(genesis, 0))
    refused(ledger.replay(msgspec.structs.replace(genesis, id="g-2", cluster="south"), 0), Reason.FOREIGN_CLUSTER)
    assert ledger.table.cluster_identity is not None
    assert (ledger.table.cluster_identity.cluster, ledger.table.cluster_identity.identity) == ("north", "g-1")
    x, _ = ledger.begin()
    entry = ledger.assign(x)
    assert ledger.table.token(entry) == Token(3, 0, entry.token)


def test_a_genesis_without_a_cluster_or_in_another_partition_is_malformed(new_ledger):
    ledger = new_ledger(partitions=2)
    refused(ledger.replay(Record("g", Action.GENESIS, ledger.A), 0), Reason.MALFORMED)
    refused(ledger.replay(Record("g", Action.GENESIS, ledger.A, cluster="north"), 1), Reason.MALFORMED)
    assert ledger.table.cluster_identity is None


def test_a_noop_is_accepted_and_changes_nothing_but_the_incarnations_known(ledger):
    ledger.begin()
    before, digest = whole(ledger.table), ledger.table.digest(0)
    accepted(ledger.replay(Record("n", Action.NOOP, BrokerId("d:6650", 4)), 0))
    assert whole(ledger.table) == before
    assert ledger.table.digest(0) != digest
    assert ledger.table.highest_incarnation("d:6650") == 4


# --- retire


def retire(ledger, role: Role = Role.ADMIN, partition: int = 0, to: str = "bundle-state-2"):
    return ledger.replay(Record("end", Action.RETIRE, ledger.LEADER, role, 1, moved_to=to), partition)


def test_only_an_admin_closes_a_log(ledger):
    ledger.begin()
    for role in (Role.BROKER, Role.LEADER):
        refused(retire(ledger, role), Reason.NOT_ALLOWED)
    assert ledger.table.retired(0) is None
    accepted(retire(ledger))
    assert ledger.table.retired(0) == "bundle-state-2"


def test_nothing_counts_in_a_closed_log_nor_teaches_anything(ledger):
    x, _ = ledger.begin()
    ledger.write(Action.OWN, x, to=ledger.A)
    accepted(retire(ledger))
    digest = ledger.table.digest(0)
    for verdict in (
        ledger.write(Action.RETURN, x),
        ledger.lead(2, BrokerId("z:6650", 9)),
        ledger.replay(Record("n", Action.NOOP, BrokerId("z:6650", 9)), 0),
        ledger.replay(Record("g", Action.GENESIS, ledger.A, epoch=1, cluster="north"), 0),
        ledger.create_namespace("shop/carts", even_boundaries(1)),
        retire(ledger, to="bundle-state-3"),
    ):
        assert "bundle-state-2" in refused(verdict, Reason.RETIRED).detail
    assert ledger.table.digest(0) == digest
    assert ledger.table.highest_incarnation("z:6650") == 0


def test_a_partition_is_closed_for_itself_and_wherever_it_leads_even_nowhere(new_ledger):
    ledger = new_ledger(partitions=2)
    x, _ = ledger.begin()
    home = ledger.table.partition_of(x.namespace)
    accepted(retire(ledger, partition=1 - home, to=""))
    assert (ledger.table.retired(1 - home), ledger.table.retired(home)) == ("", None)
    refused(ledger.lead(5, partition=1 - home), Reason.RETIRED)
    accepted(ledger.write(Action.OWN, x, to=ledger.A))


# --- reading


def test_a_topic_is_located_in_the_bundle_that_holds_its_position(ledger):
    assert ledger.table.locate(Key.parse("shop/orders/x")) is None
    ledger.begin(8)
    for i in range(50):
        topic = Key.parse(f"shop/orders/t{i}")
        assert topic.position in ledger.table.locate(topic).bundle
    ledger.delete_namespace("shop/orders")
    assert ledger.table.locate(Key.parse("shop/orders/x")) is None


def test_namespaces_are_listed_by_tenant_and_deleted_ones_are_not(ledger):
    for name in ("shop/b", "shop/a", "shopping/c"):
        ledger.create_namespace(name, even_boundaries(1))
    assert ledger.table.namespaces() == ["shop/a", "shop/b", "shopping/c"]
    assert ledger.table.namespaces("shop") == ["shop/a", "shop/b"]
    ledger.delete_namespace("shop/a")
    assert ledger.table.namespaces("shop") == ["shop/b"]
    assert ledger.table.namespace("shop/a").exists is False


def test_what_is_in_flight_may_be_walked_while_it_moves_on(ledger):
    bundles = ledger.begin(4)
    ledger.write(Action.OWN, bundles, to=ledger.A)
    walked = []
    for entry in ledger.table.in_flight():
        walked.append(entry.bundle)
        ledger.write(Action.RETURN, [b for b in bundles if ledger.entry(b).state is State.ASSIGNING], ledger.A)
    assert walked == [bundles[0]]
