"""Commits offsets for consumer groups that have no members of Kafka's own protocols: their coordinator is elsewhere.

Commits are transactions under a name (`writer`), so that they are ordered and can be fenced. A commit that was given up
cannot overtake a later one of the same writer. And after `fence`, no commit of that writer reaches Kafka any more, not
even one that is in the network at the time.

Groups whose offsets Kafka keeps in one partition of `__consumer_offsets` share a writer, and no others do. So a
partition that has no leader delays no group of another one. This holds if that topic has 50 partitions, the default of
`offsets.topic.num.partitions`. With another number a partition may delay groups of others, which share its writer.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ResourceType

from statechannel.adapters.kafka.admin import FORBIDDEN, Admin, text_of
from statechannel.adapters.kafka.clients import (
    LOGGER,
    admin_settings,
    check_client_settings,
    connection_settings,
    exclusive_settings,
)
from statechannel.adapters.kafka.group_offsets import GroupOffsets
from statechannel.adapters.kafka.transactions import Transactions
from statechannel.errors import LogError, LogUnavailable, TopicUnknown, WriterFenced

REFUSED = FORBIDDEN | {KafkaError.GROUP_AUTHORIZATION_FAILED}
OTHERS = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP, KafkaError.ILLEGAL_GENERATION})

RETENTION = "offsets.retention.minutes"
RETRY_S = 0.1
RESEND_MS = 5
"""Kafka refuses a transaction for some milliseconds after the one before; the client's default asks again in 100 ms."""
IDLE_MS = 5_000
"""The client (2.16, its issue 5456) waits without a limit for a group's coordinator that it did not find at once, until
one of its connections changes: so idle ones end soon."""
AT_ONCE = 200
"""Commits in one transaction: each group in it costs two requests."""
WRITERS = 50
"""As many as `__consumer_offsets` has partitions by default. Its number is not asked for, which would need the right to
describe that topic."""
FENCES_AT_ONCE = 16
"""Each has a producer, with four threads, until it has ended."""
FENCED_KEPT = 1_000
TRANSACTION_S = 30
"""When Kafka aborts what a dead writer has begun, unless its successor fences it before."""

_PULLED = re.compile(r"pulled=(\d{1,18})", re.ASCII)

PERMANENT = frozenset({KafkaError.OFFSET_METADATA_TOO_LARGE})

Place = tuple[str, int]
T = TypeVar("T")


class GroupInUse(LogError):
    """Consumers of Kafka's own protocols are members of the group: Kafka takes commits from them alone."""


class _Wanted(msgspec.Struct, eq=False):
    """One call of `commit` that was not answered yet."""

    group: str
    offsets: dict[Place, TopicPartition]
    done: asyncio.Future[None]


