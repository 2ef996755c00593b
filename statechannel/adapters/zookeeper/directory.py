"""The children of one node, as last read, and which of them must be read again.

A child is read when its name is new, or after a watch on it has fired. So a change costs one list of names and a read
or two, however many children there are. Names are listed no faster than `LISTED_NAMES_PER_S`, so that one list serves
many changes at once. Watches end with the link: after it was lost every child is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from statechannel.adapters.zookeeper.session import Session, Watch, post
from statechannel.ports import WatchCounts
from statechannel.runtime.tasks import all_or_first_failure

T = TypeVar("T")

CONCURRENT_READS = 32
LISTED_NAMES_PER_S = 2_000

ReadChild = Callable[[Session, str, T | None, Watch], Awaitable[T]]
"""Reads one child, given its last value, and leaves a watch on it. Raises NoNodeError."""


class Directory(Generic[T]):
    """Used on the loop only. Calls `wake` there when `refresh` has something to do."""

    def __init__(self, path: str, read_child: ReadChild[T], wake: Callable[[], None], counts: WatchCounts) -> None:
        self._path = path
        self._read_child = read_child
        self._wake = wake
        self._counts = counts
        self._values: dict[str, T] = {}
        self._due: set[str] = set()
        """Names whose child may have changed since, or during, its last read."""
        self._unlisted = True
        self._list_again_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def values(self) -> Mapping[str, T]:
        """The values read last, by name."""
        return self._values

    @property
    def stale(self) -> bool:
        """Whether `refresh` has something to do."""
        return self._unlisted or bool(self._due)

    def link_lost(self) -> None:
        """All watches are gone: everything must be read again."""
        self._values = dict(self._values)  # a copy: a read under way may still write to the old one, without a watch
        self._due = set(self._values)
        self._unlisted = True

    async def refresh(self, session: Session) -> None:
        """Read the names and children that are due; those that fail remain due."""
        self._loop = asyncio.get_running_loop()
        values, due = self._values, self._due
        if self._unlisted:
            await self._list(session, values, due)
        gate = asyncio.Semaphore(CONCURRENT_READS)
        await all_or_first_failure([self._read(session, name, values, due, gate) for name in sorted(due)])

    async def _list(self, session: Session, values: dict[str, T], due: set[str]) -> None:
        self._unlisted = False
        self._counts.reads += 1
        try:
            names = set(await session.children(self._path, self._names_noticed))
        except BaseException:
            self._unlisted = True
            raise
        self._list_again_s = asyncio.get_running_loop().time() + len(names) / LISTED_NAMES_PER_S
        for gone in values.keys() - names:
            self._drop(gone, values)
        due &= names
        due |= names - values.keys()

    async def _read(
        self, session: Session, name: str, values: dict[str, T], due: set[str], gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            due.discard(name)
            try:
                value = await self._read_child(session, name, values.get(name), self._child_noticed)
            except NoNodeError:
                self._drop(name, values)
            except BaseException:
                due.add(name)
                raise
            else:
                self._counts.changes += name not in values or values[name] != value
                values[name] = value

    def _drop(self, name: str, values: dict[str, T]) -> None:
        if values.pop(name, None) is not None:
            self._counts.changes += 1

    # --- called on kazoo's thread
    def _names_noticed(self, _event: object) -> None:
        post(self._loop, self._mark_unlisted_in_time)

    def _child_noticed(self, event: object) -> None:
        if isinstance(event, WatchedEvent) and event.path:  # no path: the link was lost, which `link_lost` handles
            post(self._loop, self._mark, event.path.rpartition("/")[2])

    # --- on the loop
    def _mark(self, name: str) -> None:
        self._due.add(name)
        self._wake()

    def _mark_unlisted_in_time(self) -> None:
        """Called once for each list, since the watch on the names is gone until they are listed again."""
        assert self._loop is not None
        self._loop.call_at(self._list_again_s, self._mark_unlisted)

    def _mark_unlisted(self) -> None:
        self._unlisted = True
        self._wake()
