"""Explores every interleaving of a small cluster, over the production law, proofs and leader core.

    python -m tests.explorer --records 3 --ticks 2

Nothing is copied into another language: records are judged by `OwnershipTable.replay`, proofs counted by `Proofs`, dead
holders revoked and replaced by `LeaderCore`. What is modelled is the world around them: a log of one partition, a
coordination service that knows which incarnations were raised, a clock of whole ticks, and three brokers, each of which
reads the log as late as it pleases, or never again. That covers pauses, crashes and cuts.

Everything is as bad as it can be, which spares most events:
* A broker has a proof from the coordination service of each instant until its incarnation is raised, and one from
  the channel in each instant until the first record lands that it has not read. An older proof would only end sooner.
* Every clock but the leader's is as slow as the margin allows.
* A leader looks as soon as anything changed; what it writes may land late, twice or never.
* A broker may write, in any role but the leader's, whatever the law accepts from it by what it has read, but for splits
  and merges. Three promises bind it, since the law rests on these: a holder that writes `release` does not serve under
  this ownership any more; it accepts an ownership or declines it, not both; a leader's records come from its
  `LeaderCore`.

Each state is visited once. States are equal if they differ only in how long the log was and when it is: offsets count
by rank, times from now.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TypeVar

from loadmanager.leader.core import (
    Asked,
    Cancel,
    Duty,
    Evacuate,
    LeaderCore,
    LeaderSettings,
    Place,
    Raise,
    Revoke,
    View,
)
from loadmanager.model.registration import Peer, Registration
from statechannel.errors import InvariantError
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle
from statechannel.law.indices import Flight
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import SERVING_STATES, State
from statechannel.law.verdict import Change, Ownership, Refusal
from statechannel.runtime.proofs import Proofs

Core = TypeVar("Core", LeaderCore, Proofs, Asked)

NAMESPACE = "t/n"
BUNDLE = Bundle(NAMESPACE, FULL_LOWER, FULL_UPPER)
BROKERS = tuple(BrokerId(f"{name}:1", 1) for name in "abc")
A, B, C = range(len(BROKERS))
VALIDITY, MARGIN = 1, 1
"""Ticks. Every broker's clock is as slow as the margin allows: its proofs count for both together."""
NEVER_S = 1_000
LONG_AGO = -3
"""Ticks after which nothing depends on how long ago something was: more than validity and margin together."""
PEERS = tuple(Peer(each, Registration()) for each in BROKERS)


class Log:
    """One prefix of the log: its last record, the verdict of the law, and the table after it."""

    def __init__(self, before: Log | None, record: Record | None, author: int | None = None) -> None:
        self.before, self.record, self.author = before, record, author
        self.length: int = 0 if before is None else before.length + 1
        self.verdict: Change | Refusal | None = None
        self._after: dict[tuple[Record, int | None], Log] = {}
        if before is None or record is None:
            self.table = OwnershipTable(1)
            return
        self.table = before.table.frozen()
        self.verdict = self.table.replay(0, before.length, record)
        self.table.check_invariants()

    def append(self, record: Record, author: int | None = None) -> Log:
        """The prefix that is longer by this record. Raises InvariantError if the table is malformed after it."""
        known = self._after.get((record, author))
        if known is None:
            known = self._after[record, author] = Log(self, record, author)
        return known

    def accepts(self, record: Record) -> Change | None:
        """The change by this record, None if the law refuses it."""
        verdict = self.table.frozen().replay(0, self.length, record)
        return verdict if isinstance(verdict, Change) else None

    def next_after(self, at: Log) -> Log:
        """The prefix of this log that is longer by one than `at`."""
        prefix = self
        while prefix.before is not at:
            assert prefix.before is not None
            prefix = prefix.before
        return prefix

    @cached_property
    def entry(self) -> Ownership:
        """Who holds the bundle."""
        entry = self.table.get(BUNDLE)
        assert entry is not None
        return entry


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may still happen."""

    records: int = 4
    ticks: int = 4
    elections: int = 1
    electable: tuple[int, ...] = (A, B)
    """Brokers that may be elected, beside the first leader."""
    suspicions: int = 1
    """How many brokers the leader takes for dead, whether or not they are."""
    suspects: tuple[int, ...] = (A, B, C)
    losses: int = 0
    """Records that never land. Without it a record may still land after everything else."""
    copies: int = 0
    """Records that land twice."""

    def core(self) -> LeaderCore:
        """A new leader's core. It asks for nothing twice: copies and losses are events of their own."""
        return LeaderCore(LeaderSettings(VALIDITY, MARGIN, NEVER_S, NEVER_S, NEVER_S))


