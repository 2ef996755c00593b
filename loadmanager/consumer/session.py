"""A consumer's session with the coordinator of its group, on a thread of its own: heartbeats, commits, farewell.

It tells Kafka's client what to fetch, and keeps what happened (`events`) for the thread that reads. Hold `news` to
look at its state.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from confluent_kafka import Message

from loadmanager.client.credentials import Credentials
from loadmanager.client.http_router import HttpAnswer, HttpRouter
from loadmanager.client.router import Router
from loadmanager.consumer.assignment import Change, Membership, Place, Progress
from loadmanager.consumer.kafka_client import WARN_EVERY_S, KafkaClient, partition_of
from loadmanager.consumers.coordinator.messages import NO_COORDINATOR, PROTOCOL, Answer, Beat, Refusal, Why, group_key
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.consumers.coordinator.targets import claims_of
from loadmanager.errors import Conflict, Forbidden, Invalid, LoadManagerError, NotKnown, Unavailable

_answer, _refusal = msgspec.json.Decoder(Answer), msgspec.json.Decoder(Refusal)


T = TypeVar("T")


class _Refused(msgspec.Struct):
    refused: dict[str, dict[int, Refusal]]


_refused = msgspec.json.Decoder(_Refused)


class GroupClient:
    """Finds the coordinator by a lookup, and again when the group's bundle has moved. Raises InvalidName."""

    def __init__(self, http: HttpRouter, group: str) -> None:
        key = group_key(group)
        self.group = key.full_name
        self._http = http
        self._coordinator = ""
        self._commits = 0
        name = self.group.partition("://")[2].removeprefix(f"{key.namespace}/")
        self._path = f"/v1/groups/{quote(key.namespace)}/{quote(name, safe='')}"

    async def heartbeat(self, member: str, beat: Beat, wait_ms: int, budget_s: float) -> Answer | Refusal:
        """Raises as `HttpRouter.post`; Invalid for a heartbeat that makes no sense, Forbidden if we may not ask."""
        path = f"{self._path}/members/{quote(member, safe='')}/heartbeat?wait_ms={wait_ms}"
        answer = await self._http.post(self.group, path, beat, budget_s=budget_s)
        if answer.status == 409:
            return _read(_refusal, answer)
        _check(answer)
        found = _read(_answer, answer)
        self._coordinator = found.coordinator
        return found

    async def commit(
        self, member: str, epoch: int, revision: int, places: Mapping[Partition, Place], budget_s: float
    ) -> dict[Partition, Refusal]:
        """Store where the group goes on, and what it has pulled; what was refused. One call at a time.

        A coordinator that we have not heard of yet refuses the commit, since it may be a late one: it says so, and gets
        it again. Raises as `heartbeat`, and Conflict if the group has members of Kafka's own protocols.
        """
        offsets: dict[str, dict[int, int]] = {}
        pulled: dict[str, dict[int, int]] = {}
        for (topic, number), place in places.items():
            offsets.setdefault(topic, {})[number] = place.commit
            pulled.setdefault(topic, {})[number] = place.pull
        body = {"epoch": epoch, "revision": revision, "offsets": offsets, "pulled": pulled}
        path = f"{self._path}/members/{quote(member, safe='')}/commit"
        while True:
            self._commits += 1
            numbered = {**body, "sequence": self._commits, "coordinator": self._coordinator}
            answer = await self._http.post(self.group, path, numbered, budget_s=budget_s)
            _check(answer)
            nested = _read(_refused, answer).refused
            found = {(topic, number): each for topic, its in nested.items() for number, each in its.items()}
            other = next((each.coordinator for each in found.values() if each.coordinator), self._coordinator)
            if other == self._coordinator:
                return found
            self._coordinator = other

    async def leave(self, member: str, process: str, budget_s: float) -> None:
        """Say farewell. Raises as `heartbeat`."""
        path = f"{self._path}/members/{quote(member, safe='')}?process={quote(process, safe='')}"
        _check(await self._http.request("DELETE", self.group, path, None, budget_s=budget_s))


def _read(decoder: msgspec.json.Decoder[T], answer: HttpAnswer) -> T:
    """Raises Unavailable for what no coordinator says: something else answers in its place."""
    try:
        return decoder.decode(answer.body)
    except msgspec.MsgspecError as error:
        shown = answer.body[:200].decode("utf-8", "replace")
        raise Unavailable(f"an answer that no coordinator gives ({error}): {shown}") from error


