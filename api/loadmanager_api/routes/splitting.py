"""`/v1/splitting`: what this broker decided about splits and merges, and why the rest stays as it is."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Query

from loadmanager.errors import Conflict
from loadmanager.leader.quarantine.evidence import LOCKED_ABOVE, Evidence
from loadmanager_api.openapi import answers
from loadmanager_api.routing import Acting, ControlRouter, TheNode
from loadmanager_api.splitting_schemas import BundleSplittingShown, EventShown, KeptShown, SplittingShown, SuspectShown
from statechannel.law.bundle import Bundle

router = ControlRouter(prefix="/v1/splitting", tags=["splitting"])


@router.get("")
async def show_splitting(
    node: TheNode,
    acting: Acting,
    limit: Annotated[
        int, Query(ge=1, le=1_000, description="most bundles above a limit, most suspects, and most events")
    ] = 100,
) -> SplittingShown:
    """Show this broker's last look at its own bundles, and what happened lately, newest first."""
    journal = acting.splitting.journal
    splits, merges = journal.split_decision, journal.merge_decision
    kept = splits.kept if splits is not None else ()
    return SplittingShown(
        broker=str(acting.me),
        looks=journal.looks,
        looked_ms=journal.looked_ms,
        idle=journal.idle,
        not_split={rule.value: count for rule, count in (splits.counts if splits is not None else {}).items()},
        not_merged={rule.value: count for rule, count in (merges.counts if merges is not None else {}).items()},
        above_limits=[KeptShown(bundle=str(k.bundle), rule=k.rule, detail=k.detail) for k in kept[:limit]],
        suspects=[_suspect(found) for found in islice(node.quarantine.rows(), limit)],
        events=[
            EventShown(at_ms=event.at_ms, what=event.what, bundle=event.bundle, why=event.why)
            for event in list(journal.events)[: -limit - 1 : -1]
        ],
    )


@router.get("/{tenant}/{namespace}/{hash_range}", responses=answers(404, 409, 412))
async def explain_splitting(acting: Acting, tenant: str, namespace: str, hash_range: str) -> BundleSplittingShown:
    """Explain why a bundle is not split and not merged now. 409 at any other broker than its owner."""
    entry = acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", hash_range))
    found = acting.splitting.reshaper.explain(entry.bundle)
    if found is None:
        whose = f"ask {entry.holder.name}, which holds it" if entry.holder is not None else "nobody holds it"
        raise Conflict(f"each broker judges its own bundles, and {entry.bundle} is not held here: {whose}")
    return BundleSplittingShown(bundle=str(entry.bundle), split=found[0], merge=found[1])


def _suspect(found: Evidence) -> SuspectShown:
    return SuspectShown(
        bundle=str(found.bundle),
        why=str(found),
        odds=round(found.odds, 3),
        needed=LOCKED_ABOVE,
        evidence=[str(death) for death in found.deaths],
    )
