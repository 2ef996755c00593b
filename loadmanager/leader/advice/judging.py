"""What the leader does about the cluster's advice now: which pieces end by themselves, which one is under way, and
which ones may be begun. Pure; what hands find (bounds, changes by others) comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmanager.leader.advice.board import Entry
from loadmanager.leader.advice.bounds import CLOCKS_APART_MS
from loadmanager.leader.advice.model import MoveBundles, State
from loadmanager.leader.advice.states import OVER, UNDECIDED, UNDER_WAY, Action

KEPT_MS = 30 * 86_400_000
"""How long advice stays in the topic once it is over: longer than any advice lives, so it cannot come again."""
GIVEN_UP = OVER - {State.KEPT}


class Ending(msgspec.Struct, frozen=True):
    """A piece of advice that is over by itself, how, and why."""

    entry: Entry
    action: Action
    reason: str


class Turn(msgspec.Struct, frozen=True):
    """What there is to do, in this order: write the endings, go on with what is under way; else begin one of `next`."""

    endings: tuple[Ending, ...]
    under_way: tuple[Entry, ...]
    """One, but for what another leader began at the same moment: the next one waits for all of them."""
    next: tuple[Entry, ...]
    """That may be applied as far as approval and time go, the most urgent first."""
    forgotten: tuple[Entry, ...]
    """Over for so long that nobody asks."""


def turn(entries: Sequence[Entry], now_ms: int, *, enabled: bool) -> Turn:
    """For the advice as it stands; `enabled`: it is followed without approval."""
    endings = [ending for entry in entries if (ending := _ending(entry, entries, now_ms)) is not None]
    ended = {ending.entry.id for ending in endings}
    may = [entry for entry in entries if entry.id not in ended and _may_begin(entry, now_ms, enabled=enabled)]
    return Turn(
        tuple(endings),
        tuple(entry for entry in entries if entry.state in UNDER_WAY),
        tuple(sorted(may, key=lambda entry: (_until_ms(entry), entry.id))),
        tuple(entry for entry in entries if _is_forgotten(entry, now_ms)),
    )


def waits_for(entry: Entry, now_ms: int, *, enabled: bool) -> str:
    """What has to happen before undecided advice can be applied, as far as approval and time go."""
    if entry.state is State.PROPOSED and not enabled:
        return "it waits for approval"
    change = entry.advice.change
    if isinstance(change, MoveBundles) and now_ms < change.not_before_ms:
        return f"it is not to be applied for another {(change.not_before_ms - now_ms) / 1000:.0f} s"
    return ""


def _ending(entry: Entry, entries: Sequence[Entry], now_ms: int) -> Ending | None:
    if entry.state not in UNDECIDED:
        return None
    if now_ms >= _until_ms(entry):
        return Ending(entry, Action.EXPIRE, "its time is over, and nobody had it applied")
    newer = next((other for other in entries if _replaces(other, entry, now_ms)), None)
    if newer is not None:
        return Ending(entry, Action.SUPERSEDE, f"advice {newer.id} is of newer data, and about the same")
    return None


def _replaces(other: Entry, entry: Entry, now_ms: int) -> bool:
    newer = entry.advice.provenance.data_to_ms < other.advice.provenance.data_to_ms <= now_ms + CLOCKS_APART_MS
    return newer and other.state not in GIVEN_UP and bool(other.advice.targets & entry.advice.targets)


def _may_begin(entry: Entry, now_ms: int, *, enabled: bool) -> bool:
    return entry.state in UNDECIDED and not waits_for(entry, now_ms, enabled=enabled)


def _until_ms(entry: Entry) -> int:
    change = entry.advice.change
    last_ms = entry.advice.expires_ms
    return min(last_ms, change.not_after_ms) if isinstance(change, MoveBundles) else last_ms


def _is_forgotten(entry: Entry, now_ms: int) -> bool:
    if entry.state not in OVER:
        return False
    said_ms = 0 if entry.review is None else entry.review.at_ms
    done_ms = 0 if entry.progress is None else entry.progress.at_ms
    return now_ms - max(said_ms, done_ms, entry.advice.expires_ms) > KEPT_MS
