"""The demo's child processes: started, read line by line, and ended by handle, never by name.

A child's standard input is a pipe that ends with this process, however that ends; a child then ends too. Each child has
a session of its own, so that Ctrl-C reaches only this process, which then ends the children in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path

LINE_BYTES = 1 << 20
END_S = 3.0


class Child:
    """One running child; `errors` is where its standard error goes."""

    def __init__(self, process: Process, errors: Path) -> None:
        self._process = process
        self.errors = errors

    @classmethod
    async def start(cls, module: str, arguments: Sequence[str], *, errors: Path, path: Path | None = None) -> Child:
        """`python -m module arguments…`, with `path` before the others on the module path.

        Its Python stacks are in `errors` if native code ends it.
        """
        search = os.pathsep.join(filter(None, (path and str(path), os.environ.get("PYTHONPATH"))))
        with errors.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=PIPE,
                stdout=PIPE,
                stderr=sink,
                env={**os.environ, "PYTHONPATH": search, "PYTHONFAULTHANDLER": "1"},
                limit=LINE_BYTES,
                start_new_session=True,
            )
        return cls(process, errors)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def hear(self, line: Callable[[bytes], None]) -> int:
        """Call `line` with each line of standard output until it ends; the exit code."""
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            line(text)
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL."""
        if self.running:
            self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def close_input(self) -> None:
        """Close the child's standard input, which tells it to end."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def wait(self) -> int:
        """The exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """Close its input, and kill it if it does not end within END_S."""
        self.close_input()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
