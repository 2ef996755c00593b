"""Records that change which bundles there are: all of a record or nothing of it."""

from __future__ import annotations

import msgspec
import pytest

from statechannel.law.bundle import FULL_UPPER, Bundle, even_boundaries, tile
from statechannel.law.record import Action, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Reason, Refusal

from .auditor import but_for_incarnations

MIDDLE = 0x20000000


def refused(verdict: object, reason: Reason) -> Refusal:
    assert isinstance(verdict, Refusal), f"accepted: {verdict}"
    assert verdict.reason is reason, verdict.detail
    return verdict


def accepted(verdict: object) -> Change:
    assert isinstance(verdict, Change), f"refused: {verdict}"
    return verdict


@pytest.fixture
def assigned(ledger):
    """Four bundles, all Assigned(A)."""
    for bundle in ledger.begin(4):
        ledger.assign(bundle)
    return ledger


@pytest.fixture(autouse=True)
def nothing_is_left_half_done(ledger):
    yield
    ledger.table.check_invariants()


def unchanged(ledger, verdict, reason: Reason) -> Refusal:
    """The refusal, once it is sure that it changed nothing."""
    *earlier, _ = ledger.log
    replica = type(ledger)(ledger.table.partitions)
    for p, offset, record in earlier:
        replica.table.replay(p, offset, record)
    assert but_for_incarnations(replica.table) == but_for_incarnations(ledger.table)
    return refused(verdict, reason)


# --- create and delete a namespace


def test_a_new_namespace_is_wholly_unassigned_and_its_tokens_begin_with_it(ledger):
    change = accepted(ledger.create_namespace("shop/orders", even_boundaries(4)))
    assert ledger.bundles() == tile("shop/orders", even_boundaries(4))
    for bundle in ledger.bundles():
        entry = ledger.entry(bundle)
        assert (entry.state, entry.holder, entry.revision, entry.token) == (
            State.UNASSIGNED, None, change.offset, change.offset,
        )  # fmt: skip


def test_a_namespace_is_created_once(ledger):
    accepted(ledger.create_namespace("shop/orders", even_boundaries(4)))
    unchanged(ledger, ledger.create_namespace("shop/orders", even_boundaries(2)), Reason.NAMESPACE_EXISTS)


@pytest.mark.parametrize("role", [Role.BROKER, Role.LEADER])
def test_only_an_admin_creates_and_deletes_namespaces(ledger, role):
    ledger.lead(1, ledger.B)
    unchanged(ledger, ledger.create_namespace("shop/orders", even_boundaries(1), role=role), Reason.NOT_ALLOWED)
    accepted(ledger.create_namespace("shop/orders", even_boundaries(1)))
    unchanged(ledger, ledger.delete_namespace("shop/orders", role=role), Reason.NOT_ALLOWED)


@pytest.mark.parametrize("cuts", [(), (0,), (1, FULL_UPPER), (0, 9), (0, 9, 9, FULL_UPPER), (0, 9, 5, FULL_UPPER)])
def test_a_namespace_that_would_not_tile_is_refused(ledger, cuts):
    unchanged(ledger, ledger.create_namespace("shop/orders", cuts), Reason.BAD_BOUNDARIES)


@pytest.mark.parametrize("name", ["orders", "shop/or ders", "a/b/c", "shop/", "shop/ñ"])
def test_a_namespace_of_a_malformed_name_is_refused(ledger, name):
    unchanged(ledger, ledger.create_namespace(name, even_boundaries(1)), Reason.MALFORMED)


def test_a_namespace_is_deleted_once_all_its_bundles_are_unassigned(ledger):
    x, _ = ledger.begin()
    ledger.write(Action.OWN, x, to=ledger.A)
    for step, by in ((Action.RETURN, ledger.A), (Action.UNLOAD, ledger.A), (Action.RELEASE, ledger.A)):
        refusal = unchanged(ledger, ledger.delete_namespace("shop/orders"), Reason.NOT_UNASSIGNED)
        assert refusal.bundle == x
        accepted(ledger.write(step, x, by))
    accepted(ledger.delete_namespace("shop/orders"))
    assert (ledger.bundles(), len(ledger.table)) == ((), 0)
    unchanged(ledger, ledger.delete_namespace("shop/orders"), Reason.NO_NAMESPACE)
    unchanged(ledger, ledger.delete_namespace("shop/never"), Reason.NO_NAMESPACE)


