"""Keeps the cluster's plans as documents: any broker shows them and takes an operator's steps, the leader its own.

If two act at once, the document's version decides: one of them gets Conflict.

Advice becomes a plan that waits for a decision: publishing alone changes nothing.

What never changes is written only once. Each step with a plan is a new version of its document. To repeat thousands of
moves in each would fill the topic and the memory of every broker. The moves, the advice and their origin are in the
first version that has them; the outcomes in the version that ends the run. Every reader reads the versions of a
document in order, so it has already seen what a later version omits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from loadmanager.documents.documents import Documents
from loadmanager.documents.fold import ABSENT, PLANS_TOPIC, Version
from loadmanager.errors import Conflict, Invalid, NotFound
from loadmanager.leader.plans.advice import Advice, ChangeSettings, check, check_seal, check_steps, sealed
from loadmanager.leader.plans.plan import (
    Figures,
    PieceOutcome,
    Plan,
    PlanKind,
    PlanState,
    Step,
    Verification,
    look_again,
    progress,
)
from loadmanager.leader.plans.table import OPEN, OVER, UNDOABLE, By, Facts, PlanAction, advance
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log

REASON = 200
"""How many characters of a reason go into the document's history; the plan has all of it."""


class PlanStore:
    """The store of plans, on the loop of its documents. `nonce` must differ between any two writing processes."""

    def __init__(self, log: Log, table: Callable[[], OwnershipTable], wall_ms: Callable[[], int], nonce: str) -> None:
        self._short = Shortened()
        self.documents: Documents[Plan] = Documents(
            log, PLANS_TOPIC, decode=self._short.decode, encode=self._short.encode, wall_ms=wall_ms, nonce=nonce
        )
        self.documents.on_change(self._changed)
        self._table = table
        self._wall_ms = wall_ms
        self._nonce = nonce
        self._made = 0
        self._sorted: tuple[int, list[Plan]] = (ABSENT - 1, [])

    # --- looking

    def all(self) -> list[Plan]:
        """Every plan, the newest first; do not change the list."""
        revision = self.documents.revision
        if self._sorted[0] != revision:
            found = self.documents.values().values()
            self._sorted = revision, sorted(found, key=lambda plan: (plan.proposed_ms, plan.id), reverse=True)
        return self._sorted[1]

    def open(self) -> list[Plan]:
        """Plans that may still move something, the oldest first."""
        return [plan for plan in reversed(self.all()) if plan.state in OPEN]

    def get(self, plan_id: str) -> Plan:
        """Raises NotFound."""
        return self._at(plan_id)[0]

    def progress(self, plan: Plan) -> tuple[PieceOutcome, ...]:
        """The present outcome of each of its pieces."""
        return progress(plan, self._table())

    # --- changing: each raises Conflict (another was faster, or the table of plans forbids it) and LogUnavailable

    def new_id(self) -> str:
        """An id that no plan has."""
        self._made += 1
        return blake2b(f"{self._nonce}.{self._made}".encode(), digest_size=4).hexdigest()

    async def refresh(self) -> None:
        """Read what others have written: an operator may use several brokers in turn. Raises LogUnavailable."""
        await self.documents.catch_up()

    async def add(self, plan: Plan) -> Plan:
        """Keep a new plan. Also raises RecordTooLarge."""
        await self.documents.put(plan.id, plan, seen=ABSENT, author=plan.author, reason=plan.reason[:REASON])
        return plan

    async def act(
        self,
        plan_id: str,
        action: PlanAction,
        by: By,
        author: str,
        reason: str = "",
        refused: Mapping[Bundle, str] | None = None,
    ) -> Plan:
        """Take a step with a plan. `refused`: see `progress`. Also raises NotFound."""
        plan, version = self._at(plan_id)
        facts = Facts(progress(plan, self._table(), refused), self._wall_ms())
        after = advance(plan, action, by, self._step(action, author, reason), facts)
        return await self._replace(after, version, author, f"{action}: {reason}" if reason else action.value)

    async def go_on(
        self,
        plan: Plan,
        action: PlanAction,
        author: str,
        reason: str = "",
        outcomes: tuple[PieceOutcome, ...] = (),
        noted: Mapping[str, object] | None = None,
    ) -> Plan:
        """The leader's step with a plan that has advice or is to be undone; the same write sets the fields in `noted`.

        `outcomes` come from the applier, if it knows them. Also raises Conflict if the plan has changed since it was
        read.
        """
        now, version = self._at(plan.id)
        if now != plan:
            raise Conflict(f"plan {plan.id} is {now.state} meanwhile")
        facts = Facts(outcomes or progress(plan, self._table()), self._wall_ms())
        after = advance(plan, action, By.LEADER, self._step(action, author, reason), facts)
        after = msgspec.structs.replace(after, **(noted or {}))
        return await self._replace(after, version, author, f"{action}: {reason}" if reason else action.value)

    async def delete(self, plan: Plan, author: str) -> None:
        """Delete a plan for all brokers; its history stays in the topic."""
        await self.documents.delete(plan.id, seen=self._at(plan.id)[1], author=author, reason="it is long over")

    async def verify(self, plan_id: str, author: str, verification: Verification) -> Plan:
        """Write the result of a later check into the plan. Also raises NotFound."""
        plan, version = self._at(plan_id)
        facts = Facts(look_again(plan, self._table()), self._wall_ms())
        step = self._step(PlanAction.VERIFY, author, f"{verification.holding} hold")
        after = advance(plan, PlanAction.VERIFY, By.OPERATOR, step, facts)
        after = msgspec.structs.replace(after, verification=verification)
        return await self._replace(after, version, author, PlanAction.VERIFY.value)

    def check_undoable(self, plan: Plan) -> None:
        """Raises Conflict if the plan is not over, or an open plan undoes it already."""
        advance(plan, PlanAction.UNDO, By.LEADER, self._step(PlanAction.UNDO, ""), Facts((), self._wall_ms()))
        other = next((each for each in self.open() if each.undoes == plan.id), None)
        if other is not None:
            raise Conflict(f"plan {other.id} ({other.state}) takes back {plan.id} already")

    def undone(self) -> list[tuple[Plan, Plan]]:
        """Plans that another plan has undone, with that plan, while this is not recorded yet."""
        by_id = {plan.id: plan for plan in self.all()}
        return [
            (plan, each)
            for each in by_id.values()
            if each.undoes
            and each.state in (PlanState.DONE, PlanState.VERIFIED)
            and (plan := by_id.get(each.undoes)) is not None
            and plan.state in UNDOABLE
        ]

    def _changed(self, name: str, _old: Version[Plan] | None, new: Version[Plan]) -> None:
        if new.value is None and new.readable:
            self._short.forget(name)

    def _at(self, plan_id: str) -> tuple[Plan, int]:
        found = self.documents.get(plan_id)
        if found is None or found.value is None:
            raise NotFound(f"there is no plan {plan_id}; see: loadmanager plans list")
        return found.value, found.version

    def _step(self, action: PlanAction, author: str, reason: str = "") -> Step:
        return Step(action.value, self._wall_ms(), author, reason)

    async def _replace(self, plan: Plan, seen: int, author: str, reason: str) -> Plan:
        await self.documents.put(plan.id, plan, seen=seen, author=author, reason=reason[:REASON])
        return self.get(plan.id)