class GroupCommits:
    """Commits to one Kafka cluster; `bootstrap` and `client_settings` as for `KafkaLog`. Belongs to one loop.

    `prefix`: of the writers' names, which are Kafka's transactional ids.
    """

    def __init__(
        self,
        bootstrap: str,
        client_settings: Mapping[str, str] | None = None,
        request_timeout_s: float = 10.0,
        prefix: str = "loadmanager.",
    ) -> None:
        check_client_settings(client_settings or {})
        self._connection = connection_settings(bootstrap, client_settings or {}, request_timeout_s)
        self._admin = Admin(admin_settings(self._connection), bootstrap, request_timeout_s)
        self._offsets = GroupOffsets(self._connection, stable=True)
        self._timeout_s = request_timeout_s
        self._prefix = prefix
        self._writers: dict[int, _Writer] = {}
        self._suspect = set[str]()
        """Topics that Kafka did not know in a commit."""
        self._fenced: dict[str, None] = {}
        """The last names that were fenced; to fence one again does no harm."""
        self._fences: dict[str, asyncio.Task[None]] = {}
        """Those under way, by name: several bundles of a dead broker are taken over together."""
        self._fence_threads = ThreadPoolExecutor(FENCES_AT_ONCE, thread_name_prefix="group-fences")

    def writer(self, group: str) -> str:
        """The writer name under which the group's commits are made now. It changes after a fence."""
        return self._writer(group).name

    async def commit(self, group: str, offsets: Mapping[Place, int], pulled: Mapping[Place, int]) -> None:
        """Store where the group goes on, by topic and partition; asked again while Kafka does not answer.

        `pulled`, which may lack some, is stored beside as the commits' metadata: the first offsets that the group has
        not pulled. It is sent under the `writer` of the time of the call, once. Raises WriterFenced if that cannot be
        used any more: see whether the group is still ours, and send it again; LogUnavailable if Kafka did not answer in
        time. In both cases it may be stored yet, but not after a later commit. Raises GroupInUse, TopicUnknown, and
        LogError for lack of rights.
        """
        writer = self._writer(group)
        name = writer.name
        if suspect := self._suspect.intersection(topic for topic, _ in offsets):
            await self._look_at(group, suspect)
            if writer.name != name:
                raise WriterFenced(f"{name} is not used any more")
        places = [
            TopicPartition(*each, offset, f"pulled={pulled[each]}" if each in pulled else "")
            for each, offset in offsets.items()
        ]
        try:
            await writer.commit(group, places)
        except TopicUnknown:
            self._suspect.update(topic for topic, _ in offsets)
            raise

    async def fence(self, writers: Collection[str]) -> None:
        """No commit under one of these names reaches Kafka any more, and what one has begun is aborted. Raises
        LogUnavailable; LogError for lack of rights."""
        for writer in {*writers} - self._fenced.keys() - self._fences.keys():
            self._fences[writer] = asyncio.create_task(self._fence_once(writer))
        under_way = [self._fences[writer] for writer in {*writers} & self._fences.keys()]
        await asyncio.gather(*map(asyncio.shield, under_way))

    async def _fence_once(self, writer: str) -> None:
        """For all that wait for it."""
        try:
            await asyncio.wrap_future(self._fence_threads.submit(_fence, self._producer, writer))
        except RuntimeError:
            raise LogUnavailable(f"{writer} is not fenced: this client is closed") from None
        finally:
            del self._fences[writer]
        self._fenced[writer] = None
        if len(self._fenced) > FENCED_KEPT:
            del self._fenced[next(iter(self._fenced))]

    async def close(self) -> None:
        """End the clients; commits under way fail."""
        for writer in self._writers.values():
            writer.close()
        self._fence_threads.shutdown(wait=False)
        await asyncio.to_thread(self._admin.close)

    async def committed(
        self, group: str, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int | None]]:
        """The committed offset of each partition that has one, with its pull offset if that is known.

        Asks the server that keeps the group, not the list of groups, which may lack it for a while. First waits until
        the group's commits under way here have ended. Raises as `commit`.
        """
        writer = self._writer(group)
        await writer.until_ended(group)

        async def ask() -> dict[tuple[str, int], tuple[int, int | None]]:
            try:
                found = await writer.reading(self._offsets.committed, group, sorted(partitions), self._timeout_s)
                _check(found)
            except KafkaException as error:
                final = _final(group, error.args[0])
                if final is not None:
                    raise final from error
                raise
            return {
                (each.topic, each.partition): (each.offset, pulled_of(each.metadata))
                for each in found
                if each.offset >= 0
            }

        return await self._admin.until_answered(ask, self._timeout_s)

    async def retention_s(self) -> float | None:
        """How long Kafka keeps committed offsets of groups without members: the least `offsets.retention.minutes` of
        its servers. None without the right to describe their settings. Raises LogUnavailable."""

        async def ask() -> float | None:
            try:
                servers = (await self._admin.cluster()).nodes
                settings = [await self._admin.settings(ResourceType.BROKER, str(each.id)) for each in servers]
            except KafkaException as error:
                if error.args[0].code() in FORBIDDEN:
                    return None
                raise
            return min((int(each[RETENTION]) * 60.0 for each in settings), default=None)

        return await self._admin.until_answered(ask, self._timeout_s)

    async def _look_at(self, group: str, topics: Collection[str]) -> None:
        """Raise TopicUnknown if one of these is not there: in a transaction it would delay other groups. Raises
        LogUnavailable."""
        for topic in sorted(topics):
            if await self._admin.until_answered(partial(self._admin.describe, topic), self._timeout_s) is None:
                raise TopicUnknown(f"Kafka knows no topic {topic!r} for a commit of the group {group}")
            self._suspect.discard(topic)

    def _writer(self, group: str) -> _Writer:
        place = place_of(group)
        if place not in self._writers:
            self._writers[place] = _Writer(self._producer, f"{self._prefix}groups-", self._timeout_s)
        return self._writers[place]

    def _producer(self, writer: str) -> Transactions:
        longest_ms = TRANSACTION_S * 1_000
        settings = {
            **exclusive_settings(self._connection, self._timeout_s, writer),
            "retry.backoff.ms": RESEND_MS,
            "connections.max.idle.ms": IDLE_MS,
            "transaction.timeout.ms": longest_ms,
            "message.timeout.ms": longest_ms,
            "socket.timeout.ms": min(longest_ms, int(self._connection["socket.timeout.ms"])),
        }
        try:
            return Transactions(settings, min(self._timeout_s, TRANSACTION_S))
        except KafkaException as error:
            raise LogError(f"Kafka's client refuses its settings: {text_of(error)}; correct client_settings") from error


