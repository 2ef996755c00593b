"""A consumer that shares partitions as RocketMQ's push consumer does by default, on Kafka's records and offsets.

Written after RocketMQ 5's client (`RebalanceImpl`, `RebalancePushImpl`, `RebalanceService`, `RemoteBrokerOffsetStore`):

* Each client allocates by itself, AVERAGELY over the sorted ids of the group: every 20 s, and when the broker says that
  they have changed.
* What is not its own any more it drops at once, and stores how far it came. It waits for nobody, and nobody for it:
  concurrent consumers take no lock.
* Of what is new it reads the stored offset at once, and pulls 500 ms later.
* It stores its offsets every 5 s, and before it says farewell.

Where it is kinder than RocketMQ: one record is in progress at a time, not one on each of 20 threads; the broker learns
at once that a connection has ended; and all clients ask the same broker for the ids.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Message, TopicPartition

from loadmanager.consumers.allocation.rocketmq import Averagely, MessageQueue

REBALANCE_S = 20.0
COMMIT_S = 5.0
PULL_LATER_S = 0.5
WAIT_S = 30.0


class ConsumerIds:
    """The broker's list of a group's clients: each says its id once, and is told all of them with every change."""

    def __init__(self) -> None:
        self._clients: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().strip()
        self._clients[name] = writer
        self._notify()
        await reader.read()
        del self._clients[name]
        self._notify()
        writer.close()

    def _notify(self) -> None:
        for writer in self._clients.values():
            writer.write(" ".join(sorted(self._clients)).encode() + b"\n")

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._clients.values()):
                writer.close()
            await self._server.wait_closed()


class PushConsumer:
    """One client; use `with`. `told` has the group, the topic, how many partitions that has, the client's id, and the
    port of `ConsumerIds`. `assigned` is called before the stored offsets of new partitions are read."""

    def __init__(
        self, told: Mapping[str, Any], settings: Mapping[str, Any], assigned: Callable[[Iterable[int]], None]
    ) -> None:
        self._topic, self._name, self._assigned = told["topic"], told["id"], assigned
        self._queues = [MessageQueue(self._topic, "kafka", number) for number in range(told["partitions"])]
        more = {"group.id": told["group"], "enable.auto.commit": False, "enable.auto.offset.store": False}
        self._kafka = Consumer({**settings, **more})
        self._mine: set[int] = set()
        self._pulled_at_s: dict[int, tuple[float, int]] = {}
        """New ones: from when on they are pulled, and from which offset."""
        self._consumed: dict[int, int] = {}
        self._last: Message | None = None
        self._rebalance_s = self._commit_s = 0.0
        self._ids: list[str] = []
        self._news = threading.Event()
        self._broker = socket.create_connection(("127.0.0.1", told["ids_port"]))
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._broker.sendall(f"{self._name}\n".encode())
        self._listening.start()
        self._rebalance_s = time.monotonic() + REBALANCE_S
        self._commit_s = time.monotonic() + COMMIT_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done()
        if self._consumed:
            self._kafka.commit(offsets=self._places(self._consumed), asynchronous=False)
        self._broker.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self._broker.close()
        self._kafka.close()

    def poll(self, timeout_s: float) -> Message | None:
        """The next record, None if none comes in time. The one before is done now."""
        self._done()
        now_s = time.monotonic()
        if self._news.is_set() or now_s >= self._rebalance_s:
            self._news.clear()
            self._rebalance_s = now_s + REBALANCE_S
            self._rebalance()
        if now_s >= self._commit_s:
            self._commit_s = now_s + COMMIT_S
            self._store(self._consumed)
        if self._pulled_at_s:
            self._pull(now_s)
            timeout_s = min(timeout_s, 0.02)
        message = self._kafka.poll(timeout_s)
        if message is None or message.error() is not None:
            return None
        self._last = message
        return message

    def _done(self) -> None:
        if self._last is not None:
            self._consumed[self._last.partition() or 0] = (self._last.offset() or 0) + 1
            self._last = None

    def _listen(self) -> None:
        with self._broker.makefile("r") as lines:
            for line in lines:
                self._ids = line.split()
                self._news.set()

    def _rebalance(self) -> None:
        wanted = {queue.queue_id for queue in Averagely().allocate(self._name, self._queues, self._ids)}
        dropped, new = self._mine - wanted, wanted - self._mine
        self._mine = wanted
        pulled = [each for each in dropped if self._pulled_at_s.pop(each, None) is None]
        if pulled:
            self._kafka.incremental_unassign([TopicPartition(self._topic, each) for each in pulled])
        self._store({each: self._consumed.pop(each) for each in dropped if each in self._consumed})
        if new:
            self._assigned(new)
            places = [TopicPartition(self._topic, each) for each in new]
            for place in self._kafka.committed(places, timeout=WAIT_S):
                self._pulled_at_s[place.partition] = time.monotonic() + PULL_LATER_S, max(place.offset, 0)

    def _pull(self, now_s: float) -> None:
        due = {each: offset for each, (at_s, offset) in self._pulled_at_s.items() if at_s <= now_s}
        if due:
            self._kafka.incremental_assign(self._places(due))
            for each in due:
                del self._pulled_at_s[each]

    def _store(self, offsets: Mapping[int, int]) -> None:
        """One way, as RocketMQ does it: the sender does not wait for the answer."""
        if offsets:
            self._kafka.commit(offsets=self._places(offsets), asynchronous=True)

    def _places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, each, offset) for each, offset in offsets.items()]