OPEN_AT_MOST = 100
"""The most open plans with advice; a job that advises more than people can review has a bug."""


async def publish(store: PlanStore, advice: Advice, cluster: str, now_ms: int, present: Settings | None = None) -> Plan:
    """Propose the advice; the same advice again changes nothing. Raises Invalid, Conflict, LogUnavailable.

    `present` are the cluster's settings, if known: changes that are too large a step from them are refused.
    """
    advice = advice if advice.id else sealed(advice)
    check_seal(advice)
    check(advice, cluster, now_ms)
    if present is not None and isinstance(advice.change, ChangeSettings):
        check_steps(advice.change, present)
    await store.refresh()
    plan = Plan(
        id=advice.id,
        kind=PlanKind.ADVICE,
        state=PlanState.PROPOSED,
        proposed_ms=now_ms,
        author=advice.provenance.job,
        reason=advice.reason,
        advice=advice,
    )
    try:
        return store.get(plan.id)
    except NotFound:
        pass
    if sum(each.advice is not None and each.state not in OVER for each in store.all()) >= OPEN_AT_MOST:
        raise Conflict(f"{OPEN_AT_MOST} pieces of advice wait for a decision: approve or reject some first")
    try:
        return await store.add(plan)
    except Conflict:
        return store.get(plan.id)  # the same was published at this moment


DETAIL_CHARACTERS = 300
DETAILS_CHARACTERS = 200_000
"""The limit for all outcomes of a plan: they must fit into one record too, or the plan could never end."""

_ABSENT: dict[str, object] = {
    "moves": (),
    "before": Figures(),
    "predicted": Figures(),
    "certificate": None,
    "left_out": {},
    "advice": None,
    "held": (),
    "ruler": None,
    "baseline": None,
    "effect": None,
    "outcomes": (),
}
"""Fields that are written once, with the value that stands there before."""
_read = msgspec.json.Decoder(Plan).decode
_write = msgspec.json.Encoder().encode


class Shortened:
    """Encodes and decodes the versions of plans; one instance for each reader of the topic."""

    def __init__(self) -> None:
        self._known: defaultdict[str, dict[str, object]] = defaultdict(dict)

    def encode(self, plan: Plan) -> bytes:
        """The plan without the fields that earlier versions have."""
        known = self._known[plan.id]
        short = msgspec.structs.replace(plan, **{name: _ABSENT[name] for name in known})
        if short.outcomes:
            short = msgspec.structs.replace(short, outcomes=_brief(short.outcomes))
        return _write(short)

    def decode(self, data: bytes) -> Plan:
        """The plan with the fields of earlier versions.

        Raises msgspec.MsgspecError if the bytes are not a plan, and Invalid if the id of its advice is wrong.
        """
        plan = _read(data)
        if plan.advice is not None:
            check_seal(plan.advice)
            if plan.advice.id != plan.id:
                raise Invalid(f"plan {plan.id!r} carries advice {plan.advice.id}: both must have the same id")
        known = self._known[plan.id]
        for name, absent in _ABSENT.items():
            if name not in known and (value := getattr(plan, name)) != absent:
                known[name] = value
        return msgspec.structs.replace(plan, **known)

    def forget(self, plan_id: str) -> None:
        """The plan was deleted."""
        self._known.pop(plan_id, None)


def _brief(outcomes: Sequence[PieceOutcome]) -> tuple[PieceOutcome, ...]:
    """Outcomes with details cut to fit; thousands of failures usually share one cause."""
    each = min(DETAIL_CHARACTERS, DETAILS_CHARACTERS // len(outcomes))
    return tuple(
        outcome
        if len(outcome.detail) <= each
        else msgspec.structs.replace(outcome, detail=outcome.detail[: each - 1] + "…")
        for outcome in outcomes
    )
