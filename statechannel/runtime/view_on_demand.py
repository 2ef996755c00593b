"""A table view that reads its topic only while a caller needs it, and keeps nothing in between.

| state | shows | event | next |
|---|---|---|---|
| dropped | nothing | a `need` begins, or `read` | reading |
| reading | a part; not `ready` | everything is read that was in the topic when reading began | following |
| following | everything; `ready` | | |
| reading, following | | no `need` is left, and the last `read` was LINGER_S ago | dropped |

1. `ready` implies that everything is shown that was in the topic when it was needed: no decision on a part.
2. In the state dropped no entry of the topic reaches this process.
3. Writes do not depend on the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, TypeVar

from statechannel.errors import LogUnavailable
from statechannel.runtime.view import TableView

T = TypeVar("T")

LINGER_S = 30.0
"""A caller that asks once asks again: a dashboard polls every few seconds, and each reading starts over."""
_RETRY_S = 0.5


class OnDemandView(TableView[T]):
    """Keep `run()` running as long as there may be a need."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._needs = 0
        self._asked_until_s = -inf
        self._changed = asyncio.Event()

    @contextmanager
    def need(self) -> Generator[None]:
        """Have the topic read and followed meanwhile."""
        self._needs += 1
        self._changed.set()
        try:
            yield
        finally:
            self._needs -= 1
            self._changed.set()

    async def read(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`. Returns True if everything is read. Use the view before the next `await`."""
        if not self._needs:  # a need that ends leaves nothing behind
            self._asked_until_s = self._now_s() + LINGER_S
            self._changed.set()
        return await self.wait_ready(timeout_s)

    async def run(self) -> None:
        """Read while there is a need, until cancelled. Starts the view if it has not been started."""
        if self._fold is None:
            await self.start()
        while True:
            await self._while(lambda: not self._needed())
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow())
                await self._while(self._needed)
                following.cancel()
            self.forget()

    def _needed(self) -> bool:
        return self._needs > 0 or self._now_s() < self._asked_until_s

    async def _while(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition does not hold any more."""
        while condition():
            self._changed.clear()
            left_s = self._asked_until_s - self._now_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s if left_s > 0 else None):
                    await self._changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self.rewind()
                return await super().run()
            except LogUnavailable:
                await asyncio.sleep(_RETRY_S)
