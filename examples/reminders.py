"""Timers that run once for each key: a reminder is sent by the owner of its key, wherever that is at the time.

No client asks for a reminder, so the namespace is eager: its bundles have owners without a lookup.
"""

import asyncio
import logging
import time
from contextlib import suppress

from loadmanager import Claim, FencedOut
from loadmanager.fencing import SqliteStore

NAMESPACE = "shop/reminders"
LOOK_S = 0.2
DUE = "SELECT key FROM reminder WHERE position >= ? AND position < ? AND due_s <= ? LIMIT 100"


class Reminders:
    def __init__(self, file):
        self.running = {}
        self.store = SqliteStore(file)
        self.store.create()
        with self.store.transaction() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS reminder (key TEXT PRIMARY KEY, position INTEGER, due_s REAL)")
            cursor.execute("CREATE TABLE IF NOT EXISTS sent (key TEXT, token TEXT)")

    async def prepare(self, bundle): ...

    async def acquire(self, bundle, token, hand_off):
        claim, stop = Claim(bundle, token), asyncio.Event()
        await asyncio.to_thread(self.raise_fence, claim)
        self.running[bundle] = stop, asyncio.create_task(self.run(claim, stop))

    async def release(self, bundle, to):
        if bundle in self.running:
            stop, task = self.running.pop(bundle)
            stop.set()
            await task  # what is being sent is sent before the next owner begins

    async def abandon(self, bundle):
        await self.release(bundle, None)

    async def load(self):
        return {}

    async def run(self, claim, stop):
        while not stop.is_set():
            try:
                await asyncio.to_thread(self.send_due, claim)
            except FencedOut:
                return  # a newer owner has the bundle: it sends what is left
            except Exception:
                logging.exception("%s: reminders are tried again", claim.bundle)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)

    def raise_fence(self, claim):
        with self.store.raising(claim):
            """Nothing to load: each look reads the store."""

    def send_due(self, claim):
        with self.store.transaction() as cursor:
            for (key,) in cursor.execute(DUE, (*claim.bundle.bounds, time.time())).fetchall():
                self.store.check(cursor, claim, key)
                cursor.execute("DELETE FROM reminder WHERE key = ?", (key,))
                cursor.execute("INSERT INTO sent VALUES (?, ?)", (key, str(claim.token)))
