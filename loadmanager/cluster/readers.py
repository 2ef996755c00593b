"""Registered readers of the channel's log and their positions: nothing that they still want is trimmed.

Decides which registrations are accepted. A registration lasts for `READER_TTL_S` from when a broker read it, by elapsed
time, so that a forgotten reader does not hold the log; registering again renews it. `retention.py` decides how far the
log is trimmed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from loadmanager.errors import Conflict, Invalid, NotFound
from statechannel.ports import Log
from statechannel.runtime.view import TableView

TOPIC = "channel-readers"
READERS_AT_MOST = 100
READER_TTL_S = 2_592_000.0
"""A registration that is not renewed ends after 30 days: longer than any holiday of a reader."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)


class ChannelReader(msgspec.Struct, frozen=True):
    """`positions`: for each partition the offset that the reader wants to read next."""

    positions: tuple[int, ...]
    registered_ms: int


def wanted(readers: Iterable[ChannelReader], partition: int) -> list[int]:
    """The offsets from which readers still want to read a partition."""
    return [reader.positions[partition] for reader in readers if partition < len(reader.positions)]


class ReaderRegistry:
    """Accepts, renews and deletes registrations of readers of `topic`."""

    def __init__(self, view: TableView[ChannelReader], log: Log, topic: str, wall_ms: Callable[[], int]) -> None:
        self._view = view
        self._log = log
        self._topic = topic
        self._wall_ms = wall_ms

    def all(self) -> Mapping[str, ChannelReader]:
        """All readers that this broker knows, by name."""
        return dict(sorted(self._view.items()))

    def get(self, name: str) -> ChannelReader:
        """One reader. Raises NotFound."""
        reader = self._view.get(name)
        if reader is None:
            raise NotFound(f"there is no reader {name[:100]!r}; registered: {', '.join(sorted(self._view)) or 'none'}")
        return reader

    async def register(self, name: str, positions: Sequence[int] | None) -> ChannelReader:
        """Register or renew, by default at the log's begin. From then on, nothing at or after a position is trimmed.

        Raises Invalid (name, number of partitions, beyond the end), Conflict (trimmed already, too many readers),
        LogUnavailable.
        """
        if not NAME.fullmatch(name):
            raise Invalid(f"{name[:100]!r} is not a reader name: write up to 100 letters, digits, '.', '_' or '-'")
        if name not in self._view and len(self._view) >= READERS_AT_MOST:
            raise Conflict(f"there are {READERS_AT_MOST} readers already: remove those that are not used any more")
        begins, ends = await self._log.begins(self._topic), await self._log.ends(self._topic)
        chosen = tuple(begins if positions is None else positions)
        if len(chosen) != len(ends):
            raise Invalid(f"the channel has {len(ends)} partitions; give as many positions, not {len(chosen)}")
        for partition, (position, end) in enumerate(zip(chosen, ends, strict=True)):
            if position > end:
                raise Invalid(f"partition {partition} ends at {end}, before {position}: give at most its end")
        _refuse_trimmed(chosen, begins)
        reader = ChannelReader(chosen, self._wall_ms())
        await self._view.put(name, reader)
        try:  # a channel owner that trimmed meanwhile did not know of this reader yet
            _refuse_trimmed(chosen, await self._log.begins(self._topic))
        except Conflict:
            await self._view.delete(name)
            raise
        return reader

    async def remove(self, name: str) -> None:
        """Delete a registration. Raises NotFound, LogUnavailable."""
        self.get(name)
        await self._view.delete(name)


def _refuse_trimmed(positions: Sequence[int], begins: Sequence[int]) -> None:
    for partition, (position, begin) in enumerate(zip(positions, begins, strict=True)):
        if position < begin:
            raise Conflict(
                f"partition {partition} begins at {begin} now, and {position} was trimmed: register at {begin} or "
                "later, and begin with the snapshot up to there"
            )
