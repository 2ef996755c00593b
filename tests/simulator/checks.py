"""Invariants that hold at every instant of a run, whatever faults happen. The first breach ends the run.

* At most one process serves any place of the ring; paused ones count too, each judged by its own clock.
* The process that serves a bundle is the owner at the log's end.
* Nothing is served that the host has not acquired under the same token; tokens of a place only grow; the storage never
refuses a write of a process that is serving.
* A process that is cut off from both servers serves nothing beyond the proofs it had.
* Every replica accepts the same records with the same effects at the same offsets, each once and in order, or goes on
from a snapshot with the same state; and it never goes back.
* Every snapshot equals the replay of the whole log, and the log is never trimmed beyond what the snapshots cover.
* No decision on balance is made before its leader has read all load data.
* No decision on balance takes a bundle back, within its rest time, to a broker that a decision took it from.
"""

from __future__ import annotations

import re
from functools import partial

import msgspec

from loadmanager.broker.node import Node
from loadmanager.broker.serving import Claim
from loadmanager.leader.rebalancing.rounds import Round
from statechannel.errors import InvariantError
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.snapshot import SnapshotInfo
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change
from tests.simulator.audits import AppendAudit, SnapshotAudit
from tests.simulator.cluster import PARTITIONS, SETTINGS, Cluster, Life
from tests.simulator.loop import Process
from tests.simulator.simulated_host import CELLS, StaleToken, cells_of
from tests.simulator.world import World

_DECISION = re.compile(r"\d+\.\d+")


class Violation(Exception):
    """The system broke an invariant; the message says which."""


class _Watch:
    """The last observed state of a life."""

    def __init__(self, life: Life, node: Node) -> None:
        self.life = life
        self.node = node
        self.replica = node.channel.replica
        self.claims: list[Claim] = []
        self.until_s: list[float] = []
        self.last_offset = [-1] * PARTITIONS
        self.accepted = [0] * PARTITIONS
        self.loaded: list[SnapshotInfo | None] = []
        self.round: Round | None = None
        """The last round of balancing that it led."""
        self.isolated_s: float | None = None
        """Since when, on its own clock, it has been cut off from both servers."""


