"""A consumer of Kafka topics whose partitions are granted by a coordinator in the brokers of the load manager.

    with GroupConsumer("shop/orders/billing", ["orders"], brokers=["http://broker-0:8080"], kafka=settings) as consumer:
        for message in consumer:
            handle(message)  # done when the next one is asked for; `auto_done=False` and `done(message)` for workers

Records are read at least once. A planned change repeats none: a partition is given up when what was taken of it is
done and committed, and the next reader begins there. Two threads: the caller's reads; another one sends heartbeats and
commits, and tells Kafka's client what to fetch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_STORED, KafkaError, KafkaException, Message, TopicPartition

from loadmanager.client.credentials import Credentials
from loadmanager.client.http import HttpRouter
from loadmanager.client.router import Router
from loadmanager.consumer.group_client import GroupClient
from loadmanager.consumer.kafka_client import get_ready, open_consumer, place_of
from loadmanager.consumer.membership import Change, Membership
from loadmanager.consumer.progress import Progress
from loadmanager.consumers.coordinator.messages import PROTOCOL
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.errors import Conflict, Forbidden, Invalid, LoadManagerError
from statechannel.law.bundle import Key

LONGEST_WAIT_S = 3.0
"""How long a heartbeat waits for news; shorter than an attempt of the client may take."""
RETRY_S = 0.2
CLOSE_S = 5.0

Told = Callable[[list[Partition]], object]

_log = logging.getLogger("loadmanager.consumer")


class GroupConsumer:
    """One member of a group. Use `with`, or `start()` and `close()`.

    `group` is a key of the load manager; its form without `persistent://` is the `group.id` in Kafka. `brokers` are
    admin URLs of some brokers. `kafka` are the settings of confluent-kafka's Consumer; `group.id` and automatic commits
    are ours. `on_assign`, `on_revoke` and `on_lost` are called by `poll`: before the first record of new partitions;
    when all records of partitions that will be given up are done, and before they are; and when it is too late for
    that, because the session is over. Raises Invalid, InvalidName.
    """

    def __init__(
        self,
        group: str,
        topics: Iterable[str],
        *,
        brokers: Iterable[str],
        kafka: Mapping[str, Any],
        session_timeout_s: float = 10.0,
        revoke_timeout_s: float = 60.0,
        commit_interval_s: float = 1.0,
        capacity: float = 1.0,
        rack: str = "",
        auto_done: bool = True,
        on_assign: Told | None = None,
        on_revoke: Told | None = None,
        on_lost: Told | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.group = Key.parse(group).full_name
        self._subscription = Subscription(
            tuple(topics), int(session_timeout_s * 1000), int(revoke_timeout_s * 1000), capacity, rack
        )
        self._brokers = list(brokers)
        self._credentials = credentials
        self._kafka = open_consumer(kafka, self.group)
        self._commit_interval_s = commit_interval_s
        self._auto_done = auto_done
        self._told: dict[str, Told | None] = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._news = threading.Condition()
        self._events: list[tuple[str, list[Partition]]] = []
        self._asked: set[Partition] = set()
        """Partitions that leave, about which the service was told."""
        self._progress = Progress()
        self._fetched: set[Partition] = set()
        self._membership = self._new_membership()
        self._last: Message | None = None
        self._late: Message | None = None
        """Came when the lease was over; it is given out if that is prolonged."""
        self._failed: LoadManagerError | None = None
        self._unanswered = False
        """Whether the last heartbeat had no answer."""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="loadmanager-group", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudge, self._to_commit = asyncio.Event(), asyncio.Event()

    # --- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(last_is_done=error is None)

    def start(self) -> None:
        """Join the group. Returns at once; records come when partitions are granted."""
        self._thread.start()

    def close(self, *, last_is_done: bool = True) -> None:
        """Commit what is done, leave the group, close Kafka's client. Idempotent.

        With `auto_done` the record that `poll` gave out last counts as done, unless `last_is_done` is false.
        """
        with self._news:
            if self._closing:
                return
            if last_is_done:
                self._done_with_last()
            self._closing = True
            self._news.notify_all()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S + self._session_s)
        self._kafka.close()

    # --- reading

    def __iter__(self) -> Iterator[Message]:
        """Records until `close`."""
        while not self._closing:
            message = self.poll(1.0)
            if message is not None:
                yield message

    def poll(self, timeout_s: float) -> Message | None:
        """The next record, None if none comes in time. With `auto_done` the one before is done now.

        Raises KafkaException for what Kafka's client cannot mend, Invalid, Conflict or Forbidden if the coordinator
        refuses this consumer, and what a callback raises.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._news:
            self._done_with_last()
        while True:
            self._tell()
            left_s = deadline_s - time.monotonic()
            message = self._next(left_s)
            if message is not None:
                self._tell()  # of new partitions before their first record
                return message
            if left_s <= 0 or self._closing:
                return None

    def done(self, message: Message) -> None:
        """With `auto_done=False`: the service is done with a record, in any order, on any thread."""
        with self._news:
            self._progress.done(*place_of(message))
            leaving = bool(self._progress.leaving)
        if leaving:
            self._wake()

    @property
    def assignment(self) -> list[Partition]:
        """What may be read at this moment."""
        with self._news:
            return sorted(each for each in self._membership.reads(_now_ms()) if each in self._progress)

    def _next(self, timeout_s: float) -> Message | None:
        with self._news:
            if self._failed is not None:
                raise self._failed
            may_read = self._membership.until_ms() > _now_ms()
            late, self._late = (self._late, None) if may_read else (None, self._late)
            if not may_read and timeout_s > 0:
                self._news.wait(min(timeout_s, 0.1))
        if late is not None:
            return self._given_out(late)
        if not may_read:
            return None
        message = self._kafka.poll(min(max(timeout_s, 0), 0.1))
        if message is None:
            return None
        error = message.error()
        if error is None:
            return self._given_out(message)
        if error.retriable() or error.code() in (KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001
            return None
        raise KafkaException(error)

    def _given_out(self, message: Message) -> Message | None:
        """The record, if its partition is still ours; and from now on it is in progress."""
        with self._news:
            if self._membership.until_ms() <= _now_ms():
                self._late = message
                return None
            if not self._progress.take(*place_of(message)):
                return None
            self._last = message
            return message

    def _done_with_last(self) -> None:
        if self._auto_done and self._last is not None:
            self._progress.done(*place_of(self._last))
        self._last = None

    def _tell(self) -> None:
        """Call the service's callbacks for what has happened."""
        with self._news:
            events, self._events = self._events, []
            leaving = self._progress.drained() - self._asked
        for what, partitions in events:
            self._call(what, partitions)
        if leaving:
            self._call("revoke", sorted(leaving))
            with self._news:
                self._asked |= leaving
            self._wake()

    def _call(self, what: str, partitions: list[Partition]) -> None:
        told = self._told[what]
        if told is not None:
            told(partitions)

    # --- the thread that coordinates

    def _work(self) -> None:
        asyncio.run(self._coordinate())

    async def _coordinate(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            credentials = self._credentials or Credentials.of_environment()
            router = Router(self._brokers, credentials=credentials)
            async with HttpRouter(router, protocol=PROTOCOL, credentials=credentials) as http:
                client = GroupClient(http, self.group)
                await asyncio.to_thread(get_ready, self._kafka, self._subscription.topics)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._commit_on(client))
                    group.create_task(self._beat_on(client))
                await self._leave(client)
        except* LoadManagerError as errors:
            with self._news:
                self._failed = _first(errors)
                self._news.notify_all()

    async def _beat_on(self, client: GroupClient) -> None:
        """Heartbeats, each of which waits for news until we have some ourselves.

        The answer prolongs the lease. So the one after a failure does not wait, and none is waited for much longer than
        it waits itself: its coordinator hangs then, and is another one soon.
        """
        longest_s, patience_s = min(self._session_s / 3, LONGEST_WAIT_S), self._session_s / 5
        while not self._closing:
            wait_s = 0.0 if self._unanswered else longest_s
            self._nudge.clear()
            with self._news:
                membership = self._membership
                self._give_up()
                beat = membership.beat(_now_ms())
            asking = client.heartbeat(membership.member, beat, int(wait_s * 1000), wait_s + patience_s)
            answer = await self._unless_nudged(asking)
            if answer is not None:
                with self._news:
                    self._follow(membership.answered(beat.sequence, answer))

    async def _commit_on(self, client: GroupClient) -> None:
        """Commits, apart from heartbeats: a Kafka that does not answer must not end the session."""
        while not self._closing:
            self._to_commit.clear()
            await self._commit(client)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._commit_interval_s):
                    await self._to_commit.wait()

    async def _unless_nudged(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """The answer; None if there is none, or if we have news first."""
        task, nudged = asyncio.ensure_future(asking), asyncio.ensure_future(self._nudge.wait())
        try:
            await asyncio.wait((task, nudged), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return None
            answer = task.result()
        except (Invalid, Conflict, Forbidden):
            raise
        except LoadManagerError as error:
            _log.info("the coordinator of %s does not answer: %s", self.group, error)
            self._unanswered = True
            await asyncio.sleep(min(RETRY_S, self._session_s / 20))
            return None
        else:
            self._unanswered = False
            return answer
        finally:
            nudged.cancel()
            task.cancel()

    def _follow(self, change: Change) -> None:
        """Do what the coordinator says. Kafka's client fetches what is ours, and nothing else."""
        gone = sorted((change.revoked | change.lost) & self._fetched)
        if gone:
            self._kafka.incremental_unassign([TopicPartition(*each) for each in gone])
            self._fetched.difference_update(gone)
        self._progress.end(change.revoked)
        if self._late is not None and place_of(self._late)[0] in change.revoked | change.lost:
            self._late = None
        if change.lost:
            self._asked -= change.lost
            self._progress.forget(change.lost)
            self._events.append(("lost", sorted(change.lost)))
        if change.assigned:
            self._progress.begin(change.assigned)
            self._events.append(("assign", sorted(change.assigned)))
            self._kafka.incremental_assign([TopicPartition(*each, OFFSET_STORED) for each in sorted(change.assigned)])
            self._fetched |= change.assigned
        if self._membership.over:
            self._membership = self._new_membership()
        self._news.notify_all()

    def _give_up(self) -> None:
        """Say of what is drained, committed, and known to the service to be leaving, that it is not read any more."""
        uncommitted, drained = self._progress.to_commit(), self._progress.drained()
        ready = drained if self._told["revoke"] is None else drained & self._asked
        left = {each for each in ready if each not in uncommitted}
        if left:
            self._progress.forget(left)
            self._asked -= left
            self._membership.given_up(left)

    async def _commit(self, client: GroupClient) -> None:
        with self._news:
            membership, places = self._membership, self._progress.to_commit()
        if not places:
            return
        try:
            refused = await client.commit(
                membership.member, membership.epoch, membership.revision, places, self._session_s
            )
        except (Invalid, Conflict, Forbidden):
            raise
        except LoadManagerError as error:
            _log.warning("a commit of %s waits: %s", self.group, error)
            return
        with self._news:
            self._progress.committed({each: place for each, place in places.items() if each not in refused})
            leaving = bool(self._progress.leaving)
        if leaving:
            self._nudge.set()

    async def _leave(self, client: GroupClient) -> None:
        with suppress(LoadManagerError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._commit(client)
                await client.leave(self._membership.member, CLOSE_S)

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._nudge.set)
                self._loop.call_soon_threadsafe(self._to_commit.set)

    @property
    def _session_s(self) -> float:
        return self._subscription.session_timeout_ms / 1000

    def _new_membership(self) -> Membership:
        return Membership(uuid.uuid4().hex, self._subscription)


def _now_ms() -> float:
    return time.monotonic() * 1000


def _first(errors: BaseExceptionGroup[LoadManagerError]) -> LoadManagerError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