@dataclass(frozen=True, slots=True)
class Broker:
    """One incarnation."""

    at: Log
    """Up to where it has read."""
    writes: tuple[Record, ...] = ()
    """Records on their way to the log, in order."""
    answer: tuple[int, Action] | None = None
    """The token of the last ownership that it accepted or declined, with `return` or `release`."""
    core: LeaderCore | None = None
    """Its memory as a leader, from when it read its own `lead` until it reads another one."""


@dataclass(frozen=True, slots=True)
class World:
    """The whole state."""

    tip: Log
    landed: tuple[float, ...]
    """When each record of the log landed."""
    brokers: tuple[Broker, ...]
    budget: Budget = field(default_factory=Budget)
    now: float = 0.0
    epoch: int = 1
    raised: tuple[float | None, ...] = (None, None, None)
    """Since when the coordination service proves nothing more to an incarnation."""
    raising: tuple[tuple[int, int], ...] = ()
    """Leaders' requests to raise an incarnation, on their way to the coordination service."""
    suspected: frozenset[int] = frozenset()

    def change(self, index: int, /, **values: object) -> World:
        """The same with another state of one broker."""
        changed = replace(self.brokers[index], **values)  # pyright: ignore[reportArgumentType]
        return replace(self, brokers=(*self.brokers[:index], changed, *self.brokers[index + 1 :]))

    def append(self, record: Record, author: int) -> World:
        """The same after this record has landed."""
        return replace(self, tip=self.tip.append(record, author), landed=(*self.landed, self.now))

    def spend(self, **spent: int) -> World:
        left = {name: getattr(self.budget, name) - amount for name, amount in spent.items()}
        return replace(self, budget=replace(self.budget, **left))

    def proofs(self, index: int) -> Proofs:
        """The best proofs that this broker can have now."""
        proofs, at, raised_s = Proofs(1, VALIDITY + MARGIN), self.brokers[index].at, self.raised[index]
        proofs.coordination_proved(self.now if raised_s is None else raised_s)
        proofs.channel_proved(0, self.now if at is self.tip else self.landed[at.length])
        return proofs

    def serving(self) -> list[int]:
        """The brokers that serve the bundle now: by what each has read, and by its own proofs."""
        return [
            index
            for index, broker in enumerate(self.brokers)
            if broker.at.entry.holder == BROKERS[index]
            and broker.at.entry.state in SERVING_STATES
            and broker.answer != (broker.at.entry.token, Action.RELEASE)
            and self.proofs(index).fresh(0, self.now)
        ]


Step = tuple[str, World]


def begin(
    budget: Budget, *, owner: int = A, leader: int = C, unassigned: bool = False, target: int | None = None
) -> World:
    """One bundle, served by `owner`, or given back by it, or on its way to `target`; `leader` leads.

    All brokers have read everything.
    """
    log = Log(None, None)
    boundaries = (FULL_LOWER, FULL_UPPER)
    log = log.append(
        Record("g", Action.CREATE_NAMESPACE, BROKERS[owner], Role.ADMIN, namespace=NAMESPACE, boundaries=boundaries)
    )
    log = log.append(Record("l", Action.LEAD, BROKERS[leader], Role.LEADER, 1))
    log = log.append(_about(log, Action.OWN, owner, to=BROKERS[owner]))
    log = log.append(_about(log, Action.RETURN, owner))
    for action in (Action.UNLOAD, Action.RELEASE) if unassigned else ():
        log = log.append(_about(log, action, owner))
    if target is not None:
        log = log.append(_about(log, Action.TRANSFER, owner, to=BROKERS[target]))
    brokers = [Broker(log) for _ in BROKERS]
    brokers[leader] = replace(brokers[leader], core=budget.core())
    return World(log, (0.0,) * log.length, tuple(brokers), budget)


