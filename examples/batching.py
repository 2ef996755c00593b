"""One line gathers single inserts into batches: many tasks insert a page view each, and each hears of its own."""

import asyncio
import sqlite3
import sys
import time

from loadmanager import AutoBatch

VIEWS = 2_000


class Views:
    def __init__(self, file):
        self.turn = asyncio.Lock()
        self.transactions = 0
        self.db = sqlite3.connect(file, check_same_thread=False)
        self.db.execute("CREATE TABLE IF NOT EXISTS view (page TEXT, at_s REAL)")

    async def insert_many(self, rows):
        async with self.turn:
            await asyncio.to_thread(self.insert, rows)

    def insert(self, rows):
        with self.db:  # one transaction, one wait for the disk
            self.db.executemany("INSERT INTO view VALUES (?, ?)", rows)
        self.transactions += 1


async def one_by_one(views):
    async def insert(row):
        await views.insert_many([row])

    await timed(views, insert, "one by one")


async def in_batches(views):
    async with AutoBatch(views.insert_many) as batch:  # this line switches it on
        await timed(views, batch.send, "in batches")


async def timed(views, insert, how):
    began_s, before = time.perf_counter(), views.transactions
    await asyncio.gather(*(insert((f"/page/{number}", time.time())) for number in range(VIEWS)))
    took_s, transactions = time.perf_counter() - began_s, views.transactions - before
    print(f"{how}: {VIEWS} views in {transactions} transactions, {took_s:.2f} s", flush=True)


async def main(file):
    views = Views(file)
    await one_by_one(views)
    await in_batches(views)
    views.db.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
