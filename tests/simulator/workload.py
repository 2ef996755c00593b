"""Requests to the cluster during a run: lookups, writes, moves, splits, drains, stops.

Each request runs in the process that is asked. It may raise anything that `loadmanager.errors` names; any other
exception is a defect and ends the run. All cuts fall between cells of the ring, so that the simulated storage can keep
one token per cell.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from random import Random
from typing import Any, TypedDict

from loadmanager.broker.node import Incarnation
from loadmanager.errors import LoadManagerError, Unavailable
from loadmanager.settings.choices import Algorithm
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import IN_FLIGHT, State
from statechannel.law.verdict import Ownership, Unknown
from tests.simulator.checks import ALL_CELLS, Checks
from tests.simulator.cluster import PARTITIONS, Cluster, Life
from tests.simulator.faults import FaultProfile
from tests.simulator.simulated_host import CELL_SIZE, cells_of, topic_in

MOST_PARTS = 4
BAD_CHANCE = 0.05


class Cut(TypedDict, total=False):
    """Arguments of `Operations.split`."""

    parts: int
    positions: list[int]
    algorithm: str
    unload: bool


def draw_cut(random: Random, bundle: Bundle) -> Cut | None:
    """One of the ways to split a bundle; None if it is a single cell. A few are impossible, and must be refused."""
    cells = cells_of(bundle)
    if len(cells) < 2:
        return None
    if random.random() < BAD_CHANCE:
        return Cut(positions=[bundle.lo, bundle.lo])
    ways = [_by_positions, _by_count, _by_range]
    cut = random.choice(ways)(random, cells)
    if random.random() < 0.1:
        cut["unload"] = True
    return cut


def _by_positions(random: Random, cells: range) -> Cut:
    inside = cells[1:]
    chosen = random.sample(inside, random.randint(1, min(MOST_PARTS - 1, len(inside))))
    return Cut(positions=[cell * CELL_SIZE for cell in sorted(chosen)])


def _by_count(random: Random, cells: range) -> Cut:
    """By the service's positions: the middle of each cell, so that half-way between two of them is a cell's edge."""
    return Cut(parts=random.randint(2, min(MOST_PARTS, len(cells))), algorithm=Algorithm.TOPIC_COUNT)


def _by_range(random: Random, cells: range) -> Cut:
    parts = [parts for parts in range(2, MOST_PARTS + 1) if len(cells) % parts == 0]
    return Cut(parts=random.choice(parts)) if parts else _by_positions(random, cells)


def draw_neighbours(random: Random, entries: Iterable[Ownership]) -> list[Bundle]:
    """Some adjacent bundles, most often of one holder; empty if there are none."""
    alike = random.random() > BAD_CHANCE
    runs = list(_runs(sorted(entries, key=lambda entry: entry.bundle), alike))
    if not runs:
        return []
    run = random.choice(runs)
    size = random.randint(2, min(MOST_PARTS, len(run)))
    first = random.randint(0, len(run) - size)
    return run[first : first + size]


def _runs(entries: list[Ownership], alike: bool) -> Iterator[list[Bundle]]:
    """Longest runs of two or more bundles that touch, of one holder if `alike`."""
    run: list[Bundle] = []
    for before, entry in itertools.pairwise([None, *entries]):
        assert entry is not None
        bundle = entry.bundle
        touches = before is not None and before.bundle.namespace == bundle.namespace and before.bundle.hi == bundle.lo
        if touches and not (alike and before is not None and before.holder != entry.holder):
            run.append(bundle)
            continue
        if len(run) > 1:
            yield run
        run = [bundle]
    if len(run) > 1:
        yield run


FIRST_NAMESPACES = {"t/a": 4, "t/d": 4}
"""One in each partition of the channel."""
PASSING_NAMESPACES = ("t/passing", "t/short")
"""These come and go, one in each partition too."""
DIRECT_CHANCE = 0.3
"""Chance that a split or merge is one record of a broker's own, not a call of the administrators' operations."""
LOOKUP_TIMEOUT_S = 4.0

_ASSIGNED = frozenset({State.ASSIGNED})
_CANCELLABLE = frozenset({State.TRANSFERRING, State.SPLITTING})


class Workload:
    """Draws requests. `counts` says how many were answered, and how."""

    def __init__(self, cluster: Cluster, checks: Checks, random: Random, fault_profile: FaultProfile) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._checks = checks
        self._random = random
        self._requests: dict[str, tuple[int, Callable[[Life], None]]] = {
            "lookup": (10, self._lookup),
            "write": (12, self._write),
            "transfer": (6, self._transfer),
            "unload": (2, self._unload),
            "split": (3, self._split),
            "merge": (2, self._merge),
            "cancel": (1, self._cancel),
            "create or delete": (2, self._create_or_delete),
            "drain": (1, self._drain),
            "undrain": (1, self._undrain),
            "stop": (1, self._stop),
            "trespass": (4, self._trespass),
        }
        self.names = frozenset(self._requests)
        self._weights = fault_profile.weigh({name: weight for name, (weight, _) in self._requests.items()})
        self._unknown: list[tuple[Life, str]] = []

    def ask(self) -> None:
        """One request to one broker that is ready."""
        ready = self._cluster.ready()
        if ready:
            name = self._random.choices(list(self._weights), list(self._weights.values()))[0]
            self._requests[name][1](self._random.choice(ready))

    def create_namespaces(self, life: Life) -> None:
        """Create the namespaces that exist during the whole run."""
        for name, bundles in FIRST_NAMESPACES.items():
            self._spawn(
                life, "create", lambda now, n=name, b=bundles: now.operations.create_namespace(n, even_boundaries(b))
            )

    def _spawn(self, life: Life, what: str, ask: Callable[[Incarnation], Coroutine[Any, Any, object]]) -> None:
        async def answered() -> None:
            assert life.node is not None
            try:
                await ask(life.node.current)
                self.counts[what] += 1
            except LoadManagerError as error:
                self.counts[f"{what}: {type(error).__name__}"] += 1
                if isinstance(error, Unavailable) and error.record_id is not None:
                    self._unknown.append((life, error.record_id))
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller must not see it
                self._checks.complain(f"{life}: {what} raised {error!r}")

        life.spawn(answered)

    # --- clients

    def _place(self) -> tuple[str, int]:
        return self._random.choice(list(FIRST_NAMESPACES)), self._random.choice(ALL_CELLS)

    def _lookup(self, life: Life) -> None:
        namespace, cell = self._place()
        self._spawn(life, "lookup", lambda now: now.lookup.locate(topic_in(namespace, cell), LOOKUP_TIMEOUT_S))

    def _write(self, _life: Life) -> None:
        """Every broker that would serve a place at this instant writes to it."""
        namespace, cell = self._place()
        for each in self._cluster.alive():
            if each.node is None or each.node.serving is None:
                continue
            claim = each.node.serving.claim_topic(topic_in(namespace, cell))
            if claim is not None:
                self.counts["write"] += 1
                self._checks.write(each, namespace, cell, claim)

    # --- administrators

    def _entry(self, life: Life, states: frozenset[State] = _ASSIGNED) -> Ownership | None:
        assert life.node is not None
        entries = [e for e in life.node.channel.table if e.state in states]
        return self._random.choice(entries) if entries else None

    def _transfer(self, life: Life) -> None:
        entry = self._entry(life, frozenset({State.ASSIGNED, State.UNASSIGNED}))
        if entry is not None:
            to = self._random.choice(list(self._cluster.current))
            self._spawn(life, "transfer", lambda now: now.operations.transfer(entry.bundle, to))

    def _unload(self, life: Life) -> None:
        entry = self._entry(life)
        if entry is not None:
            self._spawn(life, "unload", lambda now: now.operations.unload(entry.bundle))

    def _create_or_delete(self, life: Life) -> None:
        assert life.node is not None
        name = self._random.choice(PASSING_NAMESPACES)
        known = life.node.channel.table.namespace(name)
        if known is not None and known.exists:
            self._spawn(life, "delete", lambda now: now.operations.delete_namespace(name))
        else:
            boundaries = even_boundaries(self._random.choice((1, 2, 4)))
            self._spawn(life, "create", lambda now: now.operations.create_namespace(name, boundaries))

    def _split(self, life: Life) -> None:
        if self._random.random() < DIRECT_CHANCE:
            self._split_directly(life)
            return
        entry = self._entry(life)
        cut = draw_cut(self._random, entry.bundle) if entry is not None else None
        if entry is not None and cut is not None:
            self._spawn(life, "split", lambda now: now.operations.split(entry.bundle, **cut))

    def _split_directly(self, life: Life) -> None:
        """The holder cuts a bundle of its own in two, in one record."""
        assert life.node is not None
        me, table = life.node.current.me, life.node.channel.table
        mine = [e for b in table.held_by(me) if (e := table.get(b)) is not None and e.state is State.ASSIGNED]
        whole = [e for e in mine if _middle(e.bundle) is not None]
        if whole:
            entry = self._random.choice(whole)
            cut = _middle(entry.bundle)
            assert cut is not None
            self._publish(life, Action.CREATE, Role.BROKER, [entry], (cut,))

    def _merge(self, life: Life) -> None:
        assert life.node is not None
        table = life.node.channel.table
        parts = draw_neighbours(self._random, (e for e in table if e.state is State.ASSIGNED))
        entries = [e for part in parts if (e := table.get(part)) is not None]
        if entries and self._random.random() < DIRECT_CHANCE:
            self._publish(life, Action.MERGE, Role.ADMIN, entries)
        elif entries:
            self._spawn(life, "merge", lambda now: now.operations.merge(parts))

    def _cancel(self, life: Life) -> None:
        entry = self._entry(life, _CANCELLABLE)
        if entry is not None:
            self._spawn(life, "cancel", lambda now: now.operations.cancel(entry.bundle))

    def _publish(
        self, life: Life, action: Action, role: Role, entries: list[Ownership], cuts: tuple[int, ...] = ()
    ) -> None:
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in entries)
        record = Record("", action, _me(life), role, subjects=subjects, boundaries=cuts, reason="workload")
        self._spawn(life, str(action), lambda _: self._published(life, record))

    async def _published(self, life: Life, record: Record) -> None:
        assert life.node is not None
        verdict = await life.node.channel.publish(record)
        self.counts[f"{record.action}: {type(verdict).__name__}"] += 1
        if isinstance(verdict, Unknown):
            self._unknown.append((life, verdict.record_id))

    # --- somebody who breaks in

    def _trespass(self, life: Life) -> None:
        """A record that its author has no right to write, about a bundle in its true state: the law must refuse it.

        The law cannot refuse what a broker says of itself, so the author lies about bundles that it has nothing to do
        with.
        """
        me = _me(life)
        entry = self._entry(life, IN_FLIGHT) or self._entry(life, frozenset(State))
        if entry is None or me in (entry.holder, entry.target):
            return
        action = self._random.choice(_TRESPASSES)
        role = self._random.choice((Role.BROKER, Role.BROKER, Role.LEADER))
        name = self._random.choice((me.name, entry.holder.name if entry.holder else me.name))
        record = Record(
            "",
            action,
            me if role is Role.LEADER else BrokerId(name, me.incarnation),
            role,
            epoch=self._random.randint(0, 5) if role is Role.LEADER else 0,
            subjects=(Subject(entry.bundle, entry.revision),),
            to=self._random.choice((None, me)),
            boundaries=((entry.bundle.lo + entry.bundle.hi) // 2,) if action is Action.CREATE else (),
            reason="trespass",
        )
        if record.actor not in (entry.holder, entry.target) and not self._leads(life, record):
            self._spawn(life, "trespass", lambda _: self._published(life, record))

    def _leads(self, life: Life, record: Record) -> bool:
        """Whether the record would be a leader's own after all."""
        assert life.node is not None
        leads = [life.node.channel.table.lead(p) for p in range(PARTITIONS)]
        return record.role is Role.LEADER and any(record.epoch >= lead.epoch for lead in leads)

    def check_late_verdicts(self) -> None:
        """Check what a process says about records whose verdict came too late: it must be their true verdict."""
        for life, record_id in self._unknown:
            if life.ready and life.node is not None:
                said, truth = life.node.channel.settled(record_id), self._checks.auditor.verdict_of(record_id)
                if said is not None and type(said) is not type(truth):
                    self._checks.complain(f"{life} says that record {record_id} became {said}, it became {truth}")

    # --- operators

    def _drain(self, life: Life) -> None:
        node = life.node
        assert node is not None
        self._spawn(life, "drain", lambda _: node.drain(5.0))

    def _undrain(self, life: Life) -> None:
        node = life.node
        assert node is not None
        self._spawn(life, "undrain", lambda _: node.undrain())

    def _stop(self, life: Life) -> None:
        assert life.node is not None
        self._cluster.world.trace.write(str(life), "is asked to stop")
        life.leaving = True
        life.process.run(life.node.stop)


_TRESPASSES = (Action.RETURN, Action.READY, Action.RELEASE, Action.RELEASE, Action.CANCEL, Action.REVOKE, Action.CREATE)


def _me(life: Life) -> BrokerId:
    assert life.node is not None
    return life.node.current.me


def _middle(bundle: Bundle) -> int | None:
    middle = (bundle.lo + bundle.hi + 1) // 2 // CELL_SIZE * CELL_SIZE
    return middle if bundle.lo < middle < bundle.hi else None