def _about(
    log: Log, action: Action, author: int, role: Role = Role.BROKER, epoch: int = 0, to: BrokerId | None = None
) -> Record:
    return Record("r", action, BROKERS[author], role, epoch, (Subject(BUNDLE, log.entry.revision),), to)


# --- what may happen next


def steps(world: World) -> Iterator[Step]:
    """All that may happen in a state, each with the state after it."""
    budget = world.budget
    if budget.ticks:
        yield from _looks("a tick passes", replace(world.spend(ticks=1), now=world.now + 1))
    for request in world.raising:
        leader, holder = request
        yield from _looks(f"{'abc'[holder]} is raised for {'abc'[leader]}", raise_(world, request))
    for index, broker in enumerate(world.brokers):
        name = "abc"[index]
        if broker.at is not world.tip:
            yield from _looks(f"{name} reads {_told(world.tip.next_after(broker.at).record)}", read(world, index))
        if broker.writes:
            first, *others = broker.writes
            landed = world.append(first, index)
            yield f"{_told(first)} of {name} lands", landed.change(index, writes=tuple(others))
            if budget.losses:
                yield f"{_told(first)} of {name} is lost", world.spend(losses=1).change(index, writes=tuple(others))
            if budget.copies:
                yield f"{_told(first)} of {name} lands, and will again", landed.spend(copies=1)
            continue
        if budget.records:
            for record in _writable(broker.at, index):
                answer = broker.answer
                if broker.at.entry.state is State.ASSIGNING and record.action in (Action.RETURN, Action.RELEASE):
                    token = broker.at.entry.token
                    if answer is not None and answer[0] == token and answer[1] is not record.action:
                        continue
                    answer = token, record.action
                wrote = world.change(index, writes=(record,), answer=answer).spend(records=1)
                yield f"{name} writes {_told(record)}", wrote
        if budget.elections and broker.core is None and index in budget.electable:
            claim = Record("l", Action.LEAD, BROKERS[index], Role.LEADER, world.epoch + 1)
            elected = replace(world.spend(elections=1), epoch=world.epoch + 1)
            yield f"{name} is elected", elected.change(index, writes=(claim,))
        if budget.suspicions and index in budget.suspects and index not in world.suspected:
            suspected = replace(world.spend(suspicions=1), suspected=world.suspected | {index})
            yield from _looks(f"{name} is suspected", suspected)


def read(world: World, index: int) -> World:
    """A broker reads the next record; if it leads, its core learns of it."""
    broker = world.brokers[index]
    at, core = world.tip.next_after(broker.at), broker.core
    assert at.record is not None
    if isinstance(at.verdict, Change):
        if at.record.action is Action.LEAD:
            core = world.budget.core() if at.author == index else None
        elif core is not None:
            core = _copied(core)
            core.observe(at.verdict, world.now)
    return world.change(index, at=at, core=core)


def raise_(world: World, request: tuple[int, int]) -> World:
    """The coordination service raises an incarnation, and the leader hears of it."""
    leader, holder = request
    raised, core = list(world.raised), world.brokers[leader].core
    if raised[holder] is None:
        raised[holder] = world.now
    if core is not None:
        core = _copied(core)
        core.raised(BROKERS[holder], world.now)
    world = replace(world, raised=tuple(raised), raising=tuple(each for each in world.raising if each != request))
    return world.change(leader, core=core)


def _looks(what: str, world: World) -> Iterator[Step]:
    """After a change every leader looks, unless it still waits for what it has written."""
    found: list[Step] = [(what, world)]
    for index, broker in enumerate(world.brokers):
        if broker.core is not None and not broker.writes:
            found = [step for before, each in found for step in look(before, each, index)]
    yield from found