def test_a_late_delete_names_the_newest_step_that_its_author_had_not_read(ledger):
    first, second, _, _ = ledger.begin(4)
    known = ledger.table.namespace("shop/orders")
    late = Record(
        "late", Action.DELETE_NAMESPACE, ledger.A, Role.ADMIN,
        namespace="shop/orders", seen_namespace=known.revision, seen_latest=known.latest,
    )  # fmt: skip
    for bundle, by in ((second, ledger.A), (first, ledger.B)):
        ledger.assign(bundle, by)
        refusal = unchanged(ledger, ledger.replay(late), Reason.STALE)
        assert (refusal.bundle, refusal.winner) == (bundle, ledger.entry(bundle))
        assert f"return by {by}" in refusal.detail


def test_a_deleted_namespace_is_recreated_only_by_who_saw_it_deleted(ledger):
    ledger.begin()
    create = ledger.log[-1][2]
    first = ledger.table.namespace("shop/orders").revision
    deleted = accepted(ledger.delete_namespace("shop/orders")).offset
    unchanged(ledger, ledger.replay(create), Reason.STALE)
    unchanged(ledger, ledger.create_namespace("shop/orders", even_boundaries(2), seen=first), Reason.STALE)
    again = accepted(ledger.create_namespace("shop/orders", even_boundaries(2), seen=deleted))
    assert all(ledger.entry(b).token == again.offset for b in ledger.bundles())


def test_records_for_a_deleted_namespace_do_not_touch_the_recreated_one(ledger):
    x, _ = ledger.begin()
    late_own = ledger.record(Action.OWN, x, to=ledger.A)
    late_delete_seen = ledger.table.namespace("shop/orders").revision
    accepted(ledger.delete_namespace("shop/orders"))
    accepted(ledger.create_namespace("shop/orders", even_boundaries(2)))
    unchanged(ledger, ledger.replay(late_own), Reason.STALE)
    unchanged(ledger, ledger.delete_namespace("shop/orders", seen=late_delete_seen), Reason.STALE)


# --- split


@pytest.mark.parametrize("splitting_first", [False, True])
def test_children_take_the_parents_place_at_the_same_holder(assigned, splitting_first):
    parent = assigned.bundles()[0]
    if splitting_first:
        accepted(assigned.as_leader(Action.SPLIT, parent))
    change = accepted(assigned.write(Action.CREATE, parent, boundaries=(MIDDLE, MIDDLE + 5)))
    assert assigned.table.get(parent) is None
    assert [b.lo for b in assigned.bundles()][:3] == [0, MIDDLE, MIDDLE + 5]
    for child in assigned.bundles()[:3]:
        entry = assigned.entry(child)
        assert (entry.state, entry.holder, entry.token, entry.revision) == (
            State.ASSIGNED, assigned.A, change.offset, change.offset,
        )  # fmt: skip
    assert set(assigned.table.held_by(assigned.A)) == set(assigned.bundles())


@pytest.mark.parametrize("cuts", [(), (0,), (0x40000000,), (5, 5), (9, 5), (MIDDLE, 0x40000001), (FULL_UPPER,)])
def test_cuts_that_do_not_lie_inside_the_parent_are_refused(assigned, cuts):
    parent = assigned.bundles()[0]
    unchanged(assigned, assigned.write(Action.CREATE, parent, boundaries=cuts), Reason.BAD_BOUNDARIES)


def test_only_the_holders_incarnation_creates_children(assigned):
    parent = assigned.bundles()[0]
    for by in (assigned.A2, assigned.B):
        unchanged(assigned, assigned.write(Action.CREATE, parent, by, boundaries=(MIDDLE,)), Reason.NOT_ALLOWED)
    unchanged(assigned, assigned.as_leader(Action.CREATE, parent, boundaries=(MIDDLE,)), Reason.NOT_ALLOWED)
    unchanged(assigned, assigned.as_admin(Action.CREATE, parent, boundaries=(MIDDLE,)), Reason.NOT_ALLOWED)


def test_children_are_not_created_from_a_bundle_that_is_on_the_move(assigned):
    parent = assigned.bundles()[0]
    accepted(assigned.as_leader(Action.TRANSFER, parent, to=assigned.B))
    unchanged(assigned, assigned.write(Action.CREATE, parent, boundaries=(MIDDLE,)), Reason.ILLEGAL)
    accepted(assigned.as_leader(Action.REVOKE, parent))
    unchanged(assigned, assigned.write(Action.CREATE, parent, boundaries=(MIDDLE,)), Reason.ILLEGAL)


