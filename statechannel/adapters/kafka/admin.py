"""The admin client of one Kafka cluster: retries requests, and says why none was answered.

The requests about topics and offsets are in `topics.py`, `offsets.py` and `audit.py`.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    DescribeClusterResult,
    ResourceType,
    TopicDescription,
)

from statechannel.adapters.kafka.clients import LOGGER
from statechannel.adapters.kafka.ownership import ClientClosed, Owned, own_admin
from statechannel.adapters.kafka.trouble import ALL_DOWN, Trouble
from statechannel.errors import LogUnavailable
from statechannel.runtime.tasks import retried

RETRY_PAUSE_S = 0.1
CONNECT_PAUSE_S = 2.0
"""The longest pause between two attempts while no server has answered at all."""
TELL_S = 1.0
GRACE_S = 0.5
FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
RIGHTS = (
    "allow this user Describe, DescribeConfigs, Read, Write, Create and Delete on all topics with the topic prefix, "
    "and Write and Describe on transactional ids with the same prefix"
)
UNANSWERED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, ALL_DOWN})  # noqa: SLF001 (as in ALL_DOWN)

T = TypeVar("T")


class Admin:
    """One `AdminClient` at a time, lent for calls. It answers with futures; `answer` waits for one, `until_answered`
    asks again.

    A client that gives no answer for half of a request's time is replaced by a new one, asked in the other half. The
    old one may be stranded (see `trouble.py`), and is polled too seldom to tell.
    """

    def __init__(self, settings: Mapping[str, Any], bootstrap: str, request_timeout_s: float) -> None:
        self._trouble = Trouble()
        self._settings: dict[str, Any] = {**settings, "error_cb": self._trouble.note}
        self._owned = self._new()
        self.bootstrap = bootstrap
        self.timeout_s = request_timeout_s

    def lent(self) -> AbstractContextManager[AdminClient]:
        """The client, for calls within the block. Raises LogUnavailable after `close`."""
        return self._owned.lent()

    def close(self) -> None:
        """End the client; blocks while calls are in it. Requests are not answered any more. Idempotent."""
        self._owned.close()

    async def connect(self, timeout_s: float) -> None:
        """Wait for a first answer, and log why there is none. Raises LogUnavailable after `timeout_s`."""
        telling = asyncio.create_task(self._tell_trouble(timeout_s))
        try:
            await self.until_answered(self.cluster, timeout_s, CONNECT_PAUSE_S)
        finally:
            telling.cancel()

    async def until_answered(
        self, ask: Callable[[], Awaitable[T]], timeout_s: float, longest_pause_s: float = RETRY_PAUSE_S
    ) -> T:
        """Repeat a request that fails for a while: an election, a starting controller, a topic not known everywhere.

        Raises LogUnavailable after `timeout_s`, or at once for lack of rights.
        """
        loop = asyncio.get_running_loop()
        half, deadline, owned = loop.time() + timeout_s / 2, loop.time() + timeout_s, self._owned
        self._latest_trouble()
        self._trouble.latest = ""  # an earlier trouble explains nothing
        refused: Exception | None = None

        async def asked() -> T:
            async with asyncio.timeout_at(half if loop.time() + RETRY_PAUSE_S < half else deadline):
                return await ask()

        def failed(error: Exception, _: float) -> None:
            nonlocal refused
            if is_silent(error) and loop.time() + RETRY_PAUSE_S >= half:
                self._replace(owned)
            if not is_silent(error):
                refused = error  # the last attempt, which the deadline cuts short, says less
            if is_forbidden(error):
                raise LogUnavailable(f"Kafka at {self.bootstrap}: {text_of(error)} {RIGHTS}") from error
            if loop.time() + RETRY_PAUSE_S >= deadline:
                why = self._why(refused or error)
                self._replace(owned)
                raise LogUnavailable(
                    f"Kafka at {self.bootstrap} is not available after {timeout_s:g} s: {why}; "
                    "check that it runs, and check its address, TLS and credentials"
                ) from error
            LOGGER.debug("Kafka at %s: %s; asking again", self.bootstrap, error)

        return await retried(
            asked,
            (KafkaException, LogUnavailable, TimeoutError),
            first_s=RETRY_PAUSE_S,
            last_s=longest_pause_s,
            failed=failed,
            pause=lambda pause_s: asyncio.sleep(min(pause_s, deadline - loop.time() - RETRY_PAUSE_S / 2)),
        )

    async def answer(self, future: Future[T]) -> T:
        """Await one of the client's futures, a little longer than the client itself waits."""
        async with asyncio.timeout(self.timeout_s + GRACE_S):
            return await asyncio.wrap_future(future)

    async def cluster(self) -> DescribeClusterResult:
        """The cluster and its brokers. Raises KafkaException or TimeoutError."""
        with self.lent() as client:
            future = client.describe_cluster(request_timeout=self.timeout_s)
        return await self.answer(future)

    async def describe(self, topic: str) -> TopicDescription | None:
        """A topic's partitions and replicas, None if there is no such topic. Raises KafkaException or TimeoutError."""
        with self.lent() as client:
            answers = client.describe_topics(TopicCollection([topic]), request_timeout=self.timeout_s)
        try:
            return cast(TopicDescription, await self.answer(answers[topic]))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise

    async def settings(self, kind: ResourceType, name: str) -> dict[str, str]:
        """The settings of a topic or a broker, defaults included. Raises KafkaException or TimeoutError."""
        resource = ConfigResource(kind, name)
        with self.lent() as client:
            answers = client.describe_configs([resource], request_timeout=self.timeout_s)
        entries = await self.answer(answers[resource])
        return {name: str(entry.value) for name, entry in entries.items()}

    def _new(self) -> Owned[AdminClient]:
        owned = own_admin(self._settings)
        owned.close_with(self)
        return owned

    def _replace(self, owned: Owned[AdminClient]) -> None:
        """Go on with a new one, unless another request did, or it is closed."""
        if self._owned is owned and not owned.closing:
            self._owned = self._new()
            owned.close_soon()

    async def _tell_trouble(self, timeout_s: float) -> None:
        """Log why there is no answer yet; the logger lets one such line pass in ten seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            await asyncio.sleep(TELL_S)
            left_s = max(0.0, deadline - loop.time())
            why = self._latest_trouble() or "no answer"
            LOGGER.warning(
                "Kafka at %s does not answer yet: %s; trying for another %.0f s", self.bootstrap, why, left_s
            )

    def _latest_trouble(self) -> str:
        """The client's last reason for having no connection; it reports only when it is polled."""
        with suppress(ClientClosed), self.lent() as client:
            client.poll(0)
        return self._trouble.latest

    def _why(self, error: BaseException) -> str:
        return (self._latest_trouble() if is_silent(error) else "") or text_of(error)


def is_silent(error: BaseException) -> bool:
    """Whether no answer came."""
    return isinstance(error, TimeoutError) or (isinstance(error, KafkaException) and error.args[0].code() in UNANSWERED)


def is_forbidden(error: BaseException) -> bool:
    """Whether the error is a lack of rights, which no retry fixes."""
    return isinstance(error, KafkaException) and error.args[0].code() in FORBIDDEN


def text_of(error: BaseException) -> str:
    """The text of an error of Kafka's client, without its wrapping."""
    if isinstance(error, KafkaException):
        cause: KafkaError = error.args[0]
        return cause.str()
    return str(error) or "no answer in time"