def look(what: str, world: World, index: int) -> Iterator[Step]:
    """A leader looks at everything, and begins what its core asks for."""
    core = world.brokers[index].core
    assert core is not None
    core = _copied(core)
    peers = {peer.broker.name: peer for peer, raised_s in zip(PEERS, world.raised, strict=True) if raised_s is None}
    suspected = {BROKERS[each]: "suspected" for each in world.suspected}
    duties = core.tick(world.brokers[index].at.table, View(world.now, peers, suspected, {}, LONG_AGO))
    assert not core.unfinished
    raising = [(index, BROKERS.index(duty.holder)) for duty in duties if isinstance(duty, Raise)]
    world = replace(world, raising=(*world.raising, *raising)).change(index, core=core)
    choices: list[tuple[Record, ...]] = [()]
    for duty in duties:
        choices = [(*before, *some) for before in choices for some in _records(world, index, duty)]
    for records in choices:
        told = "".join(f"; {'abc'[index]} writes {_told(each)}" for each in records)
        yield f"{what}{told}", world.change(index, writes=records)


def _records(world: World, index: int, duty: Duty) -> Iterator[tuple[Record, ...]]:
    """The records of a duty, one set for each place that may be chosen: a destination, or none."""
    epoch = world.brokers[index].at.table.lead(0).epoch
    me = BROKERS[index]
    if isinstance(duty, Raise):
        yield ()
        return
    subjects = tuple(Subject(bundle, seen) for bundle, seen in duty.subjects)
    match duty:
        case Revoke():
            yield (Record("r", Action.REVOKE, me, Role.LEADER, epoch, subjects),)
        case Cancel():
            yield (Record("r", Action.CANCEL, me, Role.LEADER, epoch, subjects),)
        case Place(revoked=revoked):
            action, role = (Action.RELEASE, Role.LEADER) if revoked else (Action.OWN, Role.BROKER)
            for to in (*BROKERS, None):
                record = Record("r", action, me, role, epoch if revoked else 0, subjects, to)
                if world.brokers[index].at.accepts(record):
                    yield (record,)
        case Evacuate():
            yield ()


@cache
def _writable(log: Log, author: int) -> tuple[Record, ...]:
    """What the law would accept from a broker by what it has read."""
    found: dict[tuple[object, ...], Record] = {}
    for action in (
        Action.OWN,
        Action.RETURN,
        Action.TRANSFER,
        Action.READY,
        Action.UNLOAD,
        Action.RELEASE,
        Action.CANCEL,
        Action.REVOKE,
    ):
        for role in (Role.BROKER, Role.ADMIN):
            for to in (None, *BROKERS):
                record = _about(log, action, author, role, to=to)
                change = log.accepts(record)
                if change is not None:
                    after = change.transitions[0].after
                    assert after is not None
                    found.setdefault((action, after.state, after.holder, after.target), record)
    return tuple(found.values())


def _told(record: Record | None) -> str:
    if record is None:
        return "nothing"
    to = f" to {record.to.name[0]}" if record.to is not None else ""
    role = {Role.LEADER: "leader's ", Role.ADMIN: "admin's "}.get(record.role, "")
    return f"{role}{record.action}{to}"


def _copied(core: Core) -> Core:
    """A copy that shares nothing that changes: containers, those in a dictionary, the book of what was asked for."""
    copied = copy.copy(core)
    for name, value in vars(core).items():
        if isinstance(value, dict):
            held = {of: dict(some) if isinstance(some, dict) else some for of, some in value.items()}
            setattr(copied, name, held)
        elif isinstance(value, list | set | deque):
            setattr(copied, name, copy.copy(value))
        elif name == "_asked":
            setattr(copied, name, _copied(value))
    return copied


# --- when two states are the same