class _Writer:
    """Makes one transaction after the other, each of all commits that wait. Belongs to one loop.

    `producer` makes the one of a name, and `prefix` begins the names.
    """

    def __init__(self, producer: Callable[[str], Transactions], prefix: str, timeout_s: float) -> None:
        self._producer, self._prefix, self._timeout_s = producer, prefix, timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-commits")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="group-offsets")
        self._transactions: Transactions | None = None
        self._queue: list[_Wanted] = []
        self._sent = set[str]()
        """The groups of the transaction under way."""
        self._settled = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._spent: list[str] = []
        """Former names that failed: Kafka may yet carry out what was begun under them, until they are fenced."""
        self._trouble = ""
        self.name = self._new_name()

    async def commit(self, group: str, places: Sequence[TopicPartition]) -> None:
        """As `GroupCommits.commit`."""
        by_place = {(each.topic, each.partition): each for each in places}
        wanted = _Wanted(group, by_place, asyncio.get_running_loop().create_future())
        self._queue.append(wanted)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        try:
            async with asyncio.timeout(self._timeout_s):
                await wanted.done
        except TimeoutError:
            why = self._trouble or "no answer in time"
            raise LogUnavailable(
                f"Kafka did not store offsets of {group} within {self._timeout_s:g} s: {why}"
            ) from None
        finally:
            wanted.done.cancel()
            with suppress(ValueError):
                self._queue.remove(wanted)

    async def until_ended(self, group: str) -> None:
        """Wait until the group's commits under way have ended. Raises LogUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while group in self._sent or any(each.group == group for each in self._queue):
                    await self._settled.wait()
        except TimeoutError:
            raise LogUnavailable(f"a commit of {group} has no end yet: {self._trouble or 'no answer'}") from None
        if self._spent:
            await self._on_thread(self._end_spent)

    async def reading(self, job: Callable[..., T], *arguments: Any) -> T:
        """Do it on the thread that reads; only groups of this writer wait for it."""
        return await self._on(self._reader, job, *arguments)

    def close(self) -> None:
        """Commits under way fail. Does not block."""
        if self._transactions is not None:
            self._transactions.leave()
        with suppress(RuntimeError):
            self._thread.submit(self._free)
        self._thread.shutdown(wait=False)
        self._reader.shutdown(wait=False)

    async def _send(self) -> None:
        """Make one transaction after the other, each of what waits."""
        while self._queue:
            batch, self._queue = self._queue[:AT_ONCE], self._queue[AT_ONCE:]
            batch = [each for each in batch if not each.done.done()]
            self._sent.update(each.group for each in batch)
            again = await self._send_together(batch)
            self._sent.clear()
            self._queue[:0] = again
            self._settled.set()
            self._settled = asyncio.Event()
            if again:
                await asyncio.sleep(RETRY_S)
        self._sending = None

    async def _send_together(self, batch: Sequence[_Wanted]) -> Sequence[_Wanted]:
        """Answer those that can be answered; returns the others, in their order."""
        offsets: dict[str, dict[Place, TopicPartition]] = {}
        for each in batch:
            offsets.setdefault(each.group, {}).update(each.offsets)
        try:
            refused = await self._on_thread(
                self._transact, self.name, {group: [*its.values()] for group, its in offsets.items()}
            )
        except (LogUnavailable, WriterFenced) as error:
            # never again under this name: to take it back would undo another client's fence
            self._trouble = str(error)
            self._spent.append(self.name)
            batch, self._queue, self.name = [*batch, *self._queue], [], self._new_name()
            return _answered(batch, WriterFenced(str(error)))
        except LogError as error:
            return _answered(batch, error)
        except Exception as error:  # noqa: BLE001 - a bug of ours or the client's must not end all commits
            LOGGER.exception("commits of groups failed")
            return _answered(batch, LogUnavailable(f"commits of groups failed: {error!r}"))
        final = {group: _final(group, error) for group, error in refused.items()}
        for each in batch:
            if each.group not in refused or final[each.group] is not None:
                _answered([each], final.get(each.group))
        self._trouble = next((error.str() for error in refused.values()), "")
        return [each for each in batch if not each.done.done()]

    async def _on_thread(self, job: Callable[..., T], *arguments: Any) -> T:
        return await self._on(self._thread, job, *arguments)

    async def _on(self, thread: ThreadPoolExecutor, job: Callable[..., T], *arguments: Any) -> T:
        try:
            running = thread.submit(job, *arguments)
        except RuntimeError:
            raise LogUnavailable(f"the writer {self.name} is closed") from None
        return await asyncio.wrap_future(running)

    def _transact(self, name: str, offsets: Mapping[str, Sequence[TopicPartition]]) -> dict[str, KafkaError]:
        """On the thread, under the name of when it was asked for. A producer that failed is not used again."""
        try:
            return self._ready(name).commit_offsets(offsets)
        except BaseException:
            self._free()
            raise

    def _end_spent(self) -> None:
        """On the thread. What former writers have begun has ended then."""
        while self._spent:
            _fence(self._producer, self._spent[0])
            del self._spent[0]

    def _ready(self, name: str) -> Transactions:
        """On the thread, after what former writers have begun."""
        self._end_spent()
        if self._transactions is None:
            self._transactions = self._producer(name)
            try:
                self._transactions.take_over()
            except LogError:
                self._free()
                raise
        return self._transactions

    def _free(self) -> None:
        """On the thread."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.drop()

    def _new_name(self) -> str:
        return f"{self._prefix}{uuid.uuid4().hex}"


