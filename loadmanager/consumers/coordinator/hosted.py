"""A group of a bundle that is ours, with what waits for it and what is under way for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec

from loadmanager.client.redirection import NotServing
from loadmanager.consumers.coordinator.group import Group
from loadmanager.consumers.coordinator.measures import named
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, View
from loadmanager.consumers.coordinator.records import Partition
from loadmanager.errors import Conflict
from statechannel.errors import LogUnavailable, WriterFenced
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token


class Hosted:
    """One group. Belongs to the coordinator's loop."""

    def __init__(self, group: Group, bundle: Bundle, token: Token) -> None:
        self.group = group
        self.bundle = bundle
        self.token = token
        self._news = asyncio.Event()
        """For resets, and for commits that wait."""
        self._news_of: dict[str, asyncio.Event] = {}
        """For heartbeats that wait, by member: each write of a large group would wake thousands otherwise."""
        self._view: View | None = None
        """By which the members divide the partitions, as far as they were woken for it."""
        self.beats = 0
        self.resetting: set[Partition] = set()
        """Partitions whose offsets are being reset."""
        self.is_gone = False
        """Another coordinator has the group, or it was deleted."""
        self.begun: Mapping[str, int] = {}
        """Topics that members may read, with their numbers of partitions: each of these has a committed offset."""
        self.kept_s: float | None = None
        """When all offsets were last committed again."""
        self.unsure = set[Partition]()
        """Partitions of which Kafka may carry a commit out yet that was given up."""
        self.dividing: asyncio.Task[None] | None = None
        """While a large group is divided."""
        self._attempts = set[asyncio.Timeout]()
        self._stored: Counter[Partition] = Counter()
        """Partitions of which members' commits are on their way to Kafka."""
        self._queued = 0
        """Commits that wait for those."""
        group.is_unsettled = self._is_unsettled

    def tell(self, members: Collection[str] = ()) -> None:
        """Wake resets and commits that wait, and the heartbeats of these members; of all, if they have a new view."""
        self._news.set()
        self._news = asyncio.Event()
        if self.group.view is not self._view:
            self._view = self.group.view
            members = members if self._view is None else tuple(self._news_of)
        for member in members:
            news = self._news_of.pop(member, None)
            if news is not None:
                news.set()

    def heartbeat(self, member: str, beat: Beat, now_ms: int) -> Answer | Refusal:
        """As `Group.heartbeat`; the answer names this coordinator."""
        answer = self.group.heartbeat(member, beat, now_ms)
        return answer if isinstance(answer, Refusal) else self.answer(member, beat.generation)

    def answer(self, member: str, generation: int) -> Answer:
        """As `Group.answer`; it names this coordinator."""
        return msgspec.structs.replace(self.group.answer(member, generation), coordinator=str(self.token))

    async def until_news(self, member: str, beat: Beat, wait_s: float) -> None:
        """Wait until the answer to a member's heartbeat is another one, as long as the group is ours."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self.is_gone and self.group.has(member):
                    if has_news(self.group.answer(member, beat.generation), beat):
                        return
                    await self._news_of.setdefault(member, asyncio.Event()).wait()

    def begin_reset(self, partitions: Collection[Partition]) -> None:
        """Raise Conflict if one of them is being reset already."""
        both = self.resetting.intersection(partitions)
        if both:
            topic, number = min(both)
            raise Conflict(f"partition {number} of {topic} is being reset already: try again when that has ended")
        self.resetting.update(partitions)

    async def until_stored(self, partitions: Collection[Partition]) -> None:
        """Wait for commits of these that are on their way. One that Kafka answers late must not overwrite a later one:
        the next reader would begin there, and repeat what is done.
        """
        self._queued += 1
        try:
            while any(each in self._stored for each in partitions):
                await self._news.wait()
        finally:
            self._queued -= 1

    async def until_all_stored(self) -> None:
        """Wait for all commits that are on their way."""
        await self.until_stored(self._stored.keys())

    @contextmanager
    def storing(self, partitions: Collection[Partition], now_ms: Callable[[], int]) -> Generator[None]:
        """Around a commit: no other member gets the partitions before it ends, and a reset waits for it."""
        self._stored.update(partitions)
        try:
            yield
        finally:
            self._stored.subtract(partitions)
            self._stored = +self._stored
            self.group.settled(partitions, now_ms())
            if self.resetting or self._queued:
                self.tell()

    @asynccontextmanager
    async def attempt(self, offsets: Collection[Partition]) -> AsyncGenerator[None]:
        """Around one attempt to store offsets. Raises NotServing when the group goes meanwhile."""
        attempt = asyncio.timeout(None)
        try:
            async with attempt:
                self._attempts.add(attempt)
                yield
            self.unsure.difference_update(offsets)
        except TimeoutError:
            if not attempt.expired():
                raise
            self.unsure.update(offsets)
            raise NotServing(f"{self.group.name} moved while its offsets were stored: send them again", 0.1) from None
        except (LogUnavailable, WriterFenced, asyncio.CancelledError):
            self.unsure.update(offsets)
            raise
        finally:
            self._attempts.discard(attempt)

    def end(self) -> None:
        """The group is not ours any more: end what waits for it, and attempts to store its offsets."""
        self.is_gone = True
        self.tell(tuple(self._news_of))
        for attempt in self._attempts:
            attempt.reschedule(asyncio.get_running_loop().time())

    def is_due(self, sizes: Mapping[str, int], now_s: float, period_s: float) -> bool:
        """Whether a partition waits for its first committed offset, or all are to be committed again."""
        if self.unsure:
            return True
        if self.group.is_empty:
            return False
        late = self.kept_s is None or now_s >= self.kept_s + period_s
        return late or any(sizes.get(each, 0) > self.begun.get(each, 0) for each in self.group.wanted_topics())

    def to_keep(self, sizes: Mapping[str, int], at_once: int) -> Generator[set[Partition]]:
        """All partitions that members subscribe to, and those of which a commit has no end, except those that are being
        committed or reset anyway. They come in parts, so that no turn of the loop is long: of `at_once` partitions at
        most, or of one topic. A part is computed when it is asked for."""
        subscribed = {each: sizes.get(each, 0) for each in self.group.wanted_topics()}
        for topics in _together(subscribed, at_once):
            wanted = {(each, number) for each in topics for number in range(sizes.get(each, 0))}
            yield wanted.difference(self._stored, self.resetting)
        others = {each for each in self.unsure if each[0] not in subscribed}
        yield others.difference(self._stored, self.resetting)

    def begin(self, sizes: Mapping[str, int], now_ms: int) -> None:
        """Of the topics that members subscribe to, these partitions have offsets."""
        self.begun = {each: sizes[each] for each in sorted(self.group.wanted_topics()) if each in sizes}
        self.group.set_topics(self.begun, now_ms)

    def _is_unsettled(self, partition: Partition) -> bool:
        return partition in self._stored or partition in self.unsure

    def is_free(self, partitions: Collection[Partition]) -> bool:
        """Returns True if no member reads one of them, or commits for it."""
        return not any(each in self.group.holders or each in self._stored for each in partitions)

    def holds_up(self, partitions: Collection[Partition]) -> str:
        """What keeps them from being free."""
        holders = {self.group.holders[each] for each in partitions if each in self.group.holders}
        return named(sorted(holders)) if holders else "a member's commit"

    async def until_free(self, partitions: Collection[Partition], timeout_s: float) -> bool:
        """Wait for that, as long as the group is ours. Whether it is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_gone and not self.is_free(partitions):
                    await self._news.wait()
        return self.is_free(partitions)


def _together(sizes: Mapping[str, int], limit: int) -> Generator[list[str]]:
    """Topics in lists, each of `limit` partitions at most, or of one topic."""
    topics, total = list[str](), 0
    for topic, size in sorted(sizes.items()):
        if topics and total + size > limit:
            yield topics
            topics, total = [], 0
        topics.append(topic)
        total += size
    yield topics


def has_news(answer: Answer, beat: Beat) -> bool:
    """Whether a heartbeat that may wait is answered at once."""
    return answer.revision != beat.acked or answer.view is not None or not answer.lease_ms
