"""An admin client that gets no answer gives way to another one within the same request."""

from __future__ import annotations

import asyncio

import pytest

from statechannel.adapters.kafka.admin import Admin
from statechannel.adapters.kafka.clients import admin_settings, connection_settings
from statechannel.errors import LogUnavailable

NOWHERE = "127.0.0.1:1"
REQUEST_S = 0.8


@pytest.fixture
def admin():
    admin = Admin(admin_settings(connection_settings(NOWHERE, {}, REQUEST_S)), NOWHERE, REQUEST_S)
    yield admin
    admin.close()


async def test_a_stranded_client_gives_way_within_the_first_request(admin: Admin):
    with admin.lent() as stranded:
        pass

    async def ask() -> str:
        with admin.lent() as client:
            if client is not stranded:
                return "answered"
        await asyncio.Event().wait()
        return "never"

    assert await admin.until_answered(ask, REQUEST_S) == "answered"


async def test_a_client_that_kafka_refuses_is_kept_until_the_deadline(admin: Admin):
    used: list[object] = []

    async def ask() -> str:
        with admin.lent() as client:
            used.append(client)
        raise LogUnavailable("an election")

    with pytest.raises(LogUnavailable, match="an election"):
        await admin.until_answered(ask, REQUEST_S)
    assert len(used) > 2
    assert len(set(map(id, used))) == 1
