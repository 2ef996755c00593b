"""`explain`, `decisions` and `what-if` without a running broker: from a log's topics alone, without writing records.

The topics are opened as brokers open them, so they are created in a log that lacks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.stores import check_there, opened_log, working
from statechannel.law.bundle import Bundle

if TYPE_CHECKING:
    from loadmanager.decisions.explaining.explainer import Explainer
    from loadmanager.model.policies.model import Policy
    from loadmanager.settings import Settings
    from statechannel.ports import Log

T = TypeVar("T")


def explained(log: str, more: tuple[str, ...], subject: Bundle | str, at_ms: int | None, *, trying: bool) -> Any:
    """The explanation of a bundle, or of a broker by its name, as the JSON that a broker would send."""

    def ask(explainer: Explainer) -> Awaitable[Any]:
        if isinstance(subject, Bundle):
            return explainer.bundle(subject, at_ms, trying=trying)
        return explainer.broker(subject, at_ms)

    return asked(log, more, ask)


def asked(log: str, more: tuple[str, ...], ask: Callable[[Explainer], Awaitable[Any]]) -> Any:
    """The answer of an explainer over this log, as JSON values. Raises Failed, NotNow."""
    settings = settings_of({"log": log}, more)
    check_there(settings.log, "--log")
    return msgspec.json.decode(msgspec.json.encode(working(_asked(settings, ask))))


async def _asked(settings: Settings, ask: Callable[[Explainer], Awaitable[T]]) -> T:
    async with _explainer(settings) as explainer:
        return await ask(explainer)


@asynccontextmanager
async def _explainer(settings: Settings) -> AsyncGenerator[Explainer]:
    from loadmanager.channel.replay_queue import ReplayQueue
    from loadmanager.decisions.explaining.explainer import Explainer
    from loadmanager.decisions.explaining.whereabouts import ChannelReader
    from loadmanager.decisions.log import DecisionLog
    from loadmanager.diagnostics.topics import CHANNEL_TOPIC
    from statechannel.law.snapshot import SNAPSHOTS
    from statechannel.ports import TopicSpec
    from statechannel.runtime.view import wall_clock_ms

    async with opened_log(settings) as log:
        count = await log.open_topic(TopicSpec(CHANNEL_TOPIC, settings.partitions))
        await log.open_topic(TopicSpec(CHANNEL_TOPIC + SNAPSHOTS, count, compacted=True))
        decisions = DecisionLog(log, wall_clock_ms, asyncio.to_thread)
        await decisions.open()
        replays = ReplayQueue(log, CHANNEL_TOPIC, settings.snapshot_timeout_s)
        channel = ChannelReader(log, CHANNEL_TOPIC, count, replays)
        yield Explainer(decisions, channel, replays, lambda at: _documents(log, settings, at), asyncio.to_thread)


async def _documents(log: Log, settings: Settings, revision: int) -> Mapping[str, Policy]:
    """The policies of a revision, read from their topic."""
    from loadmanager.cluster.policy_store import PolicyStore
    from loadmanager.model.policies.validation import Known
    from statechannel.runtime.view import wall_clock_ms

    nothing_is_written = Known((), (), lambda _: (), settings)
    store = PolicyStore(log, lambda: nothing_is_written, wall_ms=wall_clock_ms, nonce="a reader")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        try:
            await store.wait_ready(settings.start_timeout_s)
            return store.documents.at(revision)
        finally:
            running.cancel()
