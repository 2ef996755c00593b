"""The leader's work on advice, while a term lasts: what is approved is applied, measured, and kept or withdrawn.

Decides nothing itself: `judging.py` says what there is to do, hands do it, `effect.py` says what came of it. Each step
is written to the topic before and after the act; all that the next leader needs stands there and in the thing itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from loadmanager.errors import Conflict, Invalid, LoadManagerError
from loadmanager.leader.advice.board import AdviceBoard, Entry
from loadmanager.leader.advice.bounds import CLOCKS_APART_MS, check
from loadmanager.leader.advice.counts import AdviceCounts
from loadmanager.leader.advice.effect import MIN_ROUNDS, effect, measured, period, settling_ms, told
from loadmanager.leader.advice.hands.contract import AUTOMATIC, Done, Hand, Lost, Obstacle, Waits
from loadmanager.leader.advice.judging import turn, waits_for
from loadmanager.leader.advice.measured_rounds import Rounds, ruler_of
from loadmanager.leader.advice.model import Effect, MoveBundles, Period, Progress, Ruler, State, Step
from loadmanager.leader.advice.states import UNDECIDED, UNDER_WAY, Action, after
from loadmanager.settings import Settings
from statechannel.errors import StateChannelError

LOOK_S = 0.5
CLOCK_BEHIND_MS = 86_400_000
"""Data that end later than this by a leader's clock are of the future by anybody's."""
LOOKS = 20
"""How often within the measured time the rounds are counted, where there are too few."""
_log = logging.getLogger(__name__)


class Following:
    """Follows the advice of a board in one term. `tick` is called again and again; `epoch` is the term's."""

    def __init__(
        self,
        board: AdviceBoard,
        hands: Mapping[str, Hand],
        rounds: Rounds,
        settings: Callable[[], Settings],
        held_up: Callable[[], str],
        epoch: int,
        leader: str,
        note: Callable[[str], None],
        counts: AdviceCounts,
    ) -> None:
        self.waiting: dict[str, str] = {}
        """Why advice is not further on, by id; this leader's knowledge."""
        self._board = board
        self._hands = hands
        self._rounds = rounds
        self._settings = settings
        self._held_up = held_up
        self._epoch = epoch
        self._leader = leader
        self._note = note
        self._counts = counts
        self._looked_ms: dict[str, int] = {}

    async def follow(self) -> None:
        """Until cancelled. Nothing that goes wrong here ends the term."""
        await self._survive(self._board.refresh())
        while True:
            await asyncio.sleep(LOOK_S)
            await self._survive(self.tick())

    async def _survive(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (StateChannelError, LoadManagerError, TimeoutError) as error:
            self._note(f"the look at advice was cut short: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the term
            _log.exception("the look at advice failed")
            self._counts.failures += 1
            self._note(f"the look at advice failed: {error!r}")

    async def tick(self) -> None:
        """One look at all advice, and at most one act. Raises LogUnavailable."""
        now_ms, enabled = self._board.wall_ms(), self._settings().advice_apply
        entries = self._board.all()
        self.waiting = {entry.id: why for entry in entries if (why := self.waiting.get(entry.id))}
        late = {
            each.entry.id for each in turn(entries, now_ms, enabled=enabled).endings if each.action is Action.EXPIRE
        }
        ended: set[str] = set()
        for entry in entries:
            await self._board.repair(entry.id)
            if entry.state in UNDECIDED and entry.id not in late and await self._is_obsolete(entry):
                ended.add(entry.id)
        # what is refused replaces nothing, so it is known first
        this = turn(self._board.all() if ended else entries, now_ms, enabled=enabled)
        for ending in this.endings:
            if ending.entry.id not in ended:
                await self._advance(ending.entry, ending.action, self._leader, ending.reason)
                ended.add(ending.entry.id)
        for entry in this.under_way:
            await self._go_on(entry)
        for entry in this.next:
            if entry.id in ended:
                continue
            if this.under_way:
                self._waits(entry, f"advice {this.under_way[0].id} is {this.under_way[0].state}: one at a time")
            elif await self._begin(entry):
                break
        for entry in this.forgotten:
            await self._board.forget(entry.id)

    # --- beginning

    async def _is_obsolete(self, entry: Entry) -> bool:
        """Whether it can never be applied any more, which is written down; else why it waits is noted."""
        now_ms, hand = self._board.wall_ms(), self._hands[entry.advice.kind]
        ahead_ms = entry.advice.provenance.data_to_ms - now_ms
        found: Obstacle | None
        try:
            check(entry.advice, self._board.cluster, now_ms + (ahead_ms if 0 < ahead_ms <= CLOCK_BEHIND_MS else 0))
            found = self._not_yet(entry, now_ms) or hand.obstacle(entry.advice)
        except Invalid as error:
            found = Obstacle(Action.REFUSE, str(error))
        if found is not None and found.action is not None:
            await self._advance(entry, found.action, self._leader, found.reason)
            return True
        why = waits_for(entry, now_ms, enabled=self._settings().advice_apply)
        self._waits(entry, why or ("" if found is None else found.reason))
        return False

    @staticmethod
    def _not_yet(entry: Entry, now_ms: int) -> Obstacle | None:
        """A leader whose clock is behind ends nobody's advice for that."""
        ahead_ms = entry.advice.provenance.data_to_ms - now_ms
        if ahead_ms <= CLOCKS_APART_MS:
            return None
        return Obstacle(
            None, f"its data end {ahead_ms / 1000:.0f} s ahead of this leader's clock: set the clocks right"
        )

    async def _begin(self, entry: Entry) -> bool:
        """Write that it is applied now, and begin; unless something stands against it."""
        hand, settings = self._hands[entry.advice.kind], self._settings()
        now_ms, ruler = self._board.wall_ms(), ruler_of(settings, entry.advice.change)
        if self._is_held_up(entry, now_ms):
            return False
        measure_ms = round(settings.advice_measure_s * 1000)
        if not self._is_due(entry, now_ms, measure_ms):
            return False
        baseline = await self._measure(now_ms - measure_ms, now_ms, ruler)
        if not measured(baseline) and not _ahead(entry):
            self._waits(
                entry,
                f"{baseline.rounds} rounds of the last {measure_ms / 1000:g} s can be compared with, {MIN_ROUNDS} are "
                "needed: a round counts that looked at the cluster (balancing is on, nothing paused)",
            )
            return False
        # again: the rounds took their time, and somebody may have changed something
        if self._is_held_up(entry, now_ms):
            return False
        before = hand.before(entry.advice)  # noted first: what another leader has begun since is read by the next line
        entry = await self._unchanged(entry)
        if any(other.state in UNDER_WAY for other in self._board.all()):
            return False
        author = entry.review.author if entry.state is State.APPROVED and entry.review is not None else AUTOMATIC
        begun = await self._advance(
            entry,
            Action.APPLY,
            author,
            "" if entry.review is None else entry.review.reason,
            before=before,
            baseline=baseline,
            ruler=ruler,
        )
        self._counts.applied += 1
        await self._go_on(begun)
        return True

    def _is_held_up(self, entry: Entry, now_ms: int) -> bool:
        """Why it cannot be begun now is noted; what is for good is written down at the next look."""
        found = self._not_yet(entry, now_ms) or self._hands[entry.advice.kind].obstacle(entry.advice)
        why = self._held_up() or ("" if found is None else found.reason)
        self._waits(entry, why)
        return bool(why)

    # --- going on

    async def _go_on(self, entry: Entry) -> None:
        progress = entry.progress
        assert progress is not None, "what is under way has been begun"
        match entry.state:
            case State.APPLYING:
                await self._apply(entry, progress)
            case State.MEASURING:
                await self._judge(entry, progress)
            case State.WITHDRAWING:
                await self._withdraw(entry, progress)
            case _:
                pass

    async def _apply(self, entry: Entry, progress: Progress) -> None:
        await self._unchanged(entry)  # a leader that was held up may have read this long ago
        match await self._hands[entry.advice.kind].apply(entry.advice, progress):
            case Done(at_ms, detail):
                await self._advance(entry, Action.APPLIED, self._leader, detail, applied_ms=at_ms)
            case Lost(action, reason):
                await self._advance(entry, action, self._leader, reason)
            case Waits(reason):
                self._waits(entry, reason)

    async def _judge(self, entry: Entry, progress: Progress) -> None:
        baseline, ruler = progress.baseline, progress.ruler
        assert baseline is not None, "written when it was begun"
        assert ruler is not None, "written when it was begun"
        since = self._hands[entry.advice.kind].changed_since(entry.advice, progress)
        if since:
            await self._advance(entry, Action.SUPERSEDE, self._leader, since)
            return
        now_ms, measure_ms = self._board.wall_ms(), baseline.end_ms - baseline.begin_ms
        begin_ms = _measured_from_ms(entry, progress, measure_ms)
        left_ms = begin_ms + measure_ms - now_ms
        if left_ms > 0:
            self._waits(entry, f"its effect is measured for another {left_ms / 1000:.0f} s")
            return
        if not self._is_due(entry, now_ms, measure_ms):
            return
        found = await self._measure(begin_ms, begin_ms + measure_ms, ruler)
        if not measured(found):
            found = await self._measure(begin_ms, now_ms, ruler)
        if not measured(found):
            self._waits(entry, f"{found.rounds} rounds since then can be compared, {MIN_ROUNDS} are needed")
            return
        await self._conclude(entry, baseline, found)

    async def _conclude(self, entry: Entry, baseline: Period, found: Period) -> None:
        harm_percent = self._settings().advice_harm_percent
        result = effect(entry.advice.expected, baseline, found, harm_percent, ahead=_ahead(entry))
        if result.harm:
            entry = await self._advance(entry, Action.HARMED, self._leader, told(result), effect=result)
            self._counts.harmed += 1
            await self._go_on(entry)
        else:
            await self._advance(entry, Action.KEEP, self._leader, told(result), effect=result)
            self._counts.kept += 1

    async def _withdraw(self, entry: Entry, progress: Progress) -> None:
        if progress.state is not State.WITHDRAWING:  # an administrator wants it
            assert entry.review is not None, "somebody said so"
            wish = f"{entry.review.verdict}: {entry.review.reason}" if entry.review.reason else entry.review.verdict
            progress = self._next(progress, entry.id, State.WITHDRAWING, entry.review.author, wish)
            entry = await self._write(entry, progress, wish)
        await self._unchanged(entry)
        match await self._hands[entry.advice.kind].undo(entry.advice, progress):
            case Done(_, detail):
                await self._advance(entry, Action.UNDONE, self._leader, detail)
                self._counts.withdrawn += 1
            case Waits(reason):
                self._waits(entry, reason)

    # --- inside

    async def _measure(self, begin_ms: int, end_ms: int, ruler: Ruler) -> Period:
        return period(await self._rounds(begin_ms, end_ms, ruler), begin_ms, end_ms, ruler.tolerance)

    def _is_due(self, entry: Entry, now_ms: int, measure_ms: int) -> bool:
        """Rounds are not read at each look: that is work, and they do not come faster for it. A clock that was set back
        makes nobody wait until it has come so far again."""
        last_ms = self._looked_ms.get(entry.id)
        if last_ms is not None and last_ms <= now_ms < last_ms + measure_ms // LOOKS:
            return False
        self._looked_ms[entry.id] = now_ms
        return True

    async def _unchanged(self, entry: Entry) -> Entry:
        """The same, once all is read that anybody has written by now. Raises Conflict if anything of it has changed.

        What a leader was to change it has written down before, so whoever sees the change and then reads, knows why.
        """
        await self._board.refresh()
        now = self._board.get(entry.id)
        if now.progress != entry.progress or now.state is not entry.state:
            raise Conflict(f"advice {entry.id} is {now.state} meanwhile")
        return now

    async def _advance(
        self,
        entry: Entry,
        action: Action,
        author: str,
        reason: str,
        *,
        effect: Effect | None = None,
        applied_ms: int | None = None,
        before: tuple[object, ...] | None = None,
        baseline: Period | None = None,
        ruler: Ruler | None = None,
    ) -> Entry:
        """Write a step of the table down, if it still is the next one. Raises Conflict."""
        entry = await self._unchanged(entry)
        given = {"effect": effect, "applied_ms": applied_ms, "before": before, "baseline": baseline, "ruler": ruler}
        changed = {name: value for name, value in given.items() if value is not None}
        progress = self._next(entry.progress, entry.id, after(entry.state, action), author, reason)
        return await self._write(entry, msgspec.structs.replace(progress, **changed), reason)

    def _next(self, last: Progress | None, advice_id: str, state: State, author: str, reason: str) -> Progress:
        now_ms = self._board.wall_ms()
        steps = (*(() if last is None else last.steps), Step(state, now_ms, author, reason))
        if last is None:
            return Progress(advice_id, self._epoch, 1, state, now_ms, steps=steps)
        return msgspec.structs.replace(
            last, epoch=self._epoch, number=last.number + 1, state=state, at_ms=now_ms, steps=steps
        )

    async def _write(self, entry: Entry, progress: Progress, reason: str) -> Entry:
        if not await self._board.advance(progress):
            raise Conflict(f"another leader has gone on with advice {entry.id}")
        self.waiting.pop(entry.id, None)
        self._looked_ms.pop(entry.id, None)
        self._note(f"advice {entry.id} is {progress.state}" + (f": {reason}" if reason else ""))
        return self._board.get(entry.id)  # also with what an administrator has said by now

    def _waits(self, entry: Entry, why: str) -> None:
        if why:
            self.waiting[entry.id] = why


def _measured_from_ms(entry: Entry, progress: Progress, measure_ms: int) -> int:
    """When what was applied has settled; of pre-moves, when the peak begins that they are for."""
    change, settled_ms = entry.advice.change, progress.applied_ms + settling_ms(measure_ms)
    return max(settled_ms, change.not_after_ms) if isinstance(change, MoveBundles) else settled_ms


def _ahead(entry: Entry) -> bool:
    """Of a predicted peak there is no time before to compare with."""
    return isinstance(entry.advice.change, MoveBundles)