class Checks:
    """Watches a cluster. `after` is the loop's hook; `broken` the first breach."""

    def __init__(self, world: World) -> None:
        self.broken: str | None = None
        self.loads = 0
        """How often a partition of a replica was loaded from a snapshot."""
        self.reloads = 0
        """How many of these because the replica had fallen behind the trimmed log."""
        self.rounds = 0
        """The rounds of balancing, of all leaders, that had a model."""
        self.evicted_alive: set[str] = set()
        """Brokers whose bundles a leader revoked for refused connections while their processes were well."""
        self.world = world
        table, write = OwnershipTable(PARTITIONS), partial(world.trace.write, "log")
        audit = SnapshotAudit(table, world.wall_ms, SETTINGS.log_retention_s, self.complain, write)
        self.auditor = AppendAudit(table, audit, write, self._log_changed, self.complain)
        self.cluster: Cluster
        self._watches: dict[Process, _Watch] = {}
        self._tokens: dict[tuple[str, int], int] = {}
        world.log.on_append = self.auditor.appended
        world.log.on_trim = self.auditor.trimmed
        world.loop.after_callback = self.after

    # --- what the rest of the run tells

    def born(self, life: Life) -> None:
        """Watch a life from now on."""
        assert life.node is not None
        watch = self._watches[life.process] = _Watch(life, life.node)
        life.process.on_death(lambda: self._forget(life.process))
        life.node.channel.listen(lambda change: self._replica_changed(watch, change))

    def _forget(self, process: Process) -> None:
        del self._watches[process]

    def complain(self, what: str) -> None:
        """Report a breach; the run ends at the next instant."""
        if self.broken is None:
            self.broken = what
            self.world.trace.write("VIOLATION", what)

    def raise_if_broken(self) -> None:
        """Raises Violation."""
        if self.broken is not None:
            raise Violation(self.broken)

    def after(self, process: Process) -> None:
        """Check a process after each of its steps: only its own step can make it serve more."""
        watch = self._watches.get(process)
        if watch is not None:
            if watch.replica.loaded != watch.loaded:
                self._replica_loaded(watch)
            if (serving := watch.node.serving) is not None:
                claims, until_s = serving.claims(), serving.until_s()
                if claims != watch.claims or until_s != watch.until_s:
                    watch.claims, watch.until_s = claims, until_s
                    self._check_serving(watch)
            self._check_round(watch)
        if self.broken is not None:
            raise Violation(self.broken)

    def links_changed(self) -> None:
        """Update which processes are cut off from both servers."""
        for process, watch in self._watches.items():
            if not self.cluster.is_isolated(process):
                watch.isolated_s = None
            elif watch.isolated_s is None:
                watch.isolated_s = process.local_s(self.world.loop.now_ns)

    # --- who serves

    def served(self, life: Life) -> list[Claim]:
        """What a process would serve now if it were asked, by its own clock."""
        watch = self._watches.get(life.process)
        if watch is None or life.node is None or life.node.serving is None:
            return []
        serving = life.node.serving
        return [claim for claim in watch.claims if serving.serving(claim.bundle)]

    def _check_serving(self, watch: _Watch) -> None:
        served = self.served(watch.life)
        if watch.isolated_s is not None and served:
            most_s = watch.isolated_s + watch.node.settings.proof_validity_s
            if max(watch.until_s[claim.token.partition] for claim in served) > most_s:
                self.complain(f"{watch.life} is cut off from both servers and goes on serving beyond its proofs")
        self._check_claims(watch.life, served)
        for other in self._watches.values():
            if served and other is not watch:
                self._check_pair(watch.life, served, other.life, self.served(other.life))

    def _check_pair(self, one: Life, mine: list[Claim], other: Life, others: list[Claim]) -> None:
        for claim in mine:
            for rival in others:
                if _overlap(claim.bundle, rival.bundle):
                    self.complain(
                        f"TWO OWNERS: {one} serves {claim.bundle} under {claim.token}, and {other} serves "
                        f"{rival.bundle} under {rival.token}"
                    )

    def _check_claims(self, life: Life, served: list[Claim]) -> None:
        for index, claim in enumerate(served):
            if life.host.held.get(claim.bundle) != claim.token:
                held = life.host.held.get(claim.bundle)
                self.complain(f"{life} serves {claim.bundle} under {claim.token}; its host acquired it under {held}")
            if any(_overlap(claim.bundle, other.bundle) for other in served[:index]):
                self.complain(f"{life} serves {claim.bundle} and a bundle that overlaps it")
            self._check_named(life, claim)

    def _check_named(self, life: Life, claim: Claim) -> None:
        bundle = claim.bundle
        me = _incarnation(life)
        entries = self.auditor.overlapping(bundle.namespace, bundle.lo, bundle.hi)
        if not entries or any(entry.holder != me for entry in entries):
            named = ", ".join(f"{e.bundle.range} {e.state}({e.holder})" for e in entries) or "nobody"
            self.complain(f"{life} serves {bundle} as {me} under {claim.token}, while the log says: {named}")

    # --- what the log says

    def _log_changed(self, change: Change) -> None:
        self._check_rest(change)
        self._note_eviction(change)
        for transition in change.transitions:
            after = transition.after
            if after is None:
                continue
            moved = transition.before is not None and transition.before.holder != after.holder is not None
            for cell in cells_of(after.bundle):
                place = (after.bundle.namespace, cell)
                known = self._tokens.get(place, -1)
                if after.token < known or (moved and after.token == known):
                    self.complain(f"the token of {after.bundle} went from {known} to {after.token} at {after.holder}")
                self._tokens[place] = after.token
        if any(t.before is None or t.after is None or t.before.holder != t.after.holder for t in change.transitions):
            self._check_tiling()
            for watch in self._watches.values():
                for claim in self.served(watch.life):
                    self._check_named(watch.life, claim)

    def _note_eviction(self, change: Change) -> None:
        record = change.record
        if record.action is not Action.REVOKE or "refuses connections from" not in record.reason:
            return
        incarnations = {_incarnation(life): life for life in self.cluster.alive()}
        for transition in change.transitions:
            if transition.before is not None and transition.before.holder in incarnations:
                self.evicted_alive.add(incarnations[transition.before.holder].name)

    def _check_round(self, watch: _Watch) -> None:
        node = watch.node
        last = node.incarnation.rebalancer.last if node.incarnation is not None else None
        if last is not watch.round:
            watch.round = last
            if last is not None and last.model is not None:
                self.rounds += 1
                if not (node.views.bundles.ready and node.views.brokers.ready):
                    self.complain(f"{watch.life} decided {last.id} before it had read all load data")

    def _check_rest(self, change: Change) -> None:
        """No balancing decision takes a bundle back within its rest time: loads never change here."""
        record = change.record
        if record.action is not Action.TRANSFER or record.to is None or not _DECISION.fullmatch(record.cause):
            return
        rest_ms = SETTINGS.bundle_rest_s * 1000
        for transition in change.transitions:
            before = transition.before
            if before is None or before.holder is None or self._drains(before.holder, record.actor):
                continue
            moves = self.auditor.table.moves(transition.bundle)
            rests = bool(moves) and record.at_ms - moves[-1].at_ms < rest_ms
            left = {move.source.name for move in moves if abs(record.at_ms - move.at_ms) < rest_ms}
            if rests and record.to.name in left:
                self.complain(f"decision {record.cause} takes {transition.bundle} back to {record.to} within its rest")

    def _drains(self, broker: BrokerId, leader: BrokerId) -> bool:
        """Whether a broker drains, or the leader still believes so: a cancelled drain may not have reached it."""
        nodes = {watch.node.settings.advertised: watch.node for watch in self._watches.values()}
        if broker.name in nodes and nodes[broker.name].registration.draining:
            return True
        known = nodes[leader.name].membership.peer(broker) if leader.name in nodes else None
        return known is not None and known.registration.draining

    def _check_tiling(self) -> None:
        try:
            self.auditor.table.check_invariants()
        except InvariantError as error:
            self.complain(f"the table broke its law: {error}")

    def _replica_loaded(self, watch: _Watch) -> None:
        """One or more partitions were loaded from snapshots in the step that has just ended."""
        before, watch.loaded = watch.loaded or [None] * PARTITIONS, list(watch.replica.loaded)
        for partition, (old, new) in enumerate(zip(before, watch.loaded, strict=True)):
            if new is None or new == old:
                continue
            self.loads += 1
            self.reloads += watch.last_offset[partition] >= 0
            self.world.trace.write(
                str(watch.life), f"loads snapshot {new.snapshot_id} of {partition}/{new.next_offset}"
            )
            self.auditor.snapshots.loaded(str(watch.life), new, watch.replica.table.cut(partition))
            if new.next_offset <= watch.last_offset[partition]:
                self.complain(f"the replica of {watch.life} went back to a snapshot of {partition}/{new.next_offset}")
            elif self.broken is None:
                watch.last_offset[partition] = new.next_offset - 1
                watch.accepted[partition] = self.auditor.snapshots.accepted_below(partition, new.next_offset)

    def _replica_changed(self, watch: _Watch, change: Change) -> None:
        partition, offset = change.partition, change.offset
        watch.accepted[partition] += 1
        expected = self.auditor.change_at(partition, offset)
        if offset <= watch.last_offset[partition]:
            self.complain(f"the replica of {watch.life} went back: it took {partition}/{offset} again")
        elif expected is None or msgspec.structs.astuple(expected[1]) != msgspec.structs.astuple(change):
            self.complain(f"the replica of {watch.life} took {partition}/{offset} as nobody else did")
        elif expected[0] != watch.accepted[partition]:
            self.complain(f"the replica of {watch.life} skipped a record before {partition}/{offset}")
        watch.last_offset[partition] = offset

    def check_replicas(self) -> None:
        """Check that replicas at the log's end have its digest, and that their tables keep their invariants."""
        self.auditor.check()
        self.auditor.snapshots.check_chunks()
        truth = self.auditor.table
        digests = [truth.digest(p) for p in range(PARTITIONS)]
        for watch in self._watches.values():
            if watch.life.node is None or not watch.life.ready:
                continue
            try:
                table = watch.life.node.channel.table
                table.check_invariants()
            except InvariantError as error:
                self.complain(f"the replica of {watch.life} broke its law: {error}")
                continue
            for p in range(PARTITIONS):
                if table.next_offset(p) == truth.next_offset(p) and table.digest(p) != digests[p]:
                    self.complain(f"the replica of {watch.life} differs from the log at {p}/{truth.next_offset(p)}")

    # --- the storage

    def write(self, life: Life, namespace: str, cell: int, claim: Claim) -> None:
        """A client's write at this instant: it must succeed at a process that serves the bundle."""
        if life.host.held.get(claim.bundle) != claim.token:
            self.complain(f"{life} serves {claim.bundle}, which its host does not hold under {claim.token}")
        try:
            self.cluster.storage.increment(namespace, cell, claim.token)
        except StaleToken as error:
            self.complain(f"{life} serves {claim.bundle}, and its storage refuses it: {error}")


def _incarnation(life: Life) -> BrokerId | None:
    return life.node.incarnation.me if life.node is not None and life.node.incarnation is not None else None


def _overlap(one: Bundle, other: Bundle) -> bool:
    return one.namespace == other.namespace and one.lo < other.hi and other.lo < one.hi


ALL_CELLS = range(CELLS)