def key(world: World) -> Hashable:
    """Equal for states that differ only in the log's length and in the time."""
    unread = min((broker.at for broker in world.brokers), key=lambda at: at.length)
    rest: list[Log] = []
    prefix = world.tip
    while prefix is not unread:
        rest.append(prefix)
        assert prefix.before is not None
        prefix = prefix.before
    offsets: dict[int, int] = {}
    revisions = {each.entry.revision for each in (unread, *rest)} | {each.entry.token for each in (unread, *rest)}
    for record in (*(each.record for each in rest), *(record for b in world.brokers for record in b.writes)):
        revisions |= {subject.seen for subject in record.subjects} if record is not None else set()
    for broker in world.brokers:
        if broker.core is not None:
            revisions |= _offsets(broker.core)
    offsets = {offset: rank for rank, offset in enumerate(sorted(revisions))}
    return (
        _state(unread, offsets),
        tuple(
            (each.author, _record(each.record, offsets), _since(world.landed[each.length - 1], world.now))
            for each in reversed(rest)
        ),
        tuple(_broker(broker, world.now, offsets, broker.at.length - unread.length) for broker in world.brokers),
        world.budget,
        world.epoch,
        tuple(_since(at, world.now) for at in world.raised),
        world.suspected,
        world.raising,
    )


def _state(log: Log, offsets: Mapping[int, int]) -> Hashable:
    entry, lead = log.entry, log.table.lead(0)
    return (
        entry.state,
        entry.holder,
        entry.target,
        offsets[entry.revision],
        offsets[entry.token],
        lead.epoch,
        lead.leader,
    )


def _record(record: Record | None, offsets: Mapping[int, int]) -> Hashable:
    assert record is not None
    seen = tuple(offsets[subject.seen] for subject in record.subjects)
    return record.action, record.actor, record.role, record.epoch, record.to, seen


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else max(at - now, LONG_AGO)


def _broker(broker: Broker, now: float, offsets: Mapping[int, int], at: int) -> Hashable:
    writes = tuple(_record(record, offsets) for record in broker.writes)
    answer = None if broker.answer is None else (offsets.get(broker.answer[0]), broker.answer[1])
    return at, writes, answer, None if broker.core is None else _core(broker.core, now, offsets)


def _flight(flight: Flight, offsets: Mapping[int, int]) -> Hashable:
    return flight.state, flight.holder, flight.target, offsets[flight.revision]


def _offsets(core: LeaderCore) -> set[int]:
    asked = vars(core)["_asked"]
    flights = [
        *vars(core)["_seen_s"],
        *vars(core)["_observed"],
        *(a for _, a in vars(asked)["_asked"] if isinstance(a, Flight)),
    ]
    return {flight.revision for flight in flights} | {
        revision for homeless in vars(core)["_homeless"].values() for revision in homeless.values()
    }


def _core(core: LeaderCore, now: float, offsets: Mapping[int, int]) -> Hashable:
    memory, asked = vars(core), vars(vars(core)["_asked"])["_asked"]
    return (
        frozenset((_flight(flight, offsets), _since(at, now)) for flight, at in memory["_seen_s"].items()),
        frozenset((_flight(flight, offsets), _since(at, now)) for flight, at in memory["_observed"].items()),
        frozenset(memory["_to_raise"]),
        frozenset((holder, _since(at, now)) for holder, at in memory["_raised_s"].items()),
        frozenset(
            (
                duty,
                _flight(about, offsets) if isinstance(about, Flight) else about,
                _since(each.at_s, now),
                each.left,
                each.pause_s,
            )
            for (duty, about), each in asked.items()
        ),
        frozenset(
            (former, bundle, offsets[revision])
            for former, homeless in memory["_homeless"].items()
            for bundle, revision in homeless.items()
        ),
        frozenset(memory["_dead"]),
    )


# --- exploring


@dataclass
class Found:
    """The result: how many states were visited, how deep; the way to a violation, if there is one."""

    states: int = 0
    depth: int = 0
    steps: set[tuple[State, Action, State]] = field(default_factory=set[tuple[State, Action, State]])
    """Rows of the table that were applied."""
    complete: bool = False
    violation: str = ""
    path: tuple[str, ...] = ()

    def scenario(self) -> str:
        """The way to the violation as numbered lines."""
        lines = [f"{number:>3}. {line}" for number, line in enumerate(self.path, 1)]
        return "\n".join([*lines, f"=> {self.violation}"])