def _fence(producer: Callable[[str], Transactions], writer: str) -> None:
    """On any thread."""
    successor = producer(writer)
    try:
        successor.take_over()
    finally:
        successor.drop()


def _final(group: str, error: KafkaError) -> LogError | None:
    """What to raise for an error that no retry changes."""
    if error.code() in OTHERS:
        return GroupInUse(
            f"consumers of Kafka's own protocols are members of the group {group}: stop them, or give them another "
            "group.id"
        )
    if error.code() in REFUSED:
        return LogError(f"{error.str()} Allow this user Read on the group {group} and on its topics")
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return TopicUnknown(f"Kafka knows no such topic for a commit of the group {group}: {error.str()}")
    if error.code() in PERMANENT:
        return LogError(f"Kafka refuses a commit for the group {group}: {error.str()}")
    return None


def place_of(group: str) -> int:
    """The partition of `__consumer_offsets` that has the group's offsets: by Java's hash of the name, as in Kafka."""
    found = 0
    for unit in memoryview(group.encode("utf-16-le", "surrogatepass")).cast("H"):
        found = (31 * found + unit) & 0xFFFFFFFF
    signed = found - (1 << 32) if found & 0x80000000 else found
    return (0 if signed == -(1 << 31) else abs(signed)) % WRITERS


def pulled_of(metadata: str | None) -> int | None:
    """The first offset that the group has not pulled, from a commit's metadata; None if it does not say."""
    found = _PULLED.fullmatch(metadata) if metadata else None
    return None if found is None else int(found[1])


def _answered(wanted: Sequence[_Wanted], error: LogError | None) -> Sequence[_Wanted]:
    """Answer them all; none is left."""
    for each in wanted:
        if not each.done.done():
            if error is None:
                each.done.set_result(None)
            else:
                each.done.set_exception(error)
    return ()


def _check(places: Sequence[TopicPartition]) -> None:
    """Raise the error of the first partition that has one."""
    for each in places:
        if each.error is not None:
            raise KafkaException(each.error)
