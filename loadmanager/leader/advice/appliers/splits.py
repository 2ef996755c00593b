"""More bundles for a namespace: split bundles into equal ranges, as an administrator would; undo by merging them.

A range can be split only once. The namespace shows the result: it has either the bundle, or exactly its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from loadmanager.channel.operations import Operations
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.leader.advice.appliers.contract import Done, Lost, Obstacle, Waits, advised
from loadmanager.leader.plans.advice import Cut, CutBundles
from loadmanager.leader.plans.model import MoveStatus, PieceOutcome, Plan
from loadmanager.leader.plans.table import PlanAction
from loadmanager.model.boundaries import NoCuts, evenly
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.table import OwnershipTable

RESHAPED = "others have split or merged it meanwhile"


class SplitsApplier:
    """See `contract.Applier`."""

    def __init__(
        self,
        table: OwnershipTable,
        operations: Operations,
        settings: Callable[[], Settings],
    ) -> None:
        self._table = table
        self._operations = operations
        self._settings = settings

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """An obstacle if the namespace has other bundles by now, or would have too many."""
        change, settings = advised(plan, CutBundles), self._settings()
        known = self._table.namespace(change.namespace)
        if known is None or not known.exists:
            return Obstacle(PlanAction.REFUSE, f"there is no namespace {change.namespace}")
        count = len(known.bundles)
        if count != change.was:
            return Obstacle(PlanAction.SUPERSEDE, f"{change.namespace} has {count} bundles, and had {change.was}")
        gone = next((cut.bundle for cut in change.cuts if self._table.get(Bundle.parse(cut.bundle)) is None), None)
        if gone is not None:
            return Obstacle(PlanAction.SUPERSEDE, f"there is no bundle {gone} any more")
        more = count + sum(cut.parts - 1 for cut in change.cuts)
        most = min(float(settings.namespace_max_bundles), count * settings.advice_step_factor)
        if more > most:
            what = f"{change.namespace} would have {more} bundles instead of {count}, at most {most:.0f} are allowed"
            return Obstacle(PlanAction.REFUSE, f"out of bounds: {what} (namespace_max_bundles, advice_step_factor)")
        return None

    def noted(self, plan: Plan) -> Mapping[str, object]:  # noqa: ARG002 - see the contract
        """Nothing: the bundle's range determines its parts."""
        return {}

    async def apply(self, plan: Plan) -> Done | Waits | Lost:
        """Make one split at a time; a bundle that cannot be split, or that others have reshaped, stays as it is."""
        refusals: dict[str, str] = {}
        for cut in advised(plan, CutBundles).cuts:
            bundle = Bundle.parse(cut.bundle)
            if self._table.get(bundle) is None:
                continue
            try:
                await self._operations.split(bundle, parts=cut.parts)
            except Unavailable as error:
                return Waits(str(error))
            except (Conflict, NotFound, Invalid) as error:
                refusals[cut.bundle] = str(error)
            else:
                return Waits(f"{bundle} is cut")
        cuts = advised(plan, CutBundles).cuts
        cut_up = [cut.bundle for cut in cuts if self._is_cut(cut)]
        if not cut_up:
            return Lost(PlanAction.SUPERSEDE, "; ".join(["none of its bundles was cut", *list(refusals.values())[:1]]))
        detail = "; ".join([f"cut: {', '.join(cut_up)}", *refusals.values()])
        left = {cut.bundle: PieceOutcome(MoveStatus.SKIPPED, refusals.get(cut.bundle, RESHAPED)) for cut in cuts}
        done = PieceOutcome(MoveStatus.DONE)
        return Done(detail, tuple(done if cut.bundle in cut_up else left[cut.bundle] for cut in cuts))

    def changed_since(self, plan: Plan) -> str:
        """Not empty if others have split or merged parts of every cut."""
        return "" if any(map(self._is_cut, advised(plan, CutBundles).cuts)) else "all its cuts have been changed since"

    async def undo(self, plan: Plan) -> Done | Waits:
        """Merge the parts that still have one owner; the detail names the others, which stay."""
        left: list[str] = []
        merged = 0
        for cut in filter(self._is_cut, advised(plan, CutBundles).cuts):
            try:
                await self._operations.merge(_parts(cut))
                merged += 1
            except Unavailable as error:
                return Waits(str(error))
            except (Conflict, NotFound, Invalid) as error:
                left.append(f"{cut.bundle} stays cut: {error}")
        return Done("; ".join([f"{merged} bundles are whole again", *left]))

    def _is_cut(self, cut: Cut) -> bool:
        return all(self._table.get(part) is not None for part in _parts(cut))


def _parts(cut: Cut) -> list[Bundle]:
    """The bundles that an even cut makes."""
    bundle = Bundle.parse(cut.bundle)
    cuts = evenly(bundle, cut.parts)
    edges = [bundle.lo, *(() if isinstance(cuts, NoCuts) else cuts), bundle.hi]
    return [Bundle(bundle.namespace, lo, hi) for lo, hi in pairwise(edges)]