def _check(answer: HttpAnswer) -> None:
    if answer.status in (200, 204):
        return
    try:
        detail = str(answer.json()["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        detail = answer.body[:200].decode("utf-8", "replace")
    match answer.status:
        case 400 | 412 | 413:
            raise Invalid(detail)
        case 401:
            raise NotKnown(detail)
        case 403:
            raise Forbidden(detail)
        case 409:
            raise Conflict(detail)
        case _:
            raise Unavailable(f"the coordinator answered {answer.status}: {detail}")


LONGEST_WAIT_S = 3.0
"""How long a heartbeat waits for news; shorter than an attempt of the client may take."""
PATIENCE_S = 5.0
"""No heartbeat is waited for much longer than it waits itself."""
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 5.0
CLOSE_S = 5.0
WARN_AFTER_S = 3.0

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_log = logging.getLogger("loadmanager.consumer")


class Session:
    """One consumer's membership, and the next one after that is lost.

    `revoke_is_told`: a partition is given up only when the service was told so (`told`). `max_poll_interval_s`: a
    service that does not poll for this time (`polls`) leaves the group until it polls again.
    """

    def __init__(
        self,
        group: str,
        subscription: Subscription,
        brokers: Sequence[str],
        credentials: Credentials | None,
        kafka: KafkaClient,
        *,
        cluster: str,
        commit_interval_s: float,
        max_poll_interval_s: float,
        revoke_is_told: bool,
    ) -> None:
        self.group = group
        self.subscription = subscription
        self.news = threading.Condition()
        self.progress = Progress()
        self.membership = self._new_membership()
        self.events: list[tuple[str, list[Partition]]] = []
        """What the service is to be told: "assign" and "lost", with the partitions."""
        self._telling: tuple[str, list[Partition]] | None = None
        """What it is being told, or has not taken: it raised, and is told again."""
        self.fetched = deque[Message]()
        """Records that were not given out yet, of partitions that are ours."""
        self.failed: Exception | None = None
        self.closing = False
        self._brokers = brokers
        self._credentials = credentials
        self._cluster = cluster
        self._kafka = kafka
        self._commit_interval_s = commit_interval_s
        self._max_poll_interval_s = max_poll_interval_s
        self._revoke_is_told = revoke_is_told
        self._told: set[Partition] = set()
        """Partitions that leave, about which the service was told."""
        self._fetching: set[Partition] = set()
        self._gone: set[Partition] = set()
        """Partitions that were ours when the reader last began to fetch, and then were not."""
        self._polled_s = time.monotonic()
        self._away = False
        """It has left the group because the service does not poll."""
        self._failures = 0
        """Consecutive heartbeats that had no answer, or were told to retry."""
        self._answer_waited_for, self._topics_waited_for = Waiting(group), Waiting(group)
        self._thread = threading.Thread(target=self._work, name="loadmanager-group", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudge, self._to_commit, self._ending = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def start(self) -> None:
        """Join the group."""
        self._polled_s = time.monotonic()
        self._thread.start()

    def end(self) -> None:
        """Commit what is done, and leave the group."""
        with self.news:
            self.closing = True
            self.news.notify_all()
        self.wake()
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._ending.set)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S + self.session_s)

    def wake(self) -> None:
        """Something was done: look whether a partition can be given up."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._nudge.set)
                self._loop.call_soon_threadsafe(self._to_commit.set)

    def fetch(self, timeout_s: float) -> None:
        """Wait for a record; the reader's thread. Call it without `news`.

        A partition may go meanwhile, and even come back. Then its records may be from before or after, so it is fetched
        again, from what was committed.
        """
        with self.news:
            self._gone = set()
        messages = self._kafka.fetch(timeout_s)
        with self.news:
            unsure = {partition_of(each) for each in messages} & self._gone
            self.fetched.extend(each for each in messages if partition_of(each) not in unsure)
            again = unsure & self._fetching
            if again:
                self._kafka.unassign(again)
                self._kafka.assign(again)

    # --- with `news`

    def polls(self) -> None:
        """The service asks for records."""
        self._polled_s = time.monotonic()
        if self._away:
            self.wake()

    def may_read(self) -> bool:
        """Whether the lease is not over."""
        return self.membership.may_read(*now_ms())

    @property
    def has_events(self) -> bool:
        """Whether the service is to be told something before it gets a record."""
        return bool(self.events) or self._telling is not None

    def next_event(self) -> tuple[str, list[Partition]] | None:
        """What the service is to be told now: again what it has not taken (`event_told`), as far as it still holds."""
        if self._telling is not None and self._telling[0] == "assign":
            later = {each for _, partitions in self.events for each in partitions}
            there = [each for each in self._telling[1] if each in self.progress and each not in later]
            self._telling = ("assign", there) if there else None
        if self._telling is None and self.events:
            self._telling = self.events.pop(0)
        return self._telling

    def event_told(self) -> None:
        """The service has taken it."""
        self._telling = None

    def to_tell(self) -> list[Partition]:
        """Partitions to be given up with nothing in progress, of which the service was not told yet."""
        return sorted(self.progress.drained() - self._told)

    def told(self, partitions: Sequence[Partition]) -> None:
        """The service knows that these are given up."""
        self._told.update(partitions)

    def held(self) -> list[Partition]:
        """What the service knows to have."""
        unknown = {each for what, partitions in self.events if what == "assign" for each in partitions}
        return sorted(self.membership.holds(*now_ms()) - self._told - unknown)

    @property
    def session_s(self) -> float:
        return self.subscription.session_timeout_ms / 1000

    # --- the thread

    def _work(self) -> None:
        asyncio.run(self._coordinate())

    async def _coordinate(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            credentials = self._credentials or Credentials.of_environment()
            router = Router(self._brokers, credentials=credentials, cluster=self._cluster)
            async with HttpRouter(
                router, protocol=PROTOCOL, credentials=credentials, without_url=NO_COORDINATOR
            ) as http:
                client = GroupClient(http, self.group)
                await asyncio.to_thread(self._kafka.get_ready, self.subscription.topics)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._commit_on(client))
                    group.create_task(self._beat_on(client))
                await self._leave(client)
        except* Exception as errors:  # noqa: BLE001 - `poll` raises it, whatever it is
            with self.news:
                self.failed = _first(errors)
                self.news.notify_all()

    async def _beat_on(self, client: GroupClient) -> None:
        """Heartbeats, each of which waits for news until we have some ourselves.

        The answer prolongs the lease. So the one after a failure does not wait, and none is waited for much longer than
        it waits itself: its coordinator hangs then, and is another one soon.
        """
        longest_s, patience_s = min(self.session_s / 3, LONGEST_WAIT_S), min(self.session_s / 5, PATIENCE_S)
        while not self.closing:
            wait_s = 0.0 if self._failures else min(longest_s, self._max_poll_interval_s / 3)
            self._nudge.clear()
            if self._is_stuck():
                await self._go_away(client)
                continue
            with self.news:
                membership = self.membership
                self._give_up()
                beat = membership.beat(*now_ms())
            asking = client.heartbeat(membership.member, beat, int(wait_s * 1000), wait_s + patience_s)
            answer = await self._unless_nudged(asking)
            if answer is not None:
                claims = await self._claims(membership.member, answer)
                with self.news:
                    self._follow(membership.answered(beat.sequence, answer, claims))
                await self._look_at(answer)

    async def _claims(self, member: str, answer: Answer | Refusal) -> tuple[Partition, ...]:
        """What this member claims, where members divide the partitions. Without claims the coordinator divides."""
        view = answer.view if isinstance(answer, Answer) else None
        if view is None:
            return ()
        try:
            return await asyncio.to_thread(claims_of, member, view)
        except Invalid as error:
            _log.warning("%s: leaves it to the coordinator to divide the partitions: %s", self.group, error)
            return ()

    async def _look_at(self, answer: Answer | Refusal) -> None:
        """Warn of what an answer lacks; wait if it says so."""
        if isinstance(answer, Answer):
            self._failures = 0
            self._answer_waited_for.ends()
            if answer.missing:
                self._topics_waited_for.goes_on(
                    f"{', '.join(answer.missing[:10])}: there is no such topic, or the brokers' Kafka user may not see "
                    "it or commit for it"
                )
            else:
                self._topics_waited_for.ends()
        elif answer.why is Why.ID_IN_USE:
            self._answer_waited_for.goes_on(answer.detail)
            await self._back_off()

    def _is_stuck(self) -> bool:
        return time.monotonic() - self._polled_s > self._max_poll_interval_s

    async def _go_away(self, client: GroupClient) -> None:
        """The service does not poll: others shall read, until it does again."""
        _log.warning(
            "%s: no record was asked for within max_poll_interval_s=%g: its partitions go to others until one is. Make "
            "handling a record quicker, or set max_poll_interval_s higher",
            self.group, self._max_poll_interval_s,
        )  # fmt: skip
        with self.news:
            self._away, membership = True, self.membership
            self._follow(self.membership.lose())
        with suppress(LoadManagerError):
            await client.leave(membership.member, membership.process, CLOSE_S)
        while self._is_stuck() and not self.closing:
            await self._nudge.wait()
            self._nudge.clear()
        self._away = False

    async def _commit_on(self, client: GroupClient) -> None:
        """Commits, apart from heartbeats: a Kafka that does not answer must not end the session."""
        while not self.closing:
            self._to_commit.clear()
            await self._commit(client)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._commit_interval_s):
                    await self._to_commit.wait()

    async def _unless_nudged(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """The answer; None if there is none, or if we have news first."""
        began_s = time.monotonic()
        task, nudged = asyncio.ensure_future(asking), asyncio.ensure_future(self._nudge.wait())
        try:
            await asyncio.wait((task, nudged), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return None
            answer = task.result()
        except LoadManagerError as error:
            if is_final(error):
                raise
            self._answer_waited_for.goes_on(f"an answer of the group's coordinator: {error}", began_s)
            await self._back_off()
            return None
        else:
            return answer
        finally:
            nudged.cancel()
            task.cancel()

    async def _back_off(self) -> None:
        """Wait longer each time, but so that several attempts fall into a session."""
        self._failures += 1
        longest_s = min(FIRST_RETRY_S * 2 ** min(self._failures - 1, 10), LAST_RETRY_S, self.session_s / 10)
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s * random.uniform(0.5, 1.0)):
                await self._ending.wait()

    def _follow(self, change: Change) -> None:
        """Do what the coordinator says. Kafka's client fetches what is ours, and nothing else."""
        gone = (change.revoked | change.lost) & self._fetching
        if gone:
            self._kafka.unassign(gone)
            self._fetching -= gone
            self._gone |= gone
            self.fetched = deque(each for each in self.fetched if partition_of(each) not in gone)
        self.progress.end(change.revoked)
        unknown = self._never_told(change.revoked | change.lost)
        self._told |= unknown & change.revoked
        if change.lost:
            self._told -= change.lost
            self.progress.forget(change.lost)
        if change.lost - unknown:
            self.events.append(("lost", sorted(change.lost - unknown)))
        if change.assigned:
            self.progress.begin(change.assigned)
            self.events.append(("assign", sorted(change.assigned)))
            self._kafka.assign(change.assigned)
            self._fetching |= change.assigned
        if self.membership.over:
            self.membership = self._new_membership()
        self.news.notify_all()

    def _never_told(self, gone: Set[Partition]) -> set[Partition]:
        """Those of them of which the service was never told that it has them; it will not be."""
        unknown = {each for what, its in self.events if what == "assign" for each in its if each in gone}
        left = [(what, [each for each in its if what != "assign" or each not in unknown]) for what, its in self.events]
        self.events = [(what, its) for what, its in left if its]
        return unknown

    def _give_up(self) -> None:
        """Say of what is drained, committed, and known to the service to be leaving, that it is not read any more."""
        uncommitted, drained = self.progress.to_commit(), self.progress.drained()
        ready = drained & self._told if self._revoke_is_told else drained
        left = {each for each in ready if each not in uncommitted}
        if left:
            self.progress.forget(left)
            self._told -= left
            self.membership.given_up(left)

    async def _commit(self, client: GroupClient) -> None:
        with self.news:
            membership, places = self.membership, self.progress.to_commit()
        if not places:
            return
        try:
            refused = await client.commit(
                membership.member, membership.epoch, membership.revision, places, self.session_s
            )
        except LoadManagerError as error:
            if is_final(error):
                raise
            _log.warning("a commit of %s waits: %s", self.group, error)
            return
        done = {each for each in places if each not in refused or refused[each].why is Why.NO_TOPIC}
        with self.news:
            self.progress.committed({each: places[each] for each in done})
            leaving = bool(self.progress.leaving)
        if leaving:
            self._nudge.set()

    async def _leave(self, client: GroupClient) -> None:
        with suppress(LoadManagerError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._commit(client)
                await client.leave(self.membership.member, self.membership.process, CLOSE_S)

    def _new_membership(self) -> Membership:
        return Membership(uuid.uuid4().hex, self.subscription)


class Waiting:
    """Warns of what a consumer waits for, when that has lasted for some seconds, and then each minute."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._since_s: float | None = None
        self._told_s: float | None = None

    def goes_on(self, for_what: str, began_s: float | None = None) -> None:
        """It waits for this; `began_s`: at least since then."""
        now_s = time.monotonic()
        self._since_s = self._since_s or began_s or now_s
        is_due = now_s >= (self._since_s + WARN_AFTER_S if self._told_s is None else self._told_s + WARN_EVERY_S)
        _log.log(logging.WARNING if is_due else logging.DEBUG, "%s waits for %s", self._group, for_what)
        if is_due:
            self._told_s = now_s

    def ends(self) -> None:
        """It does not wait any more."""
        if self._told_s is not None:
            _log.warning("%s goes on: what it waited for is there", self._group)
        self._since_s = self._told_s = None


def is_final(error: LoadManagerError) -> bool:
    """Whether asking again does not help: the request makes no sense, or this consumer may not ask."""
    return isinstance(error, (Invalid, Conflict, Forbidden)) and not isinstance(error, NotKnown)


def now_ms() -> tuple[float, float]:
    """Two clocks that run on while the machine is suspended: a steady one, and the wall clock, which hypervisors set
    when they wake a machine whose steady clocks stood still with it."""
    return time.clock_gettime(_STEADY) * 1000, time.time() * 1000


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
