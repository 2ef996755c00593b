"""Bounds the bytes on their way into a log; callers beyond the bound wait, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Intake:
    """A bound on the bytes under way. An append larger than the bound enters alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._under_way_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size_bytes: int, timeout_s: float) -> None:
        """Wait for room and take it. Raises TimeoutError; then nothing is taken."""
        if not self._waiting and self._fits(size_bytes):
            self._under_way_bytes += size_bytes
            return
        place = (asyncio.get_running_loop().create_future(), size_bytes)
        self._waiting.append(place)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(place[0])
        except BaseException:
            if place[0].done():
                self._under_way_bytes -= size_bytes
            else:
                self._waiting.remove(place)
            self._admit()
            raise

    def leave(self, size_bytes: int) -> None:
        self._under_way_bytes -= size_bytes
        self._admit()

    def _fits(self, size_bytes: int) -> bool:
        return self._under_way_bytes == 0 or self._under_way_bytes + size_bytes <= self._limit_bytes

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            admitted, size_bytes = self._waiting.popleft()
            self._under_way_bytes += size_bytes
            admitted.set_result(None)
