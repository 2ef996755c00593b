"""Wakes the readers of one file, in every process of this machine, as soon as somebody has committed to it.

Each reader binds a UNIX datagram socket in a directory that belongs to the file; a writer sends one byte to all of
them. A wake-up says nothing and may be lost (a full socket, another TMPDIR, a cleaned /tmp), so readers also look by
themselves every few milliseconds: this module makes them prompt, it is never what makes them correct.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

_MAX_SOCKET_PATH_BYTES = 100  # sun_path holds 108
_RELIST_AFTER_S = 1.0  # the directory's mtime is coarse and may hide a second change within a clock tick


def socket_directory(path: Path) -> Path:
    """Where the readers of the file at `path` bind; the same for every process of this user with the same TMPDIR."""
    digest = blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()
    name = f"statechannel-{os.getuid()}-{digest}"
    directory = Path(tempfile.gettempdir()) / name
    if len(str(directory).encode()) + 24 > _MAX_SOCKET_PATH_BYTES:
        return Path("/tmp") / name  # a socket path must be short
    return directory


class Ear:
    """One reader's socket. `wait` is for its thread alone; `nudge` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._directory = path, socket_directory(path)
        self._address = self._directory / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._bind()

    def _bind(self) -> None:
        for _ in range(3):  # another reader may remove the directory between our two steps, as it leaves
            with contextlib.suppress(OSError):
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._socket.bind(str(self._address))
                return

    def wait(self, timeout_s: float) -> None:
        """Return at a wake-up, or after `timeout_s`."""
        if self._poll.poll(timeout_s * 1000):
            with contextlib.suppress(OSError):
                while True:
                    self._socket.recv(1)

    def nudge(self) -> None:
        """Wake this reader only."""
        _send(self._socket, str(self._address))

    def close(self) -> None:
        """Unbind; the directory goes with its last living socket."""
        self._socket.close()
        bell = Bell(self._path)
        bell.ring()  # nobody listens at our address any more, nor at those of processes that were killed
        bell.close()
        with contextlib.suppress(OSError):
            self._directory.rmdir()


class Bell:
    """Wakes all readers of one file. For one thread."""

    def __init__(self, path: Path) -> None:
        self._directory = socket_directory(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._addresses: list[str] = []
        self._listed_mtime_ns = -1
        self._listed_s = 0.0

    def ring(self) -> None:
        """Wake every reader in every process. Never blocks, never fails; clears sockets of processes that died."""
        self._relist()
        for address in self._addresses:
            if not _send(self._socket, address):
                with contextlib.suppress(OSError):
                    os.unlink(address)

    def close(self) -> None:
        self._socket.close()

    def _relist(self) -> None:
        now_s = time.monotonic()
        try:
            mtime_ns = os.stat(self._directory).st_mtime_ns
            if mtime_ns == self._listed_mtime_ns and now_s - self._listed_s < _RELIST_AFTER_S:
                return
            self._addresses = [entry.path for entry in os.scandir(self._directory)]
        except OSError:
            mtime_ns, self._addresses = -1, []
        self._listed_mtime_ns, self._listed_s = mtime_ns, now_s


def _send(sender: socket.socket, address: str) -> bool:
    """Whether somebody listens there; a full socket counts, since its reader is about to wake anyway."""
    try:
        sender.sendto(b"!", address)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True
