"""Carts in PostgreSQL, kept in memory by their owner; a former owner cannot write. With asyncio and psycopg 3."""

from loadmanager import Broker, BundleLoad, Claim, Key, NotServing
from loadmanager.fencing import AsyncPostgresStore

TABLE = """
CREATE TABLE IF NOT EXISTS cart_item (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cart TEXT NOT NULL, position BIGINT NOT NULL, item TEXT NOT NULL
)"""
LOAD = "SELECT cart, item FROM cart_item WHERE position >= %s AND position < %s ORDER BY id"
ADD = "INSERT INTO cart_item (cart, position, item) VALUES (%s, %s, %s)"


class Carts:
    broker: Broker  # that which is given these carts

    def __init__(self, store: AsyncPostgresStore):
        self.store, self.held = store, {}

    async def create_tables(self):  # once, or in your migrations: `store.schema` is the table of the fences
        await self.store.create()
        async with self.store.transaction() as cursor:
            await cursor.execute(TABLE)

    async def prepare(self, bundle): ...

    async def acquire(self, bundle, token, hand_off):
        carts = {}
        async with self.store.raising(Claim(bundle, token)) as cursor:  # now the former owner is fenced out
            await cursor.execute(LOAD, bundle.bounds)
            async for cart, item in cursor:
                carts.setdefault(cart, []).append(item)
        self.held[bundle] = carts

    async def release(self, bundle, to):
        await self.broker.quiesce(bundle)
        self.held.pop(bundle, None)

    async def abandon(self, bundle):
        await self.release(bundle, None)

    async def load(self):
        return {bundle: BundleLoad(keys=len(carts)) for bundle, carts in self.held.items()}

    async def add(self, cart, item):
        """A request. `cart` is a key, as shop/carts/alice."""
        async with self.broker.admit(cart) as claim:
            if claim.bundle not in self.held:
                raise NotServing(f"{claim.bundle} is not loaded")
            async with self.store.writing(claim, cart) as cursor:  # raises FencedOut, which is a NotServing
                await cursor.execute(ADD, (cart, Key.parse(cart).position, item))
            self.held[claim.bundle].setdefault(cart, []).append(item)  # only after the commit
            return self.held[claim.bundle][cart]