def test_create_names_one_parent_that_is_there_and_as_its_author_saw_it(assigned):
    one, two, *_ = assigned.bundles()
    stale = assigned.revision(one) - 1
    unchanged(assigned, assigned.write(Action.CREATE, one, boundaries=(MIDDLE,), seen=stale), Reason.STALE)
    unchanged(assigned, assigned.write(Action.CREATE, (one, two), boundaries=(MIDDLE,)), Reason.MALFORMED)
    gone = Bundle("shop/orders", 0, 5)
    unchanged(assigned, assigned.write(Action.CREATE, gone, boundaries=(3,)), Reason.NO_BUNDLE)


@pytest.mark.parametrize("action", [Action.CREATE, Action.MERGE, Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE])
def test_record_of_one_namespace_with_bundles_of_another_is_malformed(assigned, action):
    """It would take bundles from one namespace and put them into the other, perhaps in another partition."""
    assigned.create_namespace("shop/carts", even_boundaries(1))
    parent, neighbour, *_ = assigned.bundles()
    subjects = tuple(
        Subject(b, assigned.revision(b)) for b in (parent, neighbour)[: 1 if action is Action.CREATE else 2]
    )
    for name in ("shop/carts", "shop/unheard-of"):
        record = Record("r", action, assigned.A, Role.BROKER, 0, subjects, None, name, boundaries=(MIDDLE,))
        unchanged(assigned, assigned.replay(record), Reason.MALFORMED)
        unchanged(assigned, assigned.replay(msgspec.structs.replace(record, role=Role.ADMIN)), Reason.MALFORMED)


# --- merge


def test_neighbours_of_one_holder_become_one(assigned):
    a, b, c, d = assigned.bundles()
    change = accepted(assigned.write(Action.MERGE, (a, b, c)))
    whole = Bundle("shop/orders", a.lo, c.hi)
    assert assigned.bundles() == (whole, d)
    entry = assigned.entry(whole)
    assert (entry.state, entry.holder, entry.token, entry.revision) == (
        State.ASSIGNED, assigned.A, change.offset, change.offset,
    )  # fmt: skip


def test_leader_admin_and_holder_may_merge_and_nobody_else(assigned):
    a, b, c, d = assigned.bundles()
    for by in (assigned.A2, assigned.B):
        unchanged(assigned, assigned.write(Action.MERGE, (a, b), by), Reason.NOT_ALLOWED)
    accepted(assigned.as_leader(Action.MERGE, (a, b)))
    accepted(assigned.as_admin(Action.MERGE, (c, d)))
    accepted(assigned.write(Action.MERGE, assigned.bundles()))


def test_what_is_not_adjacent_lowest_first_is_not_merged(assigned):
    a, b, c, _ = assigned.bundles()
    for parts in ((b, a), (a, c), (a, a), (a, b, a)):
        unchanged(assigned, assigned.write(Action.MERGE, parts), Reason.NOT_MERGEABLE)
    unchanged(assigned, assigned.write(Action.MERGE, a), Reason.MALFORMED)


def test_bundles_of_two_incarnations_of_one_name_are_not_merged(ledger):
    x, y = ledger.begin()
    ledger.assign(x, ledger.A)
    ledger.assign(y, ledger.A2)
    for merge in (ledger.as_admin, ledger.as_leader):
        unchanged(ledger, merge(Action.MERGE, (x, y)), Reason.NOT_MERGEABLE)


def test_one_stale_or_moving_part_refuses_the_whole_merge(assigned):
    a, b, *_ = assigned.bundles()
    subjects = (Subject(a, assigned.revision(a)), Subject(b, assigned.revision(b) - 1))
    unchanged(assigned, assigned.replay(Record("m", Action.MERGE, assigned.A, subjects=subjects)), Reason.STALE)
    accepted(assigned.as_leader(Action.UNLOAD, b))
    refusal = unchanged(assigned, assigned.write(Action.MERGE, (a, b)), Reason.ILLEGAL)
    assert refusal.bundle == b


def test_split_and_merge_raise_the_token_so_that_no_old_record_fits(assigned):
    parent = assigned.bundles()[0]
    before = assigned.entry(parent)
    late = assigned.record(Action.UNLOAD, parent)
    accepted(assigned.write(Action.CREATE, parent, boundaries=(MIDDLE,)))
    unchanged(assigned, assigned.replay(late), Reason.NO_BUNDLE)
    accepted(assigned.write(Action.MERGE, assigned.bundles()[:2]))
    assert assigned.entry(parent).token > before.token
    unchanged(assigned, assigned.replay(late), Reason.STALE)
