"""Documents over a log that loses, tears, repeats and delays appends: all readers agree, and no answer was a lie."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from loadmanager.documents.documents import Documents
from loadmanager.documents.fold import Version
from loadmanager.errors import Conflict
from statechannel.errors import LogUnavailable
from tests.simulator.network import Faults, Latency
from tests.simulator.simulated_log import SimulatedLog
from tests.simulator.world import World

FAULTS = Faults(lost_request=0.1, lost_answer=0.15, repeated=0.5)
WRITERS, CHANGES, NAMES = 3, 25, "ab"


class Writer:
    """A process that counts documents up, and keeps what it was answered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted: list[Version[int]] = []
        self.conflicts = 0
        self.in_doubt: set[str] = set()
        self.documents: Documents[int] | None = None

    @property
    def answers(self) -> int:
        return len(self.accepted) + self.conflicts + len(self.in_doubt)

    async def run(self, log: SimulatedLog) -> None:
        self.documents = documents = Documents(
            log, "numbers", decode=msgspec.json.Decoder(int).decode, wall_ms=lambda: 0, nonce=self.name, timeout_s=5
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_until_started(documents))
            for number in range(CHANGES):
                await self._count(documents, NAMES[number % len(NAMES)], f"{self.name}.{number}")
            await asyncio.sleep(1_000)

    async def _count(self, documents: Documents[int], name: str, reason: str) -> None:
        """Read, add one, write: what compare-and-set is for."""
        while not await documents.wait_ready(5):
            pass
        now = documents.get(name)
        seen, value = (0, 0) if now is None else (now.version, now.value or 0)
        try:
            version = await documents.put(name, value + 1, seen=seen, author=self.name, reason=reason)
        except Conflict:
            self.conflicts += 1
        except LogUnavailable:
            self.in_doubt.add(reason)
        else:
            self.accepted.append(version)


async def _until_started(documents: Documents[int]) -> None:
    while True:
        try:
            return await documents.run()
        except LogUnavailable:
            await asyncio.sleep(0.1)


def histories(writers: list[Writer]) -> list[Sequence[Version[int]]]:
    return [writer.documents.history() for writer in writers if writer.documents is not None]


def written(seed: int) -> list[Writer]:
    """Writers that counted at the same time under faults, and after them a late one without; all have read all."""
    with World(seed, latency=Latency(spike_chance=0.05)) as world:
        world.network.faults = FAULTS
        writers = [Writer(f"w{number}") for number in range(WRITERS)]
        for writer in writers:
            start(world, writer)
        world.run(world.until(lambda: all(writer.answers == CHANGES for writer in writers), 2_000, "all have written"))
        world.heal_everything()
        late = Writer("late")
        start(world, late)

        def settled() -> bool:
            first, *others = histories([late, *writers])
            return len(late.accepted) == CHANGES and all(other == first for other in others)

        world.run(world.until(settled, 2_000, "all have read the same"))
        return [*writers, late]


def start(world: World, writer: Writer) -> None:
    process = world.process(writer.name)
    log = world.log_client(process, request_timeout_s=2)
    process.start(lambda: writer.run(log))


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 6])
def test_every_reader_has_the_same_history_and_every_answer_was_true(seed: int) -> None:
    writers = written(seed)
    history = histories(writers)[0]
    told = {version.reason: version for version in history}
    assert len(told) == len(history), "an entry counted twice"
    for writer in writers:
        for version in writer.accepted:
            assert told[version.reason] == version
        answered = {version.reason for version in writer.accepted} | writer.in_doubt
        assert {v.reason for v in history if v.author == writer.name} <= answered, "a refused change counts"
    for name in NAMES:
        values = [version.value for version in history if version.name == name]
        assert values == [*range(1, len(values) + 1)], "somebody overwrote what he had not seen"
    assert any(writer.in_doubt for writer in writers)
    assert any(writer.conflicts for writer in writers)
