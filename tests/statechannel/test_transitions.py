"""The whole table: every state, action, actor, destination and target, against the law written down a second time."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import find_row, step
from statechannel.law.transitions import (
    IN_FLIGHT,
    RESHAPING,
    SERVING_STATES,
    TABLE,
    Row,
    State,
    Then,
    Who,
    reshape,
    rows,
)
from statechannel.law.verdict import Cutting, Ownership, Reason, Refusal, check_entry

HOLDER, TARGET, OTHER = BrokerId("a:1", 1), BrokerId("b:1", 1), BrokerId("c:1", 1)
HOLDER_RESTARTED, TARGET_RESTARTED = BrokerId("a:1", 2), BrokerId("b:1", 2)
BUNDLE = Bundle("t/n", 0x40000000, 0x80000000)
REVISION, NEXT = 7, 8

ACTORS: dict[str, tuple[BrokerId, Role]] = {
    "holder": (HOLDER, Role.BROKER),
    "target": (TARGET, Role.BROKER),
    "other": (OTHER, Role.BROKER),
    "holder restarted": (HOLDER_RESTARTED, Role.BROKER),
    "target restarted": (TARGET_RESTARTED, Role.BROKER),
    "leader": (OTHER, Role.LEADER),
    "holder as leader": (HOLDER, Role.LEADER),
    "admin": (OTHER, Role.ADMIN),
    "holder as admin": (HOLDER, Role.ADMIN),
}
DESTINATIONS: dict[str, BrokerId | None] = {
    "none": None,
    "holder": HOLDER,
    "holder restarted": HOLDER_RESTARTED,
    "target": TARGET,
    "other": OTHER,
}
TARGETS = {
    State.TRANSFERRING: [TARGET],
    State.RELEASING: [TARGET, None],
}
STEER = "holder", "leader", "holder as leader", "admin", "holder as admin"
LEADERS = "leader", "holder as leader"

S, A = State, Action
LAW: dict[tuple[State, Action], list[tuple[tuple[str, ...], str, str, State, str, str]]] = {
    # (state, action): (who may, what `to` must be, what the target must be, next state, next holder, next target)
    (S.UNASSIGNED, A.OWN): [
        (
            ("holder", "target", "other", "holder restarted", "target restarted"),
            "given",
            "any",
            S.ASSIGNING,
            "to",
            "none",
        )
    ],
    (S.ASSIGNING, A.RETURN): [(("holder",), "any", "any", S.ASSIGNED, "holder", "none")],
    (S.ASSIGNING, A.RELEASE): [(("holder",), "any", "any", S.UNASSIGNED, "none", "none")],
    (S.ASSIGNED, A.TRANSFER): [(STEER, "another", "any", S.TRANSFERRING, "holder", "to")],
    (S.TRANSFERRING, A.READY): [(("target",), "any", "any", S.RELEASING, "holder", "target")],
    (S.RELEASING, A.RELEASE): [
        (("holder",), "any", "known", S.ASSIGNING, "target", "none"),
        (("holder",), "any", "none", S.UNASSIGNED, "none", "none"),
    ],
    (S.ASSIGNED, A.UNLOAD): [(STEER, "any", "any", S.RELEASING, "holder", "none")],
    (S.ASSIGNED, A.SPLIT): [(STEER, "any", "any", S.SPLITTING, "holder", "none")],
    (S.TRANSFERRING, A.CANCEL): [((*STEER, "target"), "any", "any", S.ASSIGNED, "holder", "none")],
    (S.SPLITTING, A.CANCEL): [(STEER, "any", "any", S.ASSIGNED, "holder", "none")],
    **{
        (state, A.REVOKE): [(LEADERS, "any", "any", S.REVOKING, "holder", "none")]
        for state in (S.ASSIGNING, S.ASSIGNED, S.TRANSFERRING, S.RELEASING, S.SPLITTING)
    },
    (S.REVOKING, A.RELEASE): [
        (("holder",), "none", "any", S.UNASSIGNED, "none", "none"),
        (LEADERS, "not the holder", "any", S.ASSIGNING, "to", "none"),
        (LEADERS, "none", "any", S.UNASSIGNED, "none", "none"),
    ],
}  # fmt: skip
FENCING = {(S.UNASSIGNED, S.ASSIGNING), (S.RELEASING, S.ASSIGNING), (S.REVOKING, S.ASSIGNING)}


def entries() -> list[Ownership]:
    """Each state, with each kind of target that it can have."""
    return [
        Ownership(
            BUNDLE,
            state,
            None if state is S.UNASSIGNED else HOLDER,
            target,
            REVISION,
            3,
            A.NOOP,
            OTHER,
            b"old",
            Cutting((5,)),
        )
        for state in State
        for target in TARGETS.get(state, [None])
    ]


PRODUCT = list(itertools.product(entries(), Action, ACTORS, DESTINATIONS))


def expected(
    entry: Ownership, action: Action, actor: str, to: str
) -> tuple[State, BrokerId | None, BrokerId | None] | Reason:
    """What the law says, from the literal copy above."""
    candidates = LAW.get((entry.state, action), [])
    if not candidates:
        return Reason.ILLEGAL
    if entry.holder is None and actor.startswith("holder") and actor != "holder restarted":
        actor = {"holder": "other", "holder as leader": "leader", "holder as admin": "admin"}[actor]
    if entry.target is None and actor == "target":
        actor = "other"
    allowed = [line for line in candidates if actor in line[0]]
    if not allowed:
        return Reason.NOT_ALLOWED
    for _, needs_to, needs_target, state, holder, target in allowed:
        fits_to = {
            "any": True,
            "none": to == "none",
            "given": to != "none",
            "another": to in ("target", "other"),
            "not the holder": to not in ("none", "holder"),
        }[needs_to]
        fits_target = {"any": True, "known": entry.target is not None, "none": entry.target is None}[needs_target]
        if fits_to and fits_target:
            named = {"holder": entry.holder, "target": entry.target, "to": DESTINATIONS[to], "none": None}
            return state, named[holder], named[target]
    return Reason.BAD_DESTINATION


def record_of(action: Action, actor: str, to: str) -> Record:
    broker, role = ACTORS[actor]
    return Record("r", action, broker, role, 1, (Subject(BUNDLE, REVISION, b"new"),), DESTINATIONS[to])


def test_the_whole_product_is_decided_exactly_as_the_law_says():
    legal = 0
    for entry, action, actor, to in PRODUCT:
        record = record_of(action, actor, to)
        row, law = find_row(entry, record), expected(entry, action, actor, to)
        case = f"{action} of {entry.state} (target {entry.target}) by {actor} to {to}"
        if isinstance(row, Refusal):
            assert row.reason is law, f"{case}: {row.detail}"
            assert (row.bundle, row.winner) == (BUNDLE, entry), case
            continue
        legal += 1
        after = step(entry, row, NEXT, record, record.subjects[0])
        assert (after.state, after.holder, after.target) == law, case
        check_entry(after)
        assert (after.revision, after.action, after.by) == (NEXT, action, record.actor), case
        assert after.token == (NEXT if (entry.state, after.state) in FENCING else entry.token), case
        assert after.hand_off == (b"new" if (entry.state, after.state) == (S.RELEASING, S.ASSIGNING) else None), case
    assert legal > 100


def test_each_refusal_says_in_words_what_is_wrong():
    for entry, action, actor, to in PRODUCT:
        refusal = find_row(entry, record_of(action, actor, to))
        if not isinstance(refusal, Refusal):
            continue
        match refusal.reason:
            case Reason.ILLEGAL:
                assert refusal.detail == f"{action} is not possible from {entry.state}"
            case Reason.NOT_ALLOWED:
                assert f"{ACTORS[actor][0]} acts as {ACTORS[actor][1]}" in refusal.detail
            case _:
                assert refusal.reason is Reason.BAD_DESTINATION
                assert "destination" in refusal.detail


def test_each_row_of_the_table_is_reached_by_the_product():
    reached: set[int] = set()
    for entry, action, actor, to in PRODUCT:
        row = find_row(entry, record_of(action, actor, to))
        if isinstance(row, Row):
            reached.add(next(i for i, known in enumerate(TABLE) if known is row))
    assert reached == set(range(len(TABLE)))


def test_the_table_has_no_arrow_beyond_the_law():
    assert {(row.state, row.action) for row in TABLE} == set(LAW)
    assert all(rows(state, action) == () for state in State for action in Action if (state, action) not in LAW)
    assert len(TABLE) == sum(len(lines) for lines in LAW.values())


def steps_of(entry: Ownership, actors: tuple[str, ...]) -> list[Ownership]:
    """Where these actors can bring a bundle in one step."""
    found: list[Ownership] = []
    for action, actor, to in itertools.product(Action, actors, DESTINATIONS):
        record = record_of(action, actor, to)
        row = find_row(entry, record)
        if isinstance(row, Row):
            found.append(step(entry, row, NEXT, record, record.subjects[0]))
    return found


def ways_out(entry: Ownership, actors: tuple[str, ...]) -> set[State]:
    """States that these actors alone can bring a bundle to, in any number of steps."""
    reached: set[tuple[State, BrokerId | None, BrokerId | None]] = set()
    todo = [entry]
    while todo:
        for after in steps_of(todo.pop(), actors):
            shape = (after.state, after.holder, after.target)
            if shape not in reached:
                reached.add(shape)
                todo.append(msgspec.structs.replace(after, revision=REVISION))
    return {state for state, _, _ in reached}


@pytest.mark.parametrize("entry", [e for e in entries() if e.state in IN_FLIGHT], ids=lambda e: f"{e.state}-{e.target}")
def test_no_state_in_flight_strands_a_bundle(entry: Ownership):
    resting = {State.UNASSIGNED, State.ASSIGNED}
    assert ways_out(entry, ("leader",)) & resting, "the leader alone cannot end it"
    assert ways_out(entry, ("holder",)) & resting or ways_out(entry, ("holder", "target")) & resting


@pytest.mark.parametrize("entry", [e for e in entries() if e.holder is not None], ids=lambda e: f"{e.state}-{e.target}")
def test_nobody_but_the_leader_or_the_holder_ends_a_holding(entry: Ownership):
    for actor in set(ACTORS) - {*LEADERS, "holder"}:
        assert all(after.holder == entry.holder for after in steps_of(entry, (actor,))), actor


@pytest.mark.parametrize("entry", [e for e in entries() if e.state in SERVING_STATES], ids=lambda e: e.state)
def test_the_holder_changes_only_from_states_in_which_nobody_serves(entry: Ownership):
    """Except that a broker which has not acquired yet, or never will, may decline."""
    for after in steps_of(entry, tuple(ACTORS)):
        assert after.holder == entry.holder or (entry.state, after.state) == (State.ASSIGNING, State.UNASSIGNED)


@pytest.mark.parametrize("entry", [e for e in entries() if e.state is State.REVOKING])
def test_a_revoked_bundle_leaves_only_by_release_of_its_holder_or_the_leader(entry: Ownership):
    assert not steps_of(entry, ("other", "target", "admin", "holder restarted"))
    assert {after.action for after in steps_of(entry, tuple(ACTORS))} == {Action.RELEASE}


def test_serving_and_in_flight_states_are_the_ones_of_the_design():
    assert {S.ASSIGNING, S.ASSIGNED, S.TRANSFERRING, S.SPLITTING} == SERVING_STATES
    moving = set(State) - {S.UNASSIGNED, S.ASSIGNED}
    assert moving == IN_FLIGHT


def test_a_token_begins_exactly_where_a_holder_begins():
    begins = {Then.HOLD_TO, Then.HOLD_TARGET}
    assert all(row.fences == (row.then in begins) for row in TABLE)


@pytest.mark.parametrize(
    ("action", "states", "by", "after"),
    [
        (A.CREATE, {S.ASSIGNED, S.SPLITTING}, {Who.HOLDER}, S.ASSIGNED),
        (A.MERGE, {S.ASSIGNED}, {Who.HOLDER, Who.LEADER, Who.ADMIN}, S.ASSIGNED),
        (A.CREATE_NAMESPACE, set[State](), {Who.ADMIN}, S.UNASSIGNED),
        (A.DELETE_NAMESPACE, {S.UNASSIGNED}, {Who.ADMIN}, None),
    ],
)
def test_the_reshaping_rows_are_the_ones_of_the_design(
    action: Action, states: set[State], by: set[Who], after: State | None
):
    row = reshape(action)
    assert row is not None
    assert (row.states, row.by, row.next) == (states, by, after)
    assert len(RESHAPING) == 4


def test_every_row_says_why():
    assert all(row.why for row in (*TABLE, *RESHAPING))
    assert all(row.guard is None or row.guard.__doc__ for row in TABLE)
