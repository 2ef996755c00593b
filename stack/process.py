"""One child process, recognized even after this program restarts. A pid alone does not suffice: it may be reused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02


@dataclass(frozen=True)
class Identity:
    """A process by its pid and the time it started, as the system prints it."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The process that has this pid now, or None if there is none (a zombie counts as none)."""
        stat = Path(f"/proc/{pid}/stat")
        if stat.parent.parent.joinpath("self").exists():
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                return None
            return None if fields[0] == "Z" else cls(pid, fields[19])
        shown = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
        )
        return cls(pid, shown.stdout.strip()) if shown.stdout.strip() else None

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return Identity.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Signal this very process; False if it is gone."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; returns when it is gone."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if not self._gone_within(grace_s):
            self.send(signal.SIGKILL)
            self._gone_within(grace_s)

    def _gone_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


class Child:
    """A process of ours, its output in a file, in a session of its own so that Ctrl-C does not reach it."""

    def __init__(
        self, command: Sequence[str], log_file: Path, environment: Mapping[str, str], user: str | None = None
    ) -> None:
        with log_file.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        identity = Identity.of(self._process.pid)
        self.identity = identity or Identity(self._process.pid, "ended at once")

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    def suspend(self) -> None:
        """SIGSTOP; returns once all its threads have stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
