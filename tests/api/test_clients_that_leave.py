"""A client that ends its connection in the middle of a request."""

from __future__ import annotations

import asyncio
import re

import aiohttp
import pytest

from tests.api.conftest import WAIT_S, Cluster
from tests.api.raw import Raw


async def test_a_client_that_leaves_before_its_body_is_there_is_no_bug(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
):
    await cluster.start(1)
    url = cluster.brokers[0].url
    head = b"PUT /v1/policies/broker/b:1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for key in (b"", b"Idempotency-Key: k\r\n"):
        leaving = await Raw.to(url)
        await leaving.send(head + key + b"Content-Length: 100\r\n\r\n{")
        leaving.writer.close()
        await leaving.writer.wait_closed()
    async with aiohttp.ClientSession() as session, asyncio.timeout(WAIT_S):
        while True:  # until the broker has noticed both
            async with session.get(f"{url}/metrics") as answer:
                text = await answer.text()
            ended = re.findall(r'loadmanager_http_requests_total\{[^}]*code="(?:4xx|none)"[^}]*\} ([0-9.]+)', text)
            if sum(float(each) for each in ended) >= 2:
                break
            await asyncio.sleep(0.05)
    assert "Exception in ASGI" not in caplog.text
