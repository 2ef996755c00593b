"""A cluster on a virtual clock whose brokers are killed, stopped and cut off, with a real table, the real evidence and
the real decisions of a leader: what is simulated is the world around them."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from loadmanager.leader.core import ORPHAN
from loadmanager.leader.quarantine.evidence import Evidence
from loadmanager.leader.quarantine.losses import FATE, Loss, fate_record
from loadmanager.leader.quarantine.quarantine import BY_THE_LEADER_S, Quarantine
from loadmanager.leader.quarantine.trials import (
    CALM_BEFORE_TRIAL_S,
    Give,
    LetGo,
    Lock,
    LockUp,
    Situation,
    Trials,
    settles_after_s,
)
from loadmanager.model.registration import Peer, Registration
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership

NS = "t/n"
LEAST = 3
WINDOW_S = 600.0
RETRY_S = 600.0
GONE_S = 60.0
TICK_S = 0.5
SESSION_S = 6.0
PROOFS_S = 2.2
LEADER = BrokerId("leader:1", 1)


class Machine:
    """A broker by its name: its process, and what the others see of it."""

    def __init__(self, name: str, started_ms: int) -> None:
        self.name = name
        self.incarnation = 1
        self.started_ms = started_ms
        self.up = True
        """Whether the process acts: neither dead nor stopped."""
        self.registered = True
        self.draining = False

    @property
    def broker(self) -> BrokerId:
        return BrokerId(self.name, self.incarnation)

    @property
    def peer(self) -> Peer:
        return Peer(self.broker, Registration(started_ms=self.started_ms, draining=self.draining))


class Town:
    """`kills(bundle, dice)` says how many seconds after it was given a bundle its holder dies; None: not of it."""

    def __init__(
        self,
        dice: random.Random,
        brokers: int,
        bundles: int,
        kills: Callable[[Bundle, random.Random], float | None] = lambda _bundle, _dice: None,
    ) -> None:
        self.dice = dice
        self.now_s = 10_000.0
        self.machines = {f"b{i}:1": Machine(f"b{i}:1", self.now_ms - 1000 * i) for i in range(brokers)}
        self.table = OwnershipTable(1)
        self.changes: list[Change] = []
        self.locks: dict[Bundle, Lock] = {}
        self.locked: list[tuple[Bundle, str]] = []
        self.deadly: Bundle | None = None
        self.only = ""
        """The one broker that may take a bundle, if it is one."""
        self.deaths_of: dict[Bundle, int] = {}
        self.verdict_after: dict[Bundle, int] = {}
        self.let_go: list[tuple[Bundle, str]] = []
        self.kills = kills
        self.new_leader()
        self._offset = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._ticking = False
        self._idle: tuple[tuple[object, ...], float] = (), 0.0
        self._nobodys: tuple[int, list[Bundle]] = (-1, [])
        self.write(Action.LEAD, LEADER, Role.LEADER)
        self.write(
            Action.CREATE_NAMESPACE, LEADER, Role.ADMIN, namespace=NS, boundaries=tuple(even_boundaries(bundles))
        )

    # --- time

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def later(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + after_s, next(self._number), event))

    def run(self, for_s: float) -> None:
        """Let time pass."""
        until_s = self.now_s + for_s
        self.later(0.0, self._tick_if_needed)
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            self._tick_if_needed()
        self.now_s = until_s

    def run_until(self, condition: Callable[[], bool], at_most_s: float = 36_000.0) -> bool:
        """Let time pass until something is so; whether it came to be."""
        until_s = self.now_s + at_most_s
        self._tick_if_needed()
        while not condition():
            if not self._events or self._events[0][0] > until_s:
                return False
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            self._tick_if_needed()
        return True

    def _tick_if_needed(self) -> None:
        if not self._ticking and self._is_busy():
            self._ticking = True
            self.later(TICK_S, self._tick)

    def _is_busy(self) -> bool:
        return bool(
            self.locks or self.quarantine.losses.undecided() or self.trials.processes.watches or not self.all_served()
        )

    # --- the channel

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        known = self.table.namespace(NS)
        assert known is not None
        return known.bundles

    def entry(self, bundle: Bundle) -> Ownership:
        entry = self.table.get(bundle)
        assert entry is not None
        return entry

    def write(self, action: Action, by: BrokerId, role: Role, *bundles: Bundle, **more: Any) -> None:
        subjects = tuple(Subject(bundle, self.entry(bundle).revision) for bundle in bundles)
        epoch = 1 if role is Role.LEADER else 0
        self.append(Record("", action, by, role, epoch, subjects, **more))

    def append(self, record: Record) -> None:
        offset = next(self._offset)
        record = msgspec.structs.replace(record, id=str(offset), at_ms=self.now_ms)
        change = self.table.replay(0, offset, record)
        assert isinstance(change, Change), change
        self.changes.append(change)
        self.quarantine.observe(change, WINDOW_S)

    def new_leader(self, *, knows_processes: bool = False) -> None:
        """Who has read the records from the first on; and has seen the registrations, or those of now only."""
        earlier = self.trials.processes if knows_processes else None
        self.quarantine = Quarantine(lambda: len(self.machines))
        for change in self.changes:
            self.quarantine.observe(change, WINDOW_S)
        self.trials = Trials(self.quarantine)
        self.trials.processes = earlier or self.trials.processes
        self.trials.processes.saw(self.peers(), self.now_ms)

    # --- the world

    def peers(self) -> dict[str, Peer]:
        return {name: machine.peer for name, machine in self.machines.items() if machine.registered}

    def alive(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.up and machine.registered]

    def kill(self, name: str, back_after_s: float | None) -> None:
        """SIGKILL; its supervisor starts it again after that time, or never."""
        machine = self.machines[name]
        if not machine.up:
            return
        machine.up = False
        broker, noticed_s = machine.broker, self._notices_s()
        self.later(noticed_s, lambda: self._lost(broker))
        self.later(SESSION_S, lambda: self._session_ends(broker))
        if back_after_s is not None:
            self.later(back_after_s, lambda: self._start(machine, broker, new=True))

    def stop(self, name: str, for_s: float) -> None:
        """SIGSTOP, and SIGCONT after that time: its session ends meanwhile, or it does not."""
        machine = self.machines[name]
        if not machine.up:
            return
        machine.up = False
        broker = machine.broker
        if for_s < SESSION_S:
            self.later(for_s, lambda: self._go_on(machine, broker))
            return
        self.later(SESSION_S, lambda: self._session_ends(broker))
        self.later(SESSION_S, lambda: self._lost(broker))
        self.later(for_s, lambda: self._start(machine, broker, new=False))

    def resume(self, name: str) -> None:
        """SIGCONT."""
        machine = self.machines[name]
        self._start(machine, machine.broker, new=False)

    def refuse(self, name: str, back_after_s: float = 3.0) -> None:
        """Its port refuses connections while it lives: it is taken for dead, fenced, and starts another incarnation."""
        machine = self.machines[name]
        if not machine.up:
            return
        broker, machine.up = machine.broker, False  # for all that it can do until its next incarnation
        self._lost(broker)
        self.later(back_after_s, lambda: self._start(machine, broker, new=False))

    def lose_session(self, name: str, back_after_s: float = 1.0) -> None:
        """It was cut off from the coordination service for longer than its session lasts."""
        machine = self.machines[name]
        if machine.up:
            broker, machine.up = machine.broker, False
            self._session_ends(broker)
            self._lost(broker)
            self.later(back_after_s, lambda: self._start(machine, broker, new=False))

    def transfer(self, bundle: Bundle, to: str) -> None:
        """A planned move that takes no time."""
        entry, target = self.entry(bundle), self.machines[to]
        if entry.state is not State.ASSIGNED or entry.holder is None or not target.up or entry.holder.name == to:
            return
        holder = self.machines[entry.holder.name]
        if holder.up and holder.broker == entry.holder:
            self.write(Action.TRANSFER, LEADER, Role.LEADER, bundle, to=target.broker)
            self.write(Action.READY, target.broker, Role.BROKER, bundle)
            self.write(Action.RELEASE, holder.broker, Role.BROKER, bundle)
            self._acquire(bundle, target.broker)

    def _notices_s(self) -> float:
        return self.dice.uniform(0.3, 1.0) if len(self.alive()) > 1 else SESSION_S

    def _go_on(self, machine: Machine, broker: BrokerId) -> None:
        machine.up = machine.up or machine.broker == broker

    def _session_ends(self, broker: BrokerId) -> None:
        machine = self.machines[broker.name]
        if machine.broker == broker and not (machine.up and machine.registered is False):
            machine.registered = False
            self.trials.processes.saw(self.peers(), self.now_ms)

    def _start(self, machine: Machine, broker: BrokerId, *, new: bool) -> None:
        if machine.broker != broker:
            return
        machine.incarnation += 1
        machine.up = machine.registered = True
        if new:
            machine.started_ms = self.now_ms
        self.trials.processes.saw(self.peers(), self.now_ms)
        self.later(0.3, lambda: self._lost(broker))  # replaced by its successor, if nobody has noticed before

    def _lost(self, broker: BrokerId) -> None:
        held = [b for b in self.table.held_by(broker) if self.entry(b).state in (State.ASSIGNING, State.ASSIGNED)]
        if held:
            self.write(Action.REVOKE, LEADER, Role.LEADER, *held, reason=f"{ORPHAN}{broker} is silent")
            self.later(PROOFS_S, lambda: self._replace(held, broker))

    def _replace(self, bundles: Iterable[Bundle], former: BrokerId) -> None:
        for bundle in bundles:
            entry = self.entry(bundle)
            if entry.state is not State.REVOKING or entry.holder != former:
                continue
            to = None if self._waits(bundle) else self._least_loaded()
            self.write(Action.RELEASE, LEADER, Role.LEADER, bundle, to=to)
            if to is not None:
                self._acquire(bundle, to)

    def _waits(self, bundle: Bundle) -> bool:
        return bundle in self.locks or self.quarantine.is_held_back(bundle, LEAST, self.now_ms)

    def _open(self, but: Collection[str]) -> list[Machine]:
        return [m for m in self.alive() if m.name not in but and self.only in ("", m.name)]

    def _least_loaded(self, but: Collection[str] = ()) -> BrokerId | None:
        found = [machine.broker for machine in self._open(but)]
        return min(found, key=lambda b: (self.table.count_held_by(b), self.dice.random()), default=None)

    def _emptiest(self, but: Collection[str]) -> BrokerId | None:
        """As `Placing.emptiest`."""
        emptiest = min(self._open(but), key=lambda m: (self.table.count_held_by(m.broker), -m.started_ms), default=None)
        return None if emptiest is None else emptiest.broker

    def _acquire(self, bundle: Bundle, to: BrokerId) -> None:
        token, kills_s = self.entry(bundle).token, self.kills(bundle, self.dice)
        self.later(self.dice.uniform(0.05, 1.0), lambda: self._acquired(bundle, to, token))
        if kills_s is not None:
            self.later(kills_s, lambda: self._dies_of(bundle, to, token))

    def _acquired(self, bundle: Bundle, to: BrokerId, token: int) -> None:
        machine, entry = self.machines[to.name], self.entry(bundle)
        if machine.broker == to and machine.up and entry.token == token and entry.state is State.ASSIGNING:
            self.write(Action.RETURN, to, Role.BROKER, bundle)
        elif machine.broker == to and entry.token == token and entry.state is State.ASSIGNING:
            self.later(1.0, lambda: self._acquired(bundle, to, token))  # it is stopped

    def _dies_of(self, bundle: Bundle, to: BrokerId, token: int) -> None:
        machine, entry = self.machines[to.name], self.entry(bundle)
        if machine.broker == to and machine.up and entry.token == token and entry.holder == to:
            self.deaths_of[bundle] = self.deaths_of.get(bundle, 0) + 1
            self.kill(to.name, self.dice.uniform(1.0, 8.0))

    def all_served(self) -> bool:
        """Whether whatever is not locked up is assigned to a broker that lives."""
        if any(bundle not in self.locks for bundle in self._unassigned()):
            return False
        brokers = {machine.broker for machine in self.alive()}
        entries = (self.entry(bundle) for bundle in self.bundles if bundle not in self.locks)
        return all(e.state is State.ASSIGNED and e.holder in brokers for e in entries)

    # --- leader and lookups

    def _tick(self) -> None:
        self._ticking = False
        seen = self._seen()
        if seen == self._idle[0] and self.now_ms < self._idle[1]:
            return
        self._act()
        self._idle = (seen, self._next_ms()) if seen == self._seen() else ((), 0)

    def _seen(self) -> tuple[object, ...]:
        """What a leader acts on, but for the time."""
        machines = tuple((m.incarnation, m.up, m.registered, m.draining) for m in self.machines.values())
        return self.quarantine, self.trials, len(self.changes), machines, tuple(self.locks.values())

    def _next_ms(self) -> float:
        """No later than a leader that did nothing may have something to do, if nothing happens until then."""
        losses, found_ms = self.quarantine.losses, list[float]()
        for bundle in self.quarantine:
            found = self.quarantine.evidence(bundle)
            if found.watched and found.last is not None:
                at_ms, pause_ms = found.last.step.at_ms, self.quarantine.pause_s(found) * 1000
                found_ms += [at_ms, at_ms + pause_ms, losses.newest_ms() + pause_ms, at_ms + 3 * pause_ms]
                found_ms += [at_ms + 4 * pause_ms + BY_THE_LEADER_S * 1000, *self._settled_ms(found)]
        for lock in self.locks.values():
            due_ms, holder = lock.due_ms(RETRY_S), self.entry(lock.bundle).holder
            given_ms = None if holder is None else self.quarantine.given_ms(lock.bundle, holder)
            calm_ms = CALM_BEFORE_TRIAL_S * 1000
            found_ms += [due_ms, due_ms + 3 * calm_ms, losses.newest_ms() + calm_ms]
            found_ms += [self.now_ms if given_ms is None and holder is not None else (given_ms or 0) + WINDOW_S * 1000]
        found_ms += [loss.at_ms + GONE_S * 1000 for loss in losses.undecided()]
        found_ms += [self.now_ms + 1] * self.trials.processes.watches
        return min((at_ms - 1 for at_ms in found_ms if at_ms > self.now_ms), default=float("inf"))

    def _settled_ms(self, found: Evidence) -> list[float]:
        """When it is known whether the holder of a watched bundle lives with it."""
        holder = self.entry(found.bundle).holder
        given_ms = None if holder is None else self.quarantine.given_ms(found.bundle, holder)
        return [] if given_ms is None else [given_ms + settles_after_s(found, WINDOW_S) * 1000]

    def _act(self) -> None:
        self.trials.processes.saw(self.peers(), self.now_ms)
        for found in self.trials.fates(self.peers(), self.now_ms, GONE_S):
            self.append(fate_record(LEADER, 1, found.broker, found.fate, found.why))
        for deed in filter(None, self.trials.look(self._situation())):
            self._do(deed)
        for bundle in self._unassigned():
            if not self._waits(bundle):
                to = self._least_loaded()
                if to is not None:
                    self._own(bundle, to)

    def _unassigned(self) -> list[Bundle]:
        if self._nobodys[0] != len(self.changes):
            found = [entry.bundle for entry in map(self.entry, self.bundles) if entry.state is State.UNASSIGNED]
            self._nobodys = len(self.changes), found
        return self._nobodys[1]

    def _situation(self) -> Situation:
        return Situation(
            now_ms=self.now_ms,
            peers=self.peers(),
            table=self.table,
            locks=list(self.locks.values()),
            least=lambda _: LEAST,
            barred=lambda bundle: bundle in self.locks,
            choose=lambda _entry, but: self._emptiest(but),
            retry_s=RETRY_S,
            window_s=WINDOW_S,
            gone_s=GONE_S,
        )

    def _do(self, deed: Give | LockUp | LetGo) -> None:
        match deed:
            case Give():
                self._own(deed.bundle, deed.to)
            case LockUp():
                earlier = self.locks.get(deed.bundle)
                self.lock(deed.bundle, deed.why, 0 if earlier is None else earlier.tries + 1)
                if earlier is None:
                    self.locked.append((deed.bundle, deed.why))
                    self.verdict_after[deed.bundle] = self.deaths_of.get(deed.bundle, 0)
            case LetGo():
                del self.locks[deed.bundle]
                self.quarantine.pardon(deed.bundle, self.now_ms)
                self.let_go.append((deed.bundle, deed.why))

    def lock(self, bundle: Bundle, why: str = "", tries: int = 0) -> None:
        """As the policy that a leader writes."""
        self.locks[bundle] = Lock(bundle, why, self.now_ms, tries)

    def has_locked(self) -> bool:
        """Whether any bundle was locked up so far."""
        return bool(self.locked)

    def lost(self) -> list[Loss]:
        """Every broker that was lost, with its fate by now."""
        brokers = {change.record.to for change in self.changes if change.record.cause == FATE}
        found = (self.quarantine.losses.get(broker) for broker in brokers if broker is not None)
        return [loss for loss in found if loss is not None]

    def _own(self, bundle: Bundle, to: BrokerId) -> None:
        self.write(Action.OWN, LEADER, Role.BROKER, bundle, to=to)
        self._acquire(bundle, to)
