"""A client of a SQLite log as a process of its own, for `test_sqlite_files.py`.

log_process.py PATH append NAME APPENDS   appends `NAME.<i>.<j>`, three a time, printing `<i>` after each
log_process.py PATH tail                  prints `ready`, then each value that it reads
log_process.py PATH listen                prints `ready` and waits, holding a wake-up socket, to be killed
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from statechannel.adapters.sqlite_log import SqliteLog
from statechannel.ports import Payload, TopicSpec

TOPIC = "channel"


async def append(log: SqliteLog, name: str, appends: int) -> None:
    for i in range(appends):
        await log.append(TOPIC, 0, [Payload(None, f"{name}.{i}.{j}".encode()) for j in range(3)])
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
        case "tail":
            await tail(log)
        case _:
            print("ready", flush=True)
            await asyncio.Event().wait()
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