def explore(start: World, *, most: int = 1_000_000, settled_each: int = 0) -> Found:
    """Visit the states, nearest first, until all are visited, `most` are, or one breaks an invariant.

    From each `settled_each`-th state the faults stop, and the bundle must be served again.
    """
    found = Found()
    seen: dict[Hashable, tuple[Hashable, str] | None] = {key(start): None}
    queue: deque[tuple[World, int]] = deque([(start, 0)])

    def end(world: World, violation: str, last: str = "") -> Found:
        path: list[str] = [last] if last else []
        here = seen[key(world)]
        while here is not None:
            path.append(here[1])
            here = seen[here[0]]
        found.violation, found.path = violation, tuple(reversed(path))
        return found

    while queue:
        world, depth = queue.popleft()
        found.states, found.depth = found.states + 1, depth
        verdict = world.tip.verdict
        if isinstance(verdict, Change) and verdict.record.action is not Action.CREATE_NAMESPACE:
            for each in verdict.transitions:
                assert each.before is not None
                assert each.after is not None
                found.steps.add((each.before.state, verdict.record.action, each.after.state))
        serving = world.serving()
        if len(serving) > 1:
            return end(world, f"{' and '.join('abc'[each] for each in serving)} serve the bundle at the same time")
        here = key(world)
        try:
            if settled_each and found.states % settled_each == 0 and not settles(world):
                return end(world, "the bundle is not served again, although faults have stopped")
            if found.states >= most:
                return found
            for what, after in steps(world):
                there = key(after)
                if there not in seen:
                    seen[there] = (here, what)
                    queue.append((after, depth + 1))
        except InvariantError as error:
            return end(world, str(error), "the next record lands")
    found.complete = True
    return found


PATIENCE = 40
"""Rounds within which a bundle must be served again once faults have stopped."""


def settles(world: World) -> bool:
    """True if the bundle is served again when nothing is lost or late any more, and every broker does its part.

    Another leader is elected first, since the former one does not repeat what was lost.
    """
    world = replace(world, brokers=tuple(replace(each, core=None) for each in world.brokers))
    world = replace(world, budget=Budget())
    for _ in range(PATIENCE):
        world = replace(_round(world), now=world.now + 0.5)
        if len(world.serving()) == 1:
            return True
    return False


def _round(world: World) -> World:
    for index in range(len(BROKERS)):
        while (broker := world.brokers[index]).writes:
            world = world.append(broker.writes[0], index).change(index, writes=broker.writes[1:])
    for index in range(len(BROKERS)):
        while world.brokers[index].at is not world.tip:
            world = read(world, index)
    for request in world.raising:
        world = raise_(world, request)
    alive = [index for index in range(len(BROKERS)) if world.raised[index] is None]
    world = replace(world, suspected=world.suspected - set(alive))
    leading = next((index for index in alive if world.brokers[index].core is not None), None)
    if leading is None:
        record = Record("l", Action.LEAD, BROKERS[alive[0]], Role.LEADER, world.epoch + 1)
        return replace(world, epoch=world.epoch + 1).change(alive[0], writes=(record,))
    entry = world.tip.entry
    ours = {State.ASSIGNING: Action.RETURN, State.RELEASING: Action.RELEASE}
    for index in alive:
        me, action = BROKERS[index], None
        answer = world.brokers[index].answer
        if entry.holder == me and entry.state is State.ASSIGNING and answer is not None and answer[0] == entry.token:
            action = answer[1]
        elif entry.holder == me:
            action = ours.get(entry.state)
        elif entry.target == me and entry.state is State.TRANSFERRING:
            action = Action.READY
        elif entry.state is State.UNASSIGNED and index == alive[0]:
            action = Action.OWN
        if action is not None:
            return world.append(_about(world.tip, action, index, to=me if action is Action.OWN else None), index)
    living = {BROKERS[index] for index in alive}
    looked = [after for _, after in look("", world, leading)]
    return next(after for after in looked if all(r.to is None or r.to in living for r in after.brokers[leading].writes))
