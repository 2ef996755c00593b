"""The advice of the cluster, as one broker reads it: each piece with what was said about it and what became of it.

Decides which word of a leader counts (`Progress.rank`); nothing else. Anybody may read at any broker; who writes what
says `model.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from loadmanager.errors import Conflict, NotFound, Unavailable
from loadmanager.leader.advice.bounds import check, check_steps
from loadmanager.leader.advice.codec import check_seal, decode, encode, key_of, sealed
from loadmanager.leader.advice.model import (
    ADVICE_TOPIC,
    Advice,
    ChangeSettings,
    Progress,
    Review,
    State,
    Value,
    Verdict,
)
from loadmanager.leader.advice.states import OVER, check_verdict, state_of
from loadmanager.settings import Settings
from statechannel.errors import LogError
from statechannel.ports import Log
from statechannel.runtime.view import TableView

OPEN_AT_MOST = 100
"""Advice that is not over; a job that advises more than people can look at is a mistake."""
READ_TIMEOUT_S = 10.0
AGAIN_S = 1.0
_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """A piece of advice, the last word of an administrator, and the leader's."""

    advice: Advice
    review: Review | None
    progress: Progress | None

    @property
    def id(self) -> str:
        return self.advice.id

    @property
    def state(self) -> State:
        return state_of(self.progress, self.review)


class AdviceBoard:
    """`run()` for as long as it is needed; it opens the topic by itself, when the broker acts already."""

    def __init__(self, log: Log, cluster: str, wall_ms: Callable[[], int]) -> None:
        self.cluster = cluster
        self.wall_ms = wall_ms
        self._view: TableView[Value] = TableView(
            log, ADVICE_TOPIC, decode=decode, encode=encode, clock_ms=wall_ms, partitions=1
        )
        self._progress: dict[str, Progress] = {}
        self._view.on_change(self._read)

    # --- reading

    @property
    def skipped(self) -> int:
        """Values that could not be read, since the start."""
        return self._view.skipped

    def all(self) -> list[Entry]:
        """All advice, the newest data first; empty until the topic has been read."""
        found = (self._entry(value) for key, value in self._view.items() if _is_advice(key, value))
        return sorted(found, key=lambda e: (e.advice.provenance.data_to_ms, e.id), reverse=True)

    def get(self, advice_id: str) -> Entry:
        """Raises NotFound."""
        key = f"advice/{advice_id}"
        value = self._view.get(key)
        if not isinstance(value, Advice) or not _is_advice(key, value):
            raise NotFound(f"there is no advice {advice_id}; see: loadmanager advice list")
        return self._entry(value)

    async def refresh(self) -> None:
        """Read all that anybody has written by now. Raises LogUnavailable, Unavailable."""
        if not await self._view.wait_ready(READ_TIMEOUT_S):
            raise Unavailable("the topic of advice is not read yet: try again")
        await self._view.catch_up()

    def _entry(self, value: Value) -> Entry:
        assert isinstance(value, Advice)
        review = self._view.get(f"review/{value.id}")
        said = review if isinstance(review, Review) and review.id == value.id else None
        return Entry(value, said, self._progress.get(value.id))

    def _read(self, key: str, _old: Value | None, new: Value | None) -> None:
        kind, _, advice_id = key.partition("/")
        if kind != "progress":
            return
        if new is None:
            self._progress.pop(advice_id, None)
        elif isinstance(new, Progress) and new.id == advice_id:
            held = self._progress.get(advice_id)
            if held is None or new.rank > held.rank:
                self._progress[advice_id] = new

    # --- writing

    async def publish(self, advice: Advice, present: Settings | None = None) -> Entry:
        """Propose it; the same advice again changes nothing. Raises Invalid, Conflict, LogUnavailable, Unavailable.

        `present` are the cluster's settings, where they are known: steps from these that are too large are refused.
        """
        advice = advice if advice.id else sealed(advice)
        check_seal(advice)
        check(advice, self.cluster, self.wall_ms())
        if present is not None and isinstance(advice.change, ChangeSettings):
            check_steps(advice.change, present)
        encode(advice)
        await self.refresh()
        entries = self.all()
        if all(entry.id != advice.id for entry in entries):
            if sum(entry.state not in OVER for entry in entries) >= OPEN_AT_MOST:
                raise Conflict(f"{OPEN_AT_MOST} pieces of advice wait for a decision: approve or reject some first")
            await self._put(advice)
        return self.get(advice.id)

    async def review(self, advice_id: str, verdict: Verdict, author: str, reason: str) -> Entry:
        """Say what is to become of it. Raises NotFound, Conflict (not in this state, or somebody said otherwise at the
        same moment), LogUnavailable, Unavailable."""
        await self.refresh()
        entry = self.get(advice_id)
        check_verdict(advice_id, entry.state, verdict)
        said = Review(advice_id, verdict, author, self.wall_ms(), reason)
        await self._put(said)
        entry = self.get(advice_id)
        if entry.review != said and entry.review is not None:
            other = entry.review
            raise Conflict(
                f"{other.author} said {other.verdict} of advice {advice_id} at the same moment, which counts"
            )
        return entry

    async def advance(self, progress: Progress) -> bool:
        """The leader's word; whether it counts, or a later leader's does. Raises LogUnavailable."""
        await self._put(progress)
        return self._progress.get(progress.id) == progress

    async def repair(self, advice_id: str) -> None:
        """Write the leader's word again where a deposed one's stands in the topic. Raises LogUnavailable."""
        held = self._progress.get(advice_id)
        if held is not None and self._view.get(key_of(held)) != held:
            await self._put(held)

    async def forget(self, advice_id: str) -> None:
        """Delete all of it, for everybody. Raises LogUnavailable."""
        for kind in ("advice", "review", "progress"):
            await self._view.delete(f"{kind}/{advice_id}")

    async def _put(self, value: Value) -> None:
        await self._view.put(key_of(value), value)
        await self._view.catch_up()

    # --- running

    async def run(self) -> None:
        """Read until cancelled; a log that does not answer is asked again."""
        while True:
            try:
                await self._view.start()
                break
            except (LogError, TimeoutError) as error:
                _log.warning("advice is not read yet: %s", error)
                await asyncio.sleep(AGAIN_S)
        await self._view.run()


def _is_advice(key: str, value: Value) -> bool:
    return isinstance(value, Advice) and key == key_of(value)
