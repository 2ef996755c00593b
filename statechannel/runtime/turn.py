"""A lock on a file that the processes of one machine take in turn: quick, fair, and with a deadline.

The kernel queues those that wait, and wakes the next one without polling and without the interpreter's lock. But a
process that is stopped keeps its turn, and the kernel's queue knows no deadline. So a second thread waits in the queue
while the lock is taken, and the caller waits for that thread until its deadline.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from statechannel.runtime.forking import close_in_children, forget

_TRIES, _PAUSE_S = 10, 0.0002
"""Most transactions end sooner, and trying again then costs less than another thread."""


class TurnTaken(Exception):
    """The turn did not come before the deadline. Names the holder, and says what to do."""


class Turn:
    """One place in the queue for `path`, which is created if missing; for one thread at a time.

    Where the file cannot be opened or locked, each turn comes at once: it makes waiting quick and fair, and the caller
    has another lock that keeps writers apart.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._mutex = threading.Lock()
        self._queue_up, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self._queues = self._has_thread = False
        """Whether the thread is queued, and whether a thread exists."""
        self._wanted = self._closed = False

    def take(self, deadline_s: float) -> None:
        """Wait for the turn until `deadline_s` (monotonic clock). Raises TurnTaken."""
        with self._mutex:
            if not self._queues:
                if self._taken_soon():
                    return
                self._queues = True
                self._queue_up.release()
                if not self._has_thread:
                    self._has_thread = True
                    threading.Thread(target=self._queue, name=f"turn {self._path}", daemon=True).start()
            self._wanted = True
        came = False
        try:
            came = self._came.acquire(timeout=max(0.0, deadline_s - time.monotonic()))
        finally:
            if not came:
                with self._mutex:
                    self._wanted = False
                    came = self._came.acquire(blocking=False)  # at the last moment
        if not came:
            holder = next(iter(holders_of(self._path)), "another process")
            raise TurnTaken(f"{holder} has the lock of {self._path}: resume or end it")

    def end(self) -> None:
        """Let the next one have its turn."""
        with self._mutex:
            if self._descriptor >= 0 and not self._queues:
                self._unlock()

    def close(self) -> None:
        """End the turn, and leave the queue."""
        with self._mutex:
            self._closed = True
            self._queue_up.release()
            if self._descriptor >= 0:
                forget(self._descriptor)
                os.close(self._descriptor)
            self._descriptor = -1

    def _taken_soon(self) -> bool:
        """Try for as long as a short transaction takes. Returns False if another one has the lock."""
        for _ in range(_TRIES):
            try:
                if self._descriptor < 0:
                    self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    close_in_children(self._descriptor)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_S)
            except OSError:
                return True
            else:
                return True
        return False

    def _unlock(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _queue(self) -> None:
        while True:
            self._queue_up.acquire()
            if self._closed:
                return
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._mutex:
                self._queues = False
                if self._wanted:
                    self._came.release()
                elif not self._closed:
                    self._unlock()


def holders_of(path: str, within: range | None = None) -> list[str]:
    """The processes that hold a lock on the file, as far as the kernel tells: `process 17 (python, stopped)`.

    With `within`, those alone that hold a part of these bytes and no byte outside them.
    """
    found = dict[str, None]()
    with suppress(OSError, ValueError):
        inode = str(os.stat(path).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            _, *fields, first, last = line.split()
            if fields[0] == "->" or fields[-1].rpartition(":")[2] != inode or int(fields[-2]) <= 0:
                continue
            if within is None or (int(first) in within and last.isdecimal() and int(last) in within):
                found[_described(fields[-2])] = None
    return list(found)


def _described(process: str) -> str:
    with suppress(OSError, IndexError):
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
        return f"process {process} ({name}{', stopped' if rest.split()[0] in 'Tt' else ''})"
    return f"process {process}"
