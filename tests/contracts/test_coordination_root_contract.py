"""What each adapter owes when the data of its coordination root is deleted, or another root stands in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statechannel.errors import CoordinationUnavailable, Fenced, ForeignCluster, ForeignRoot, RootLost
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Coordination, Identity, Leadership

A = "broker-a:8080"

WRITES: dict[str, Callable[[Coordination, BrokerId, Leadership], Awaitable[Any]]] = {
    "start_incarnation": lambda client, me, _: client.start_incarnation(me.name, 0),
    "register": lambda client, me, _: client.register(me, b"data"),
    "prove": lambda client, me, _: client.prove(me),
    "raise_incarnation": lambda client, me, lead: client.raise_incarnation(me, lead.epoch),
    "campaign": lambda client, me, _: client.campaign(me),
    "claim": lambda client, me, _: client.claim("keeper", me),
    "evict": lambda client, _, lead: client.evict(lead),
}


async def leading(client: Coordination) -> tuple[str, BrokerId, Leadership]:
    root = await client.identify("c", "log")
    me = await client.start_incarnation(A, above=0)
    await client.register(me, b"data")
    leadership = await client.campaign(me)
    assert leadership is not None
    return root, me, leadership


@pytest.mark.parametrize("write", WRITES)
async def test_a_root_that_is_gone_gives_nothing_and_says_so(coordinations, until, write: str):
    client, other = await coordinations.open(), await coordinations.open()
    root, me, leadership = await leading(client)
    await coordinations.wipe()
    with pytest.raises(RootLost, match=root):
        await asked(lambda: WRITES[write](client, me, leadership))
    assert client.connection is Connection.SUSPENDED, "what is not there says nothing of who is alive"
    assert await other.identity() is None, "nothing was made"
    assert await client.identity() is None, "to ask whose root it is needs no root"


@pytest.mark.parametrize("write", WRITES)
async def test_another_root_in_its_place_is_told_from_it_whatever_its_numbers_are(coordinations, write: str):
    client, other = await coordinations.open(), await coordinations.open()
    root, me, leadership = await leading(client)
    await coordinations.wipe()
    new, namesake, _ = await leading(await coordinations.open())
    assert namesake == me, "the same name and number, in another root"
    with pytest.raises(ForeignRoot) as refused:
        await asked(lambda: WRITES[write](client, me, leadership))
    assert root in str(refused.value)
    assert new in str(refused.value)
    assert await other.identity() == Identity("c", "log", new)


async def test_a_client_goes_on_in_the_root_that_the_log_names_next(coordinations, until):
    client = await coordinations.open()
    _, me, _ = await leading(client)
    await coordinations.wipe()
    with pytest.raises(RootLost):
        await asked(lambda: client.prove(me))
    new = await (await coordinations.open()).identify("c", "log")
    with pytest.raises(ForeignCluster):
        await client.identify("c", "log", "the lost one")
    assert await client.identify("c", "log", new) == new
    again = await client.start_incarnation(A, above=me.incarnation)
    assert again.incarnation > me.incarnation
    await client.register(again, b"data")
    await until(client, lambda: client.connection is Connection.CONNECTED and A in client.members)
    with pytest.raises(Fenced):
        await client.prove(me)


async def test_an_epoch_is_above_all_that_the_log_has_seen(coordinations):
    client = await coordinations.open()
    _, me, first = await leading(client)
    await client.resign(first)
    for above in (first.epoch + 3, 0, 1_700):
        leadership = await client.campaign(me, above)
        assert leadership is not None
        assert leadership.epoch > max(above, first.epoch)
        await client.raise_incarnation(BrokerId("broker-b:8080", 1), leadership.epoch)
        await client.resign(leadership)
        first = leadership


async def asked(write: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the service answers: what was deleted may first be seen as a link that is in doubt."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await write()
            except RootLost:
                raise
            except CoordinationUnavailable:
                await asyncio.sleep(0.01)
