"""Runs the drain that was requested over REST, at most one at a time, until it is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from loadmanager.broker.node import Node
from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from loadmanager_api.schemas import DrainShown


class Draining:
    """The drain of this broker. Close it with the application."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether bundles are being moved away now; False once the given time is over."""
        return self._task is not None and not self._task.done()

    def begin(self, timeout_s: float) -> None:
        """Start, unless a drain runs already."""
        if not self.running:
            self._task = asyncio.get_running_loop().create_task(self._run(timeout_s))

    async def end(self) -> None:
        """Cancel it: the broker accepts bundles again; those that are gone stay where they are. Raises Fenced."""
        await self.close()
        await self._node.undrain()

    async def close(self) -> None:
        """Stop moving bundles away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def progress(self) -> DrainShown:
        """The present progress."""
        from loadmanager_api.schemas import DrainShown  # with the routes

        progress = self._node.current.drain.progress()
        return DrainShown(
            broker=self._node.settings.advertised,
            draining=self._node.registration.draining,
            running=self.running,
            total=progress.total,
            left=progress.left,
            done=progress.done,
        )

    async def _run(self, timeout_s: float) -> None:
        try:
            progress = await self._node.drain(timeout_s)
        except StateChannelError as error:
            self._node.note(f"the drain ended: {error}")
            return
        self._node.note(f"drained: {progress}")
