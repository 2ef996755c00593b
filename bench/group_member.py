"""One consumer of a group in a process of its own: `python -m bench.group_member ARGUMENTS`, as JSON.

Prints `joining TIME`, then a line for each record, or with `runs` for each run of records of one partition: the time,
the partition, the first offset, how many. SIGTERM closes it. `through` maps local ports to those of proxies.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Message

RUN_S = 0.05

Stopped = Callable[[], bool]


def main() -> None:
    told = json.loads(sys.argv[1])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    go_through({int(port): proxy for port, proxy in told.get("through", {}).items()})
    reading: Callable[[dict[str, Any], Stopped], Iterator[Message | None]] = plain
    if told["protocol"] == "ours":
        reading = ours
    elif told["protocol"] == "averagely":
        from bench.peers.averagely import averagely

        reading = averagely
    print(f"joining {time.time():.4f}", flush=True)
    read = reading(told, lambda: bool(stopped))
    tell(paced(read, told["pace_s"]) if told.get("pace_s") else read, RUN_S if told.get("runs") else 0.0)


def tell(messages: Iterator[Message | None], run_s: float) -> None:
    """Print what was read: what is not printed, a killed process has not read."""
    place, first, count, due_s = -1, 0, 0, 0.0
    for message in messages:
        goes_on = message is not None and (message.partition(), message.offset()) == (place, first + count)
        if count and (not goes_on or time.time() > due_s):
            print(f"{time.time():.4f} {place} {first} {count}", flush=True)
            count = 0
        if message is None:
            continue
        if not count:
            place, first, due_s = message.partition() or 0, message.offset() or 0, time.time() + run_s
        count += 1
        if not run_s:
            print(f"{time.time():.4f} {place} {first} 1", flush=True)
            count = 0
    if count:
        print(f"{time.time():.4f} {place} {first} {count}", flush=True)


def paced(messages: Iterator[Message | None], pace_s: float) -> Iterator[Message | None]:
    """No more than so many a second."""
    number, begin_s = 0, time.monotonic()
    for message in messages:
        if message is not None:
            number += 1
            ahead_s = number / pace_s - (time.monotonic() - begin_s)
            if ahead_s > 0.01:
                time.sleep(ahead_s)
            elif ahead_s < -0.5:  # it does not catch up later
                number, begin_s = 0, time.monotonic()
        yield message


def go_through(proxies: dict[int, int]) -> None:
    """Connect to these ports by way of proxies, as a network does that somebody can cut."""
    connect = asyncio.SelectorEventLoop.sock_connect

    async def sock_connect(loop: Any, sock: Any, address: Any) -> None:
        host, port, *more = address
        await connect(loop, sock, (host, proxies.get(port, port), *more))

    asyncio.SelectorEventLoop.sock_connect = sock_connect  # type: ignore[method-assign]


def ours(told: dict[str, Any], stopped: Stopped) -> Iterator[Message | None]:
    """By a coordinator in a broker."""
    from loadmanager.consumer.group_consumer import GroupConsumer

    consumer = GroupConsumer(
        told["group"], [told["topic"]], brokers=told["brokers"], kafka=settings(told),
        session_timeout_s=told["session_s"], commit_interval_s=1.0,
    )  # fmt: skip
    with consumer:
        while not stopped():
            yield consumer.poll(0.1)


def plain(told: dict[str, Any], stopped: Stopped) -> Iterator[Message | None]:
    """By one of Kafka's protocols."""
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(told["session_s"] * 1000),
        "heartbeat.interval.ms": int(told["session_s"] * 1000 / 3),
    }
    more = classic if told["protocol"] == "classic" else {"group.protocol": "consumer"}
    consumer = Consumer({
        **settings(told), **more, "group.id": told["group"], "auto.commit.interval.ms": 1_000,
    })  # fmt: skip
    consumer.subscribe([told["topic"]])
    try:
        while not stopped():
            message = consumer.poll(0.1)
            yield None if message is None or message.error() is not None else message
    finally:
        consumer.close()


def settings(told: dict[str, Any]) -> dict[str, Any]:
    """Of Kafka's client, for everybody."""
    return {
        "bootstrap.servers": told["kafka"],
        "broker.address.family": "v4",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
    }


if __name__ == "__main__":
    main()
