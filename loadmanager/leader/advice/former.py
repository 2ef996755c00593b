"""Turns advice in the topic `advice`, where earlier releases kept it, into plans, once.

Advice that waits for a decision goes on waiting, approved or not. Advice under way stays as it is, with a note. No
content of the topic can stop a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec

from loadmanager.errors import Conflict, Invalid
from loadmanager.leader.advice.publishing import publish
from loadmanager.leader.plans.advice import Advice
from loadmanager.leader.plans.model import PlanState
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.plans.table import By, PlanAction
from statechannel.ports import Log, LogEntry, Payload, TopicSpec

ADVICE_TOPIC = "advice"


class Review(msgspec.Struct, frozen=True, tag="review"):
    """An administrator's last decision."""

    id: str
    verdict: str
    author: str
    reason: str = ""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far a leader got."""

    id: str
    epoch: int
    number: int
    state: str


_read = msgspec.json.Decoder(Advice | Review | Progress).decode


async def carry_over(
    log: Log, plans: PlanStore, cluster: str, wall_ms: Callable[[], int], note: Callable[[str], None]
) -> None:
    """Make plans of the topic's advice, and empty the topic. Raises LogUnavailable; can be repeated."""
    await log.open_topic(TopicSpec(ADVICE_TOPIC, 1, compacted=True))
    entries = await _entries(log)
    reviews: dict[str, Review] = {}
    progress: dict[str, Progress] = {}
    advice: dict[str, Advice] = {}
    for entry in entries:
        try:
            value = _read(entry.value or b"")
        except (ValueError, RecursionError):  # deleted, foreign, or of a newer format
            continue
        match value:
            case Advice():
                advice[value.id] = value
            case Review():
                reviews[value.id] = value
            case Progress() if (held := progress.get(value.id)) is None or (
                (held.epoch, held.number) < (value.epoch, value.number)
            ):
                progress[value.id] = value
            case _:
                pass
    for each in advice.values():
        review, went = reviews.get(each.id), progress.get(each.id)
        if went is not None and went.state in ("applying", "measuring", "withdrawing"):
            note(f"advice {each.id} was {went.state} under an earlier release: its changes stay, and are not measured")
        elif went is None and (review is None or review.verdict == "approve"):
            await _carry(plans, each, review, cluster, wall_ms(), note)
    written = {entry.key: entry.value for entry in entries if entry.key is not None}
    gone = [Payload(key, None) for key, value in written.items() if value is not None]
    if gone:
        await log.append(ADVICE_TOPIC, 0, gone)


async def _carry(
    plans: PlanStore, advice: Advice, review: Review | None, cluster: str, now_ms: int, note: Callable[[str], None]
) -> None:
    try:
        plan = await publish(plans, advice, cluster, now_ms)
        if review is not None and plan.state is PlanState.PROPOSED:
            await plans.act(plan.id, PlanAction.APPROVE, By.OPERATOR, review.author, review.reason)
    except (Invalid, Conflict) as error:
        note(f"advice {advice.id} of an earlier release becomes no plan: {error}")
    else:
        note(f"advice {advice.id} of an earlier release is plan {advice.id}")


async def _entries(log: Log) -> Sequence[LogEntry]:
    batches = log.read(ADVICE_TOPIC, 0, 0)
    async with aclosing(batches):
        return [entry async for batch in batches for entry in batch]
