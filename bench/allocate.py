"""What dividing queues among consumers costs: from nothing, one consumer leaves, one joins; and how much stays.

Beside it, in the same run and on the same sizes, Kafka's own assignors in Java (`bench/peers/Assignors.java`, warm),
and a plain heap in Python, as one writes it first. RocketMQ's AVG is here for what it keeps: its time is a slice.
"""

from __future__ import annotations

import gc
import heapq
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.figures import emit, median
from loadmanager.consumers.allocation import measures
from loadmanager.consumers.allocation.rocketmq import Averagely, MessageQueue
from loadmanager.consumers.allocation.sticky import Sticky
from loadmanager.consumers.allocation.weighted import Consumer, Weighing, allocate_weighted
from stack.jars import classpath, java

SIZES = ((1_000, 10), (10_000, 100), (100_000, 10), (100_000, 100), (100_000, 1_000))
LARGEST = SIZES[-1]
WEIGHTED = ((1_000, 10), (10_000, 100))
ROUNDS = 9
LEAVES = 3
"""The index of the consumer that leaves and comes back."""
PEERS = Path(__file__).parent / "peers" / "Assignors.java"

T = TypeVar("T")
Allocated = Mapping[str, Sequence[MessageQueue]]


def run(kind: str) -> None:
    """All figures of this bench; it needs no log, so `kind` doesn't matter."""
    del kind
    for queues, consumers in SIZES:
        _sticky(queues, consumers)
    for queues, consumers in WEIGHTED:
        _weighted(queues, consumers)


def _made(queues: int, consumers: int) -> tuple[list[MessageQueue], list[str]]:
    return [MessageQueue("t", "", each) for each in range(queues)], [f"c{each:04}" for each in range(consumers)]


def _sticky(count: int, members: int) -> None:
    queues, consumers = _made(count, members)
    gone, size = consumers[LEAVES], f"{count:,} x {members:,}"
    times: dict[str, list[float]] = {"cold": [], "leave": [], "join": [], "query": []}
    before: Allocated = {}
    left: Allocated = {}
    for _ in range(ROUNDS):
        nobody: Allocated = {}
        group = _timed(times["cold"], partial(Sticky[MessageQueue].of, nobody, queues, consumers))
        before = group.allocation()
        _timed(times["leave"], partial(group.change, left=[gone]))
        left = group.allocation()
        _timed(times["join"], partial(group.change, joined=[gone]))
        _timed(times["query"], partial(group.queues_of, gone))
    kept, most = measures.kept(before, left), count - len(before[gone])
    peers = _peers(count, members)
    targets = {"cold": 60.0, "leave": 25.0, "query": 0.1} if (count, members) == LARGEST else {}
    for step, its in times.items():
        target = f"<= {targets[step]:g} ms" if step in targets else ""
        beside = {name: figures[f"{step}_ms"] for name, figures in peers.items() if f"{step}_ms" in figures}
        took_ms = median(its)
        emit(
            "allocate",
            f"sticky {step} {size}",
            took_ms,
            "ms",
            target=target,
            met=_met(took_ms, targets, step),
            **beside,
        )
    emit("allocate", f"sticky kept {size}", kept / most, "of the most possible", target="1", met=kept == most)
    emit(
        "allocate",
        f"sticky difference {size}",
        (off := measures.difference(left)),
        "queues",
        target="<= 1",
        met=off <= 1,
    )
    heap: list[float] = []
    _timed(heap, lambda: _by_heap({each: its for each, its in before.items() if each != gone}, queues))
    emit("allocate", f"plain heap leave {size}", heap[0], "ms")
    averagely = Averagely()
    after = averagely.allocate_all(queues, [each for each in consumers if each != gone])
    stays = measures.kept(averagely.allocate_all(queues, consumers), after)
    emit("allocate", f"AVG kept {size}", stays / most, "of the most possible")


def _met(took_ms: float, targets: Mapping[str, float], step: str) -> bool | None:
    return took_ms <= targets[step] if step in targets else None


def _weighted(count: int, members: int) -> None:
    """Ten topics; each consumer subscribes to nine; weights as rates have them."""
    queues = [MessageQueue(f"t{each % 10}", "", each) for each in range(count)]
    weighing = Weighing({queue: 1 / (1 + place) ** 0.5 for place, queue in enumerate(queues)})
    topics = frozenset(f"t{each}" for each in range(10))
    consumers = [Consumer(f"c{each:04}", topics - {f"t{each % 10}"}) for each in range(members)]
    times: dict[str, list[float]] = {"cold": [], "leave": [], "join": []}
    fewer = [each for at, each in enumerate(consumers) if at != LEAVES]
    size = f"{count:,} x {members:,}"
    first: Allocated = {}
    left: Allocated = {}
    for _ in range(3):
        first = _timed(times["cold"], partial(allocate_weighted, {}, queues, consumers, weighing))
        left = _timed(times["leave"], partial(allocate_weighted, first, queues, fewer, weighing))
        _timed(times["join"], partial(allocate_weighted, left, queues, consumers, weighing))
    for step, its in times.items():
        emit("allocate", f"weighted {step} {size}", median(its), "ms")
    kept = measures.kept(first, left) / (count - len(first[consumers[LEAVES].id]))
    emit("allocate", f"weighted kept {size}", kept, "of what could stay")
    loads = [sum((weighing.weights or {})[queue] for queue in its) for its in left.values()]
    emit("allocate", f"weighted highest level {size}", max(loads) * len(loads) / sum(loads), "of the mean")


def _by_heap(valid: Allocated, queues: Sequence[MessageQueue]) -> Allocated:
    owned = {queue for its in valid.values() for queue in its}
    found = {consumer: list(its) for consumer, its in valid.items()}
    heap = [(len(its), consumer) for consumer, its in found.items()]
    heapq.heapify(heap)
    for queue in queues:
        if queue not in owned:
            fewest, consumer = heap[0]
            found[consumer].append(queue)
            heapq.heapreplace(heap, (fewest + 1, consumer))
    return found


def _peers(queues: int, consumers: int) -> dict[str, dict[str, float]]:
    command = [java(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", classpath("kafka"), str(PEERS)]
    sizes = map(str, (queues, consumers, ROUNDS))
    said = subprocess.run([*command, *sizes], capture_output=True, text=True, check=True, timeout=300)
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    return {line["peer"]: line for line in lines}


def _timed(times: list[float], call: Callable[[], T]) -> T:
    gc.collect()
    start = time.perf_counter()
    found = call()
    times.append((time.perf_counter() - start) * 1000)
    return found
