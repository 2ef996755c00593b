"""The examples of the how-to pages on timers and PostgreSQL: nothing is done twice, whoever dies."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.carts_postgresql import ADD, Carts
from examples.reminders import NAMESPACE, Reminders
from loadmanager import Broker, Claim, FencedOut, Key
from loadmanager.fencing import AsyncPostgresStore
from loadmanager.testing import embedded_cluster
from stack.stores import PostgresServer
from tests.pages import blocks

REMINDERS = 300
ALICE = "shop/carts/alice"
PATIENCE_S = 60.0


class AttachedCarts(Carts):
    """The example has `broker` set by its service; here the cluster does it."""

    def attached(self, broker: Broker) -> None:
        self.broker = broker


def sent(reminders: Reminders) -> list[tuple[str, str]]:
    """Key, and the token under which it was sent, in the order of sending."""
    with reminders.store.transaction() as cursor:
        return list(cursor.execute("SELECT key, token FROM sent ORDER BY rowid"))


@pytest.mark.slow
async def test_each_reminder_is_sent_once_while_owners_move_and_die(tmp_path: Path):
    reminders = Reminders(tmp_path / "shop.db")
    keys = [Key.parse(f"{NAMESPACE}/{i}") for i in range(REMINDERS)]
    with reminders.store.transaction() as cursor:
        rows = [(key.full_name, key.position, time.time() + i % 100 / 10) for i, key in enumerate(keys)]
        cursor.executemany("INSERT INTO reminder VALUES (?, ?, ?)", rows)
    async with embedded_cluster(lambda: Reminders(tmp_path / "shop.db"), brokers=0) as cluster:
        await cluster.add(3)
        await cluster.brokers[0].ensure_namespace(NAMESPACE, 4)
        assert "eager" in await command(cluster.admin_urls[0])
        await cluster.until(lambda: len(sent(reminders)) > 10)
        first = holders(cluster.brokers[0])
        for bundle in first:
            await cluster.brokers[0].transfer(bundle, next(b.name for b in cluster.brokers if b.name != first[bundle]))
        await cluster.until(lambda: len(sent(reminders)) > 60)
        owners = set(holders(cluster.brokers[0]).values())
        await cluster.kill(next(broker for broker in cluster.brokers if broker.name in owners))
        await cluster.until(lambda: len({key for key, _ in sent(reminders)}) == REMINDERS)
        bundles = list(holders(cluster.brokers[0]))
    found = sent(reminders)
    assert sorted(key for key, _ in found) == sorted(key.full_name for key in keys)
    for bundle in bundles:
        tokens = [token for key, token in found if key in bundle]
        assert tokens == sorted(tokens), "a former owner sent after its successor"


def holders(broker: Any) -> dict[Any, str]:
    known = broker.node.channel.table.namespace(NAMESPACE)
    entries = [broker.node.channel.table.get(bundle) for bundle in known.bundles]
    return {entry.bundle: entry.holder.name for entry in entries if entry.holder is not None}


async def command(admin_url: str) -> str:
    """The page's command, as it stands."""
    [line] = [block.text for block in blocks("docs/how-to/timers.md") if block.language == "sh"]
    arguments = re.findall(r"'[^']*'|\S+", line)
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "loadmanager"), "--admin-url", admin_url),
        *(argument.strip("'") for argument in arguments[1:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    return line


@pytest.mark.postgresql
async def test_carts_survive_their_owner_and_refuse_its_late_writes(postgres_server: PostgresServer):
    url, schema = postgres_server.url, f"carts_{uuid.uuid4().hex[:8]}"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as admin:
        await admin.execute(f'CREATE SCHEMA "{schema}"'.encode())
        async with AsyncPostgresStore(f"{url}?options=-csearch_path%3D{schema}") as store:
            await Carts(store).create_tables()
            async with embedded_cluster(
                lambda: AttachedCarts(store), brokers=3, bundles=4, namespace="shop/carts"
            ) as cluster:
                owner = cluster.owner(ALICE)
                assert owner is not None
                assert await cluster.host(owner).add(ALICE, "book") == ["book"]
                former = owner.claim(ALICE)
                assert isinstance(former, Claim)
                await cluster.transfer(ALICE, next(broker for broker in cluster.brokers if broker is not owner))
                second = cluster.owner(ALICE)
                assert second is not None
                assert await cluster.host(second).add(ALICE, "pen") == ["book", "pen"]
                with pytest.raises(FencedOut):
                    async with store.writing(former, ALICE) as cursor:
                        await cursor.execute(ADD, (ALICE, Key.parse(ALICE).position, "late"))
                await cluster.kill(second)
                await cluster.settled()
                third = cluster.owner(ALICE)
                assert third is not None
                assert await cluster.host(third).add(ALICE, "ink") == ["book", "pen", "ink"]
        await admin.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
