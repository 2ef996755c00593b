"""One consumer of a group in a process of its own: `python -m bench.group_member ARGUMENTS`, as JSON.

Prints `joining TIME`, `assigned TIME PARTITION…` when partitions become its own, and what it reads as `FIRST-TIME
PARTITION OFFSET COUNT LAST-TIME`. That is a line for each record, before the next one is asked for; with `gather_s` a
line for consecutive records read within so long. With `rate_s` it takes no more than so many records a second, with
`held_s` no more than that before SIGUSR1. SIGTERM closes it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

SUSPENDED_S = 0.5
"""To ask for a record takes 0.1 s: a process for which it took longer did not run."""

Stopped = Callable[[], bool]
Assigned = Callable[[Iterable[int]], None]
Reading = Iterator[Message | None]
"""Records, and None when none came for a moment."""


def main() -> None:
    told = json.loads(sys.argv[1])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    if told.get("ways"):
        asyncio.set_event_loop_policy(Ways(told["ways"]))
    print(f"joining {time.time():.4f}", flush=True)
    reading = {"ours": ours, "rocketmq": rocketmq}.get(told["protocol"], plain)
    printing, pace = Printing(told.get("gather_s", 0.0)), Pace(told.get("held_s") or told.get("rate_s", 0.0))
    signal.signal(signal.SIGUSR1, lambda *_: pace.bound(told["rate_s"]))
    asked_s = time.time()
    for message in reading(told, lambda: bool(stopped), printing.assigned):
        if message is None:
            printing.flush()
        else:
            printing.read(message, asked_s)
            pace.wait()
        asked_s = time.time()
    printing.flush()


class Printing:
    """Says what is read."""

    def __init__(self, gather_s: float) -> None:
        self._gather_s = gather_s
        self._runs: dict[int, tuple[float, int, int, float]] = {}
        """By partition: time of the first record, its offset, how many, time of the last one."""

    def assigned(self, partitions: Iterable[int]) -> None:
        """Partitions are its own from now on."""
        self.flush()
        if found := list(partitions):
            print(f"assigned {time.time():.4f}", *found, flush=True)

    def read(self, message: Message, asked_s: float) -> None:
        """One record, asked for at this time. If the process was suspended since, that time counts: it wakes with a
        record that it was given in time, and asks for the next one in vain."""
        partition, offset, now_s = message.partition() or 0, message.offset() or 0, time.time()
        if now_s - asked_s > SUSPENDED_S:
            now_s = asked_s
        run = self._runs.get(partition)
        if run is not None and run[1] + run[2] == offset and now_s - run[0] < self._gather_s:
            self._runs[partition] = (run[0], run[1], run[2] + 1, now_s)
            return
        self.flush()
        self._runs[partition] = (now_s, offset, 1, now_s)
        if not self._gather_s:
            self.flush()

    def flush(self) -> None:
        """All that was read is printed."""
        for partition, (first_s, offset, count, last_s) in self._runs.items():
            print(f"{first_s:.4f} {partition} {offset} {count} {last_s:.4f}", flush=True)
        self._runs.clear()


class Pace:
    """Keeps the mean rate of records below a bound; time without records does not count as credit."""

    def __init__(self, rate_s: float) -> None:
        self._next_s = 0.0
        self.bound(rate_s)

    def bound(self, rate_s: float) -> None:
        """Another bound from now on, 0 for none."""
        self._each_s = 1 / rate_s if rate_s else 0.0

    def wait(self) -> None:
        """One record was taken."""
        if not self._each_s:
            return
        now_s = time.monotonic()
        self._next_s = max(self._next_s, now_s - 0.02) + self._each_s
        if self._next_s - now_s > 0.005:
            time.sleep(self._next_s - now_s)


class Ways(asyncio.DefaultEventLoopPolicy):
    """Loops whose connections to an address go to another one: through the member's own proxy."""

    def __init__(self, ways: dict[str, int]) -> None:
        """From ports to ports of the loopback."""
        super().__init__()

        class Loop(asyncio.SelectorEventLoop):
            async def sock_connect(self, sock: Any, address: Any) -> None:
                host, port, *_ = address
                await super().sock_connect(sock, (host, ways.get(str(port), port)))

        self._loop_factory = Loop


def ours(told: dict[str, Any], stopped: Stopped, assigned: Assigned) -> Reading:
    """By a coordinator in a broker."""
    from loadmanager.consumer.group_consumer import GroupConsumer

    consumer = GroupConsumer(
        told["group"], [told["topic"]], brokers=told["brokers"], kafka=settings_of(told),
        session_timeout_s=told["session_s"], commit_interval_s=1.0,
        on_assign=lambda partitions: assigned(number for _, number in partitions),
    )  # fmt: skip
    with consumer:
        while not stopped():
            yield consumer.poll(0.1)


def plain(told: dict[str, Any], stopped: Stopped, assigned: Assigned) -> Reading:
    """By one of Kafka's protocols. A record is done when the next one is asked for."""
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(told["session_s"] * 1000),
        "heartbeat.interval.ms": int(told["session_s"] * 1000 / 3),
    }
    more = classic if told["protocol"] == "classic" else {"group.protocol": "consumer"}
    consumer = Consumer({
        **settings_of(told), **more, "group.id": told["group"], "auto.commit.interval.ms": 1_000,
        "enable.auto.offset.store": False,
    })  # fmt: skip

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        assigned(each.partition for each in partitions)

    consumer.subscribe([told["topic"]], on_assign=on_assign)
    try:
        while not stopped():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                yield None
                continue
            yield message
            with suppress(KafkaException):  # it is not its own any more
                consumer.store_offsets(message)
    finally:
        consumer.close()


def rocketmq(told: dict[str, Any], stopped: Stopped, assigned: Assigned) -> Reading:
    """As RocketMQ's push consumer."""
    from bench.peers.rocketmq import PushConsumer

    with PushConsumer(told, settings_of(told), assigned) as consumer:
        while not stopped():
            yield consumer.poll(0.1)


def settings_of(told: dict[str, Any]) -> dict[str, Any]:
    """Of Kafka's client, equal for all."""
    return {
        "bootstrap.servers": told["kafka"],
        "broker.address.family": "v4",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        **told.get("kafka_settings", {}),
    }


if __name__ == "__main__":
    main()
