"""Bugs of the protocol, put in on purpose: each takes away one thing on which "at most one owner" rests.

Each is a function that patches the classes in this process; the tests show that the simulation notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadmanager.broker import node as incarnation_module
from loadmanager.broker.agent_core import AgentCore, Serve
from loadmanager.broker.proving import Prover
from loadmanager.broker.serving import Serving
from loadmanager.leader.core import REVOCABLE, LeaderCore, Place, Revoke
from loadmanager.leader.service import DutyExecutor
from loadmanager.model.cluster import ClusterModel
from loadmanager.strategies.rebalancing.decision import Decision, Move
from loadmanager.strategies.rebalancing.plan.planner import Plan
from statechannel.law import table, transitions
from statechannel.law.indices import Flight
from statechannel.law.record import Action, Record
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import Row, State, Then, Who
from statechannel.runtime.channel import Channel, Replica
from statechannel.runtime.core import ChannelCore
from tests.simulator.simulated_coordination import SimulatedCoordinationServer

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]

BUGS: dict[str, Bug] = {}


def bug(function: Bug) -> Bug:
    BUGS[function.__name__] = function
    return function


# --- the law


@bug
def any_broker_may_release(patch: Patch) -> None:
    _change_rows(patch, lambda row: row.action is Action.RELEASE, by=frozenset(Who))


@bug
def any_broker_may_say_ready(patch: Patch) -> None:
    _change_rows(patch, lambda row: row.action is Action.READY, by=frozenset(Who))


@bug
def any_broker_may_create_children(patch: Patch) -> None:
    """The children then stay with the holder, so only their boundaries are a stranger's: harmless by construction."""
    rows = {
        action: msgspec.structs.replace(row, by=frozenset(Who)) if action is Action.CREATE else row
        for action, row in transitions._RESHAPES.items()
    }
    patch.setattr(transitions, "_RESHAPES", rows)


@bug
def a_release_to_nobody_may_assign(patch: Patch) -> None:
    _change_rows(patch, lambda row: row.action is Action.RELEASE, guard=None)


@bug
def revisions_are_not_checked(patch: Patch) -> None:
    judge, present = OwnershipTable._judge_one, table._present

    def judge_one(self: Any, partition: int, offset: int, record: Record, subject: Any) -> Any:
        entry = self.get(subject.bundle)
        return judge(self, partition, offset, record, _as_seen(subject, entry))

    def present_one(known: Any, record: Record, index: int, row: Any) -> Any:
        subjects = tuple(_as_seen(s, known.get(s.bundle)) for s in record.subjects)
        return present(known, msgspec.structs.replace(record, subjects=subjects), index, row)

    patch.setattr(OwnershipTable, "_judge_one", judge_one)
    patch.setattr(table, "_present", present_one)


@bug
def epochs_are_not_checked(patch: Patch) -> None:
    patch.setattr(OwnershipTable, "_check_lead", lambda self, partition, record: None)


@bug
def owners_are_matched_by_name_in_the_law(patch: Patch) -> None:
    def relations(record: Record, holder: Any, target: Any) -> Any:
        holds = holder is not None and record.actor.name == holder.name
        is_target = target is not None and record.actor.name == target.name
        return transitions._RELATIONS[record.role, holds, is_target]

    for module in (transitions, table):
        patch.setattr(module, "relations", relations)


@bug
def the_token_stays_when_the_holder_changes(patch: Patch) -> None:
    _change_rows(patch, lambda row: row.then is Then.HOLD_TARGET, fences=False)


# --- the replica


@bug
def a_replica_goes_back(patch: Patch) -> None:
    """Every few seconds it reads the log from its beginning again, and acts on what it finds there."""

    async def follow(self: Any) -> None:
        while True:
            self.table.__init__(self.table.partitions)
            try:
                async with asyncio.timeout(4):
                    async for batch in self.log.tail(self.topic, [0] * self.table.partitions):
                        self._apply_batch(batch)
                        await asyncio.sleep(0)
            except TimeoutError:
                continue

    patch.setattr(Replica, "follow", follow)


@bug
def a_late_copy_is_taken_for_the_verdict(patch: Patch) -> None:
    settle = ChannelCore._settle

    def settle_last(self: Any, record_id: str, verdict: Any) -> Any:
        if record_id in self._late:
            self._late[record_id] = (self._late[record_id][0], verdict)
        return settle(self, record_id, verdict)

    patch.setattr(ChannelCore, "_settle", settle_last)


# --- the proofs


@bug
def proofs_count_from_the_answer(patch: Patch) -> None:
    prepare = Prover.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        prepare(self, *args, **options)
        self._proofs = _FromTheAnswer(self._proofs, self._clock.now_s)

    patch.setattr(Prover, "__init__", init)


@bug
def channel_proofs_are_not_read_back(patch: Patch) -> None:
    async def append_only(self: Any, partition: int, actor: Any) -> bool:
        publishing = asyncio.ensure_future(self.publish(Record("", Action.NOOP, actor), partition))
        publishing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return True

    patch.setattr(Channel, "read_back", append_only)


@bug
def incarnations_are_not_checked(patch: Patch) -> None:
    patch.setattr(SimulatedCoordinationServer, "_check_current", lambda self, broker: None)


# --- the leader


@bug
def the_leader_does_not_wait(patch: Patch) -> None:
    settings = incarnation_module._term_settings

    def hasty(given: Any) -> Any:
        term = settings(given)
        return msgspec.structs.replace(term, core=msgspec.structs.replace(term.core, margin_s=-term.core.validity_s))

    patch.setattr(incarnation_module, "_term_settings", hasty)


