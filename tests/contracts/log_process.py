"""A client of a SQLite log as a process of its own, for the tests of its adapter.

log_process.py PATH append NAME APPENDS   appends `NAME.<i>.<j>`, three a time, printing `<i>` after each
log_process.py PATH commit NAME COMMITS   commits groups of 100 times `NAME.<i>`, exclusively, printing `<i>` after each
log_process.py PATH churn NAME APPENDS    as append, and trims all but the last 60 entries after each
log_process.py PATH tail                  prints `ready`, then each value that it reads
log_process.py PATH listen                prints `ready` and waits, holding a wake-up socket, to be killed
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import Payload, TopicSpec

TOPIC = "channel"


async def append(log: SqliteLog, name: str, appends: int) -> None:
    for i in range(appends):
        await log.append(TOPIC, 0, [Payload(None, f"{name}.{i}.{j}".encode()) for j in range(3)])
        print(i, flush=True)


async def commit(log: SqliteLog, name: str, commits: int) -> None:
    writer = await log.exclusive(name)
    for i in range(commits):
        await writer.commit(TOPIC, 0, [Payload(None, f"{name}.{i}".encode().ljust(20_000))] * 100)
        print(i, flush=True)


async def churn(log: SqliteLog, name: str, appends: int) -> None:
    for i in range(appends):
        await log.append(TOPIC, 0, [Payload(None, f"{name}.{i}.{j}".encode()) for j in range(3)])
        (end,) = await log.ends(TOPIC)
        await log.trim(TOPIC, 0, max(0, end - 60))
        print(i, flush=True)


async def tail(log: SqliteLog) -> None:
    ends = await log.ends(TOPIC)
    print("ready", flush=True)
    async for batch in log.tail(TOPIC, ends):
        for entry in batch:
            print((entry.value or b"").decode(), flush=True)


async def main(path: str, duty: str, *arguments: str) -> None:
    log = SqliteLog(Path(path))
    await log.start(timeout_s=20)
    await log.open_topic(TopicSpec(TOPIC, partitions=1))
    match duty:
        case "append":
            await append(log, arguments[0], int(arguments[1]))
        case "commit":
            await commit(log, arguments[0], int(arguments[1]))
        case "churn":
            await churn(log, arguments[0], int(arguments[1]))
        case "tail":
            await tail(log)
        case _:
            print("ready", flush=True)
            await asyncio.Event().wait()
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
