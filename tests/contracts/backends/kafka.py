"""Where clients of the Kafka adapter meet: the test run's server, under topic names of their own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from statechannel.adapters.kafka.clients import MAX_ENTRY_BYTES
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.ports import Log


class KafkaLogBackend:
    max_payload_bytes = MAX_ENTRY_BYTES

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._clients: list[KafkaLog] = []

    async def open(self) -> Log:
        client = KafkaLog(self._bootstrap, default_partitions=2, development=True, request_timeout_s=30.0)
        self._clients.append(client)
        await client.start(timeout_s=60)
        return client

    def topic(self, name: str) -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def log_backend(request: pytest.FixtureRequest) -> AsyncGenerator[KafkaLogBackend]:
    from tests.servers import shared_kafka  # only a test that wants a server needs what starts it

    backend = KafkaLogBackend(shared_kafka(request.config).address)
    try:
        yield backend
    finally:
        await backend.aclose()


LOGS = {"kafka": log_backend}