@bug
def the_leader_does_not_raise(patch: Patch) -> None:
    async def claim_to_have_raised(self: Any, duty: Any) -> None:
        await asyncio.sleep(0)
        self._core.raised(duty.holder, self._clock_s())
        self._wake()

    patch.setattr(DutyExecutor, "_raise", claim_to_have_raised)


@bug
def the_leader_does_not_revoke(patch: Patch) -> None:
    """It raises, waits, and releases in the dead holder's place; no record closes the channel proofs before."""
    sweep, first_looks = LeaderCore._swept, dict[Any, float]()

    def swept(self: Any, table: Any) -> Any:
        for holder in table.holders():
            if self.death_of(holder, self._view) is not None:
                for entry in [table.get(bundle) for bundle in table.held_by(holder)]:
                    flight = Flight(
                        table.partition_of(entry.bundle.namespace), entry.revision, State.REVOKING, holder, None
                    )
                    self._seen_s[flight] = first_looks.setdefault((id(self), entry.bundle, flight), self._view.now_s)
                    if entry.state in REVOCABLE and self._is_placed(flight, 1):
                        self._due.append(Place(((entry.bundle, entry.revision),), revoked=True))
        yield from sweep(self, table)
        self._due[:] = [duty for duty in self._due if not isinstance(duty, Revoke)]

    patch.setattr(LeaderCore, "_swept", swept)
    _add_rows(
        patch,
        [
            row
            for state in REVOCABLE
            for row in (
                Row(state, Action.RELEASE, frozenset({Who.LEADER}), State.ASSIGNING, Then.HOLD_TO, "bug",
                    transitions.to_is_given, fences=True),
                Row(state, Action.RELEASE, frozenset({Who.LEADER}), State.UNASSIGNED, Then.NOBODY, "bug",
                    transitions.to_is_none),
            )
        ],
    )  # fmt: skip


# --- the agent


@bug
def the_agent_serves_before_it_has_acquired(patch: Patch) -> None:
    take = AgentCore._take

    def serve_at_once(self: Any, bundle: Any, entry: Any, at_host: Any) -> Any:
        effects = take(self, bundle, entry, at_host)
        return [Serve(bundle, entry.token), *effects] if effects else effects

    patch.setattr(AgentCore, "_take", serve_at_once)


@bug
def the_agent_serves_until_it_has_released(patch: Patch) -> None:
    give = AgentCore._give
    patch.setattr(AgentCore, "_give", lambda self, *seen: [e for e in give(self, *seen) if type(e).__name__ != "Stop"])


@bug
def the_agent_matches_owners_by_name(patch: Patch) -> None:
    reconcile = AgentCore.reconcile

    def by_name(self: Any, bundle: Any, entry: Any, instead: Any = ()) -> Any:
        if entry is not None and entry.holder is not None and entry.holder.name == self.me.name:
            entry = msgspec.structs.replace(entry, holder=self.me)
        return reconcile(self, bundle, entry, instead)

    patch.setattr(AgentCore, "reconcile", by_name)


@bug
def the_next_incarnation_keeps_the_claims(patch: Patch) -> None:
    def adopt(self: Any, proofs: Any) -> None:
        self._proofs = proofs

    patch.setattr(Serving, "adopt", adopt)
    patch.setattr(Serving, "end_all", lambda self: None)
    patch.setattr(AgentCore, "fence", lambda self: [])


@bug
def decisions_forget_the_rest_times(patch: Patch) -> None:
    patch.setattr(Plan, "decide", _restlessly)


# --- how they are put in


def _restlessly(self: Any, model: ClusterModel, settings: Any, memory: Any = None) -> Decision:
    """Moves the first bundle that may move to another broker, each round."""
    for row, bundle in enumerate(model.bundles.ids):
        others = [broker for to, broker in enumerate(model.brokers.ids) if to != model.bundles.owner[row]]
        if others and not model.bundles.in_flight[row]:
            source = model.brokers.ids[model.bundles.owner[row]]
            return Decision((Move(bundle, source, others[0], "restless"),), "restless")
    return Decision((), "nothing there")


class _FromTheAnswer:
    """Proofs that count from when the answer came."""

    def __init__(self, proofs: Any, clock_s: Callable[[], float]) -> None:
        self._proofs = proofs
        self._clock_s = clock_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proofs, name)

    def coordination_proved(self, asked_s: float) -> None:
        self._proofs.coordination_proved(self._clock_s())

    def channel_proved(self, partition: int, asked_s: float) -> None:
        self._proofs.channel_proved(partition, self._clock_s())


def _as_seen(subject: Any, entry: Any) -> Any:
    return subject if entry is None else msgspec.structs.replace(subject, seen=entry.revision)


def _change_rows(patch: Patch, chosen: Callable[[Row], bool], **changes: Any) -> None:
    rows = {
        key: tuple(msgspec.structs.replace(row, **changes) if chosen(row) else row for row in known)
        for key, known in transitions._ROWS.items()
    }
    patch.setattr(transitions, "_ROWS", rows)


def _add_rows(patch: Patch, added: list[Row]) -> None:
    rows = dict(transitions._ROWS)
    for row in added:
        rows[row.state, row.action] = (row, *rows[row.state, row.action])
    patch.setattr(transitions, "_ROWS", rows)
