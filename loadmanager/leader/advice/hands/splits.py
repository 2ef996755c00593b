"""More bundles for a namespace: bundles cut into equal ranges, as an administrator would; undone by merging them again.

A range is cut once by its nature. What became of it says the namespace: the bundle is there, or exactly its parts are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from loadmanager.channel.operations import Operations
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.leader.advice.hands.contract import Done, Lost, Obstacle, Waits
from loadmanager.leader.advice.model import Advice, Cut, CutBundles, Held, Progress
from loadmanager.leader.advice.states import Action
from loadmanager.model.boundaries import NoCuts, evenly
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.table import OwnershipTable


class SplitsHand:
    """See `contract.Hand`."""

    def __init__(
        self,
        table: OwnershipTable,
        operations: Operations,
        settings: Callable[[], Settings],
        wall_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._operations = operations
        self._settings = settings
        self._wall_ms = wall_ms

    def obstacle(self, advice: Advice) -> Obstacle | None:
        """There are other bundles by now, or there would be too many."""
        change, settings = _of(advice), self._settings()
        known = self._table.namespace(change.namespace)
        if known is None or not known.exists:
            return Obstacle(Action.REFUSE, f"there is no namespace {change.namespace}")
        count = len(known.bundles)
        if count != change.was:
            return Obstacle(Action.SUPERSEDE, f"{change.namespace} has {count} bundles, and had {change.was}")
        gone = next((cut.bundle for cut in change.cuts if self._table.get(Bundle.parse(cut.bundle)) is None), None)
        if gone is not None:
            return Obstacle(Action.SUPERSEDE, f"there is no bundle {gone} any more")
        more = count + sum(cut.parts - 1 for cut in change.cuts)
        most = min(float(settings.namespace_max_bundles), count * settings.advice_step_factor)
        if more > most:
            what = f"{change.namespace} would have {more} bundles instead of {count}, at most {most:.0f} are allowed"
            return Obstacle(Action.REFUSE, f"out of bounds: {what} (namespace_max_bundles, advice_step_factor)")
        return None

    def before(self, advice: Advice) -> tuple[Held, ...]:
        """The bundles and their revisions."""
        entries = ((cut.bundle, self._table.get(Bundle.parse(cut.bundle))) for cut in _of(advice).cuts)
        return tuple(Held(name, entry.revision) for name, entry in entries if entry is not None)

    async def apply(self, advice: Advice, progress: Progress) -> Done | Waits | Lost:  # noqa: ARG002 - see the contract
        """One cut at a time; what cannot be cut, or others have reshaped meanwhile, stays."""
        refusals: list[str] = []
        for cut in _of(advice).cuts:
            bundle = Bundle.parse(cut.bundle)
            if self._table.get(bundle) is None:
                continue
            try:
                await self._operations.split(bundle, parts=cut.parts)
            except Unavailable as error:
                return Waits(str(error))
            except (Conflict, NotFound, Invalid) as error:
                refusals.append(str(error))
            else:
                return Waits(f"{bundle} is cut")
        cut_up = [cut.bundle for cut in _of(advice).cuts if self._is_cut(cut)]
        if not cut_up:
            return Lost(Action.SUPERSEDE, "; ".join(["none of its bundles was cut", *refusals[:1]]))
        return Done(self._wall_ms(), "; ".join([f"cut: {', '.join(cut_up)}", *refusals]))

    def changed_since(self, advice: Advice, progress: Progress) -> str:  # noqa: ARG002 - see the contract
        """All parts are cut further, or glued together."""
        return "" if any(map(self._is_cut, _of(advice).cuts)) else "none of its bundles is as it was cut"

    async def undo(self, advice: Advice, progress: Progress) -> Done | Waits:  # noqa: ARG002 - see the contract
        """Merges the parts that still are at one owner; the others stay, and are named."""
        left: list[str] = []
        merged = 0
        for cut in filter(self._is_cut, _of(advice).cuts):
            try:
                await self._operations.merge(_parts(cut))
                merged += 1
            except Unavailable as error:
                return Waits(str(error))
            except (Conflict, NotFound, Invalid) as error:
                left.append(f"{cut.bundle} stays cut: {error}")
        return Done(self._wall_ms(), "; ".join([f"{merged} bundles are whole again", *left]))

    def _is_cut(self, cut: Cut) -> bool:
        return all(self._table.get(part) is not None for part in _parts(cut))


def _of(advice: Advice) -> CutBundles:
    assert isinstance(advice.change, CutBundles)
    return advice.change


def _parts(cut: Cut) -> list[Bundle]:
    """The bundles that an even cut makes."""
    bundle = Bundle.parse(cut.bundle)
    cuts = evenly(bundle, cut.parts)
    edges = [bundle.lo, *(() if isinstance(cuts, NoCuts) else cuts), bundle.hi]
    return [Bundle(bundle.namespace, lo, hi) for lo, hi in pairwise(edges)]
