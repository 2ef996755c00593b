"""Reads the vectors of allocations, and makes the strategies that they name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadmanager.consumers.allocation.rocketmq import (
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    MachineRoomNearby,
    MessageQueue,
    Strategy,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "allocation"


def cases(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def queues(given: Sequence[Sequence[Any]] | None) -> list[MessageQueue] | None:
    return None if given is None else [MessageQueue(*each) for each in given]


def room_of(name: str) -> str | None:
    """As in the vectors: the text before the first `-`."""
    return name.partition("-")[0] if "-" in name else None


def strategy(name: str, config: dict[str, Any]) -> Strategy:
    match name:
        case "AVG":
            return Averagely()
        case "AVG_BY_CIRCLE":
            return AveragelyByCircle()
        case "MACHINE_ROOM_NEARBY":
            return MachineRoomNearby(strategy(config["inner"], config), room_of, room_of)
        case "CONSISTENT_HASH":
            return ConsistentHash(config.get("virtualNodeCnt", 10))
        case _:
            raise ValueError(name)
