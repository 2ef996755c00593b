"""A consumer that cannot read says what it waits for, within seconds, and goes on when that is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.errors import Forbidden
from loadmanager.testing import NAMESPACE, embedded_cluster
from tests.loadmanager.consumers.running import KnownTopics, running
from tests.loadmanager.embedded import PATIENT

pytestmark = pytest.mark.slow
NO_KAFKA = "127.0.0.1:9"
SOON_S = 12.0


@asynccontextmanager
async def consuming(group: str, brokers: Sequence[str], *topics: str) -> AsyncGenerator[GroupConsumer]:
    """A consumer that polls all the time."""
    kafka = {"bootstrap.servers": NO_KAFKA, "log_level": 0}
    with GroupConsumer(group, topics or ("orders",), brokers=brokers, kafka=kafka, session_timeout_s=5.0) as found:
        yield found


async def until(consumer: GroupConsumer, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not holds():
            await asyncio.to_thread(consumer.poll, 0.1)


def warned(caplog: pytest.LogCaptureFixture, *says: str) -> Callable[[], bool]:
    return lambda: any(
        all(each in record.getMessage() for each in says)
        for record in caplog.records
        if record.levelno >= logging.WARNING
    )


async def test_it_says_which_topics_and_servers_it_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        topics = KnownTopics({"orders": 2})
        coordinator = await running(stack, tmp_path, topics)
        cluster = await stack.enter_async_context(
            embedded_cluster(lambda: coordinator, brokers=1, bundles=1, **PATIENT)
        )
        async with consuming(f"{NAMESPACE}/billing", cluster.admin_urls, "orders", "ordres") as consumer:
            await until(consumer, warned(caplog, "waits for ordres: there is no such topic"))
            assert not warned(caplog, "orders,")()
            await until(consumer, warned(caplog, "waits for Kafka: no server answers", "Connection refused"))
            topics.known["ordres"] = 1
            await until(consumer, warned(caplog, "goes on: what it waited for is there"))
            assert consumer.assignment == [("orders", 0), ("orders", 1), ("ordres", 0)]
        async with consuming("no/such/billing", cluster.admin_urls) as consumer:
            await until(consumer, warned(caplog, "there is no namespace no/such; create it first"))


async def test_it_says_that_brokers_coordinate_no_groups(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        embedded_cluster(brokers=1, bundles=1, **PATIENT) as cluster,
        consuming(f"{NAMESPACE}/billing", cluster.admin_urls) as consumer,
    ):
        await until(consumer, warned(caplog, "coordinates no consumer groups", "--host loadmanager.consumer.hosting"))


async def test_it_says_that_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    async with consuming(f"{NAMESPACE}/billing", [f"http://{NO_KAFKA}"]) as consumer:
        await until(consumer, warned(caplog, "no broker answers a lookup"))


@pytest.mark.parametrize("status", [401, 500, 503, 200])
async def test_what_may_pass_is_asked_again_less_and_less_often(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A broker whose issuer of tokens is away, one that starts, a proxy in their place. 403 is final."""
    asked, answers = 0, status

    async def answer(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"type": "about:blank", "detail": "not now"}, status=answers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with consuming(f"{NAMESPACE}/billing", [f"http://127.0.0.1:{port}"]) as consumer:
            await until(consumer, warned(caplog, "waits for an answer of the group's coordinator"))
            if status == 401:
                assert asked < 20, "it waits longer each time"
            answers = 403
            with pytest.raises(Forbidden, match="not now"):
                await until(consumer, lambda: False)
    finally:
        await runner.cleanup()
