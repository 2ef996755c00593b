"""Opens and closes clients of a Kafka that stops, dies and comes back, with calls on their way; tells what crashed.

    python -m tests.statechannel.kafka_rounds --rounds 500

Each process does some rounds, and ends without closing what it has open. One that ends by a signal is a failure:
librdkafka ends the process where clients are not closed as `statechannel.adapters.kafka.ownership` says.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaException

from loadmanager.consumer.kafka_client import KafkaClient
from stack.jars import StackError
from stack.servers import KafkaServer
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.errors import LogError
from statechannel.ports import Payload, TopicSpec

GROUP = "persistent://shop/orders/billing"
TOPIC = "orders"
ROUNDS_AT_ONCE = 10
"""Rounds of one process."""
BESIDE = 5
"""Rounds at the same time."""
ROUND_S = 0.3
"""The longest time between opening and closing."""
PROCESS_S = 240.0
EXPECTED = (LogError, KafkaException, TimeoutError, StopAsyncIteration)

T = TypeVar("T")


class Outcome(msgspec.Struct):
    """What a run did, and the ends of its processes that were not good."""

    rounds: int = 0
    answers: int = 0
    """Calls that Kafka answered."""
    processes: int = 0
    outages: int = 0
    crashes: list[str] = []


# --- the process that opens and closes
class Rounds:
    """Rounds on one Kafka; the generator decides all that differs between them."""

    def __init__(self, address: str, by: random.Random) -> None:
        self._address = address
        self._by = by
        self._left: list[object] = []
        """Clients that are never closed: a thread holds them until the process ends."""

    async def run(self, count: int) -> None:
        threading.Thread(target=_hold, args=(self._left,), daemon=True).start()
        for done in range(0, count, BESIDE):
            await asyncio.gather(*(self._round(number) for number in range(done, min(count, done + BESIDE))))
        self._ask_and_leave()

    async def _round(self, number: int) -> None:
        log = KafkaLog(self._address, topic_prefix="", development=True, default_partitions=2, request_timeout_s=1.0)
        groups, commits = KafkaGroups(self._address, request_timeout_s=1.0), GroupCommits(self._address, None, 1.0)
        member = KafkaClient({"bootstrap.servers": self._address, "broker.address.family": "v4"}, GROUP)
        group = GROUP.partition("://")[2]
        jobs: list[asyncio.Task[object]] = [
            self._start(commits.commit(group, {(TOPIC, 0): 1}, {})),
            *(self._start(groups.committed(group)) for _ in range(3)),
            self._start(groups.queues([TOPIC])),
            self._start(groups.ends({TOPIC: [0, 1]})),
            self._start(groups.stored_ms([(TOPIC, 0, 0)])),
            self._start(self._use(log)),
            *(self._start(asyncio.to_thread(call)) for call in _calls_of_a_member(member)),
        ]
        await asyncio.sleep(self._by.random() * ROUND_S)
        for job in jobs:
            if self._by.random() < 0.3:
                job.cancel()
        closings = [
            asyncio.create_task(asyncio.to_thread(member.close)),
            asyncio.create_task(asyncio.to_thread(member.close)),
            asyncio.create_task(log.close()),
        ]
        cycle = [groups, commits]
        cycle.append(cycle)  # pyright: ignore[reportArgumentType] - freed by the garbage collector alone
        del cycle
        if self._by.random() < 0.3:
            self._left += [groups, commits]
        del groups, commits
        if self._by.random() < 0.5:
            await asyncio.to_thread(gc.collect)
        await asyncio.gather(*jobs, *closings, return_exceptions=True)
        gc.collect()
        print(f"round {number}", flush=True)

    async def _use(self, log: KafkaLog) -> None:
        await log.start(1.0)
        await log.open_topic(TopicSpec("rounds", compacted=False, partitions=2))
        tail = log.tail("rounds", [0, 0])
        writer = await log.exclusive("rounds")
        payloads = [Payload(b"key", b"value")] * 10
        while True:
            await asyncio.gather(
                log.append("rounds", 0, payloads), writer.commit("rounds", 1, payloads), anext(tail), log.ends("rounds")
            )

    def _start(self, job: Coroutine[Any, Any, T]) -> asyncio.Task[T | None]:
        async def expecting() -> T | None:
            with suppress(*EXPECTED):
                answer = await job
                print("answer", flush=True)
                return answer
            return None

        return asyncio.get_running_loop().create_task(expecting())

    def _ask_and_leave(self) -> None:
        """Leave requests and reading threads behind."""
        groups = KafkaGroups(self._address, request_timeout_s=1.0)
        member = KafkaClient({"bootstrap.servers": self._address, "broker.address.family": "v4"}, GROUP)
        self._left += [groups, member]
        for call in _calls_of_a_member(member):
            threading.Thread(target=call, daemon=True).start()
        threading.Thread(target=_ask, args=(groups,), daemon=True).start()
        time.sleep(self._by.random() * ROUND_S)


def _hold(_clients: list[object]) -> None:
    time.sleep(PROCESS_S)


def _calls_of_a_member(member: KafkaClient) -> list[Callable[[], None]]:
    def fetch() -> None:
        for _ in range(20):
            member.fetch(0.05)

    def change() -> None:
        for _ in range(20):
            member.assign([(TOPIC, 0)])
            member.unassign([(TOPIC, 0)])

    def ready() -> None:
        member.get_ready([TOPIC])

    def failing(call: Callable[[], None]) -> Callable[[], None]:
        def made() -> None:
            with suppress(KafkaException, RuntimeError):
                call()

        return made

    return [failing(each) for each in (fetch, change, ready)]


def _ask(groups: KafkaGroups) -> None:
    async def ask() -> None:
        with suppress(*EXPECTED):
            await asyncio.gather(*(groups.groups() for _ in range(20)), groups.committed(GROUP.partition("://")[2]))

    asyncio.run(ask())


# --- the process that watches
def watched_rounds(
    server: KafkaServer, rounds: int, seed: int, tell: Callable[[Outcome], object] = lambda _: None
) -> Outcome:
    """Run rounds in processes of their own, while `server` is stopped and killed at times; `tell` after each."""
    by, outcome, over = random.Random(seed), Outcome(), threading.Event()
    trouble = threading.Thread(target=_trouble, args=(server, random.Random(seed), over, outcome))
    trouble.start()
    try:
        while outcome.rounds < rounds:
            count = min(ROUNDS_AT_ONCE, rounds - outcome.rounds)
            _process(server.address, count, by.randrange(1 << 30), outcome)
            tell(outcome)
    finally:
        over.set()
        trouble.join()
    return outcome


def _process(address: str, count: int, seed: int, outcome: Outcome) -> None:
    command = [sys.executable, "-m", __spec__.name, "--address", address, "--rounds", str(count), "--seed", str(seed)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    except subprocess.TimeoutExpired as hanging:
        outcome.crashes.append(f"seed {seed} hangs: {hanging.stdout!r}")
        done = 0
    else:
        done = run.stdout.count("round")
        outcome.answers += run.stdout.count("answer")
        if run.returncode != 0:
            how = signal.Signals(-run.returncode).name if run.returncode < 0 else f"status {run.returncode}"
            outcome.crashes.append(f"seed {seed} ended by {how} after {done} rounds: {_head(run.stderr)}")
    outcome.processes += 1
    outcome.rounds += count


def _head(stderr: str) -> str:
    """What it said from the error on."""
    at = max(stderr.find("Fatal Python error"), stderr.find("***"), 0)
    return stderr[max(0, at - 1_000) : at + 4_000]


def _trouble(server: KafkaServer, by: random.Random, over: threading.Event, outcome: Outcome) -> None:
    """Stops the server for up to three seconds, every fourth time for good: then it starts again."""
    while not over.wait(1 + by.random() * 5):
        outcome.outages += 1
        if outcome.outages % 4 == 0:
            _restart(server, over)
        else:
            server.suspend()
            over.wait(by.random() * 3)
            server.resume()


def _restart(server: KafkaServer, over: threading.Event) -> None:
    while True:
        server.kill()
        try:
            return server.start()
        except StackError:  # on a busy machine it may not be up in time
            if over.is_set():
                return None


def _show(outcome: Outcome) -> None:
    counts = f"{outcome.rounds} rounds, {outcome.answers} calls answered, {outcome.outages} outages"
    print(f"{counts}, {len(outcome.crashes)} crashes", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--address", help="of a Kafka: do the rounds here, and cause no trouble")
    given = parser.parse_args()
    if given.address:
        faulthandler.enable()
        asyncio.run(Rounds(given.address, random.Random(given.seed)).run(given.rounds))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("interrupted"))  # so that the server ends too
    with tempfile.TemporaryDirectory(prefix="kafka-rounds-") as directory:
        server = KafkaServer(Path(directory))
        server.start()
        try:
            began_s = time.monotonic()
            outcome = watched_rounds(server, given.rounds, given.seed, _show)
        finally:
            server.kill()
    print(
        f"{outcome.rounds} rounds in {outcome.processes} processes, {outcome.answers} calls answered, "
        f"{outcome.outages} outages, "
        f"{time.monotonic() - began_s:.0f} s, {len(outcome.crashes)} crashes, {os.cpu_count()} processors"
    )
    print("\n".join(outcome.crashes))
    return 1 if outcome.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
