"""The plans of the cluster, kept as documents: any broker shows them and takes an operator's steps, the leader takes
its own. Two who act at once are told apart by the document's version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec

from loadmanager.errors import Conflict, NotFound
from loadmanager.leader.plans.model import PieceOutcome, Plan, PlanState, Step, Verification
from loadmanager.leader.plans.progress import look_again, progress
from loadmanager.leader.plans.shortening import Shortened
from loadmanager.leader.plans.table import OPEN, UNDOABLE, By, Facts, PlanAction, advance
from loadmanager.settings.documents.model import ABSENT, PLANS_TOPIC, Version
from loadmanager.settings.documents.view import Documents
from statechannel.law.bundle import Bundle
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log

REASON = 200
"""Characters of a reason that go into the document's history; the plan has all of it."""


class PlanStore:
    """Belongs to the loop that runs its documents. `nonce` must differ between any two processes that ever write."""

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
        """Every plan, the newest first; not to be changed."""
        revision = self.documents.revision
        if self._sorted[0] != revision:
            found = self.documents.values().values()
            self._sorted = revision, sorted(found, key=lambda plan: (plan.proposed_ms, plan.id), reverse=True)
        return self._sorted[1]

    def open(self) -> list[Plan]:
        """Those from which something may still be moved, the oldest first."""
        return [plan for plan in reversed(self.all()) if plan.state in OPEN]

    def get(self, plan_id: str) -> Plan:
        """Raises NotFound."""
        return self._at(plan_id)[0]

    def progress(self, plan: Plan) -> tuple[PieceOutcome, ...]:
        """What has become of each of its moves by now."""
        return progress(plan, self._table())

    # --- changing; each raises Conflict (somebody was faster, or the table of plans forbids it), LogUnavailable

    def new_id(self) -> str:
        """One that no plan has."""
        self._made += 1
        return blake2b(f"{self._nonce}.{self._made}".encode(), digest_size=4).hexdigest()

    async def refresh(self) -> None:
        """Read what others have written by now: an operator may go from broker to broker. Raises LogUnavailable."""
        await self.documents.catch_up()

    async def add(self, plan: Plan) -> Plan:
        """Keep a new plan. Raises RecordTooLarge too."""
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
        """Take a step with a plan. `refused`: see `progress`. Raises NotFound too."""
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
        """The leader's step with a plan that has advice, or is to be undone; with what it notes, all in one write.
        `outcomes` are its pieces', where its applier knows them. Raises Conflict too if the plan has changed since it
        was read."""
        now, version = self._at(plan.id)
        if now != plan:
            raise Conflict(f"plan {plan.id} is {now.state} meanwhile")
        facts = Facts(outcomes or progress(plan, self._table()), self._wall_ms())
        after = advance(plan, action, By.LEADER, self._step(action, author, reason), facts)
        after = msgspec.structs.replace(after, **(noted or {}))
        return await self._replace(after, version, author, f"{action}: {reason}" if reason else action.value)

    async def delete(self, plan: Plan, author: str) -> None:
        """For everybody; its history stays in the topic."""
        await self.documents.delete(plan.id, seen=self._at(plan.id)[1], author=author, reason="it is long over")

    async def verify(self, plan_id: str, author: str, verification: Verification) -> Plan:
        """Note what a later look found. Raises NotFound too."""
        plan, version = self._at(plan_id)
        facts = Facts(look_again(plan, self._table()), self._wall_ms())
        step = self._step(PlanAction.VERIFY, author, f"{verification.holding} hold")
        after = advance(plan, PlanAction.VERIFY, By.OPERATOR, step, facts)
        after = msgspec.structs.replace(after, verification=verification)
        return await self._replace(after, version, author, PlanAction.VERIFY.value)

    def check_undoable(self, plan: Plan) -> None:
        """Raises Conflict if it is not over, or another plan takes it back already."""
        advance(plan, PlanAction.UNDO, By.LEADER, self._step(PlanAction.UNDO, ""), Facts((), self._wall_ms()))
        other = next((each for each in self.open() if each.undoes == plan.id), None)
        if other is not None:
            raise Conflict(f"plan {other.id} ({other.state}) is to take back {plan.id} already")

    def undone(self) -> list[tuple[Plan, Plan]]:
        """Plans that another one has taken back, and that one, where this is not noted yet."""
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
