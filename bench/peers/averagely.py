"""A group as RocketMQ's clients have it: each divides the queues by itself, and nobody waits for anybody.

What facts of RocketMQ 5 it keeps: a client takes the list of clients from the broker every 20 s, and when the broker
says that the list has changed; sorts it; allocates averagely; drops what is not its own any more and stores its offset;
takes what is, from the stored offset. It stores offsets every 5 s. Here the list is a file and the word a SIGUSR1, and
Kafka keeps records and offsets. No locks, as with RocketMQ's concurrent consumption.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_STORED, Consumer, Message, TopicPartition

from bench.group_member import settings
from loadmanager.consumers.allocation.averagely import Averagely
from loadmanager.consumers.allocation.strategy import MessageQueue

LOOK_EVERY_S = 20.0
STORE_EVERY_S = 5.0


def averagely(told: dict[str, Any], stopped: Callable[[], bool]) -> Iterator[Message | None]:
    """Records, until it is stopped; `told` has its name `me`, the file `clients`, and how many `queues` there are."""
    news = [True]

    def told_news(number: int, frame: object) -> None:
        del number, frame
        news.append(True)

    signal.signal(signal.SIGUSR1, told_news)
    consumer = Consumer({**settings(told), "group.id": told["group"], "enable.auto.commit": False})
    queues = [MessageQueue(told["topic"], "broker", number) for number in range(told["queues"])]
    mine: dict[int, int] = {}
    """By queue: where it goes on; -1 before the first record."""
    looked_s = stored_s = 0.0

    def store(numbers: list[int]) -> None:
        offsets = [TopicPartition(told["topic"], number, mine[number]) for number in numbers if mine[number] >= 0]
        if offsets:
            consumer.commit(offsets=offsets, asynchronous=False)

    while not stopped():
        now_s = time.monotonic()
        if news or now_s - looked_s > LOOK_EVERY_S:
            news.clear()
            looked_s = now_s
            clients = sorted(json.loads(Path(told["clients"]).read_text()))
            if told["me"] in clients:
                wanted = {each.queue_id for each in Averagely().allocate(told["me"], queues, clients)}
                dropped, taken = sorted(mine.keys() - wanted), sorted(wanted - mine.keys())
                if dropped:
                    consumer.incremental_unassign([TopicPartition(told["topic"], number) for number in dropped])
                    store(dropped)
                    for number in dropped:
                        del mine[number]
                if taken:
                    mine |= dict.fromkeys(taken, -1)
                    consumer.incremental_assign(
                        [TopicPartition(told["topic"], number, OFFSET_STORED) for number in taken]
                    )
        if now_s - stored_s > STORE_EVERY_S:
            stored_s = now_s
            store(list(mine))
        message = consumer.poll(0.1)
        if message is None or message.error() is not None or message.partition() not in mine:
            yield None
            continue
        yield message
        mine[message.partition() or 0] = (message.offset() or 0) + 1
    store(list(mine))
    consumer.close()
