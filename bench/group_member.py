"""One consumer of a group in a process of its own: `python -m bench.group_member ARGUMENTS`, as JSON.

Prints `joining TIME`, then a line for each record: the time, its partition, its offset. SIGTERM closes it.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Message


def main() -> None:
    told = json.loads(sys.argv[1])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    print(f"joining {time.time():.4f}", flush=True)
    reading = ours if told["protocol"] == "ours" else plain
    for message in reading(told, lambda: bool(stopped)):
        print(f"{time.time():.4f} {message.partition()} {message.offset()}", flush=True)


def ours(told: dict[str, Any], stopped: Callable[[], bool]) -> Iterator[Message]:
    """By a coordinator in a broker."""
    from loadmanager.consumer.group_consumer import GroupConsumer

    consumer = GroupConsumer(
        told["group"], [told["topic"]], brokers=told["brokers"], kafka=_settings(told),
        session_timeout_s=told["session_s"], commit_interval_s=1.0,
    )  # fmt: skip
    with consumer:
        while not stopped():
            message = consumer.poll(0.1)
            if message is not None:
                yield message


def plain(told: dict[str, Any], stopped: Callable[[], bool]) -> Iterator[Message]:
    """By one of Kafka's protocols."""
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(told["session_s"] * 1000),
        "heartbeat.interval.ms": int(told["session_s"] * 1000 / 3),
    }
    more = classic if told["protocol"] == "classic" else {"group.protocol": "consumer"}
    consumer = Consumer({
        **_settings(told), **more, "group.id": told["group"], "auto.commit.interval.ms": 1_000,
    })  # fmt: skip
    consumer.subscribe([told["topic"]])
    try:
        while not stopped():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                yield message
    finally:
        consumer.close()


def _settings(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": told["kafka"],
        "broker.address.family": "v4",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
    }


if __name__ == "__main__":
    main()
