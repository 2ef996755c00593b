"""The process of the service that is tried: started in a session of its own, stopped, continued, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_SHOWN_BYTES = 2_000


class Service:
    """One process, with those that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, output: IO[bytes]) -> None:
        self._process = process
        self._output = output

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Service:
        """Raises OSError if there is no such program."""
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        return cls(process, output)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    @property
    def wrote(self) -> str:
        """The end of what it wrote to its standard output and error."""
        size = os.fstat(self._output.fileno()).st_size
        shown = os.pread(self._output.fileno(), _SHOWN_BYTES, max(0, size - _SHOWN_BYTES))
        return shown.decode(errors="replace").strip()

    def pause(self) -> None:
        """Stop all its processes (SIGSTOP): they run no instruction more."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let them run again (SIGCONT)."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the command, as Kubernetes does."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    async def exited(self, timeout_s: float) -> bool:
        """Whether it ends by itself within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        return self.exit_code is not None

    async def end(self) -> None:
        """Kill what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._output.close()
