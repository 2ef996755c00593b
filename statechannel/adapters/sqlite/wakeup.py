"""Wakes the readers of one file, in every process of this machine, after each commit.

Each reader binds a UNIX datagram socket in a directory beside the file; a writer sends one byte to all of them. The
directory must be this user's alone, else it is not used: it is opened without following links, its owner and mode are
checked, and all work in it is relative to the open descriptor. Only this user's sockets are written to or removed.

A wake-up carries no data and may be lost (a full socket, an unusable directory), so readers also poll every few
milliseconds: this module makes them prompt, and correctness never depends on it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import stat
import time
from pathlib import Path

_RELIST_AFTER_S = 1.0  # the directory's mtime is coarse and may hide a second change within a clock tick
_log = logging.getLogger(__name__)


def socket_directory(path: Path) -> Path:
    """The directory of the readers' sockets; the same under all names of the file at `path`."""
    file = path.resolve()
    return file.with_name(f"{file.name}-wake")


def opened(directory: Path) -> int:
    """A descriptor of the directory. Raises OSError if it is missing, or not this user's alone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(f"{directory} is open to other users: remove it, or give it to this user with mode 0700")
    return descriptor


class Ear:
    """One reader's socket. `wait` is for its thread alone; `nudge` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._nudged, self._nudging = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._nudged.setblocking(False)
        self._nudging.setblocking(False)
        self._poll = select.poll()
        for each in (self._socket, self._nudged):
            self._poll.register(each, select.POLLIN)
        self._bind(socket_directory(path))

    def _bind(self, directory: Path) -> None:
        failure: OSError | None = None
        for _ in range(3):  # another reader that closes may remove the directory between our steps
            try:
                with contextlib.suppress(FileExistsError):
                    directory.mkdir(mode=0o700)
                descriptor = opened(directory)
                try:
                    self._socket.bind(_address(descriptor, self._name))
                finally:
                    os.close(descriptor)
            except OSError as error:
                failure = error
            else:
                return
        _log.warning(
            "%s: no wake-ups, so this process sees writes of others some milliseconds later (%s)", directory, failure
        )

    def wait(self, timeout_s: float) -> None:
        """Return at a wake-up, or after `timeout_s`."""
        woken = dict(self._poll.poll(timeout_s * 1000))
        for each in (self._socket, self._nudged):
            if each.fileno() in woken:
                with contextlib.suppress(OSError):
                    while True:
                        each.recv(1)

    def nudge(self) -> None:
        """Wake this reader only."""
        with contextlib.suppress(OSError):  # it is closed, or about to wake anyway
            self._nudging.send(b"!")

    def close(self) -> None:
        """Unbind; the last reader removes the directory."""
        for each in (self._socket, self._nudged, self._nudging):
            each.close()
        bell = Bell(self._path)
        bell.ring()  # removes our socket, and those of killed processes
        bell.close()


class Bell:
    """Wakes all readers of one file. For use by one thread."""

    def __init__(self, path: Path) -> None:
        self._directory = socket_directory(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._descriptor = -1
        self._addresses: dict[str, str] = {}
        self._listed: tuple[int, int] | None = None
        self._listed_s = 0.0

    def ring(self) -> None:
        """Wake every reader in every process. Never blocks, never fails; clears sockets of processes that died."""
        self._relist()
        for name, address in self._addresses.items():
            if not _send(self._socket, address):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Also removes the directory, if it is empty."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._directory.rmdir()
        self._let_go()
        self._socket.close()

    def _relist(self) -> None:
        now_s = time.monotonic()
        try:
            found = os.stat(self._directory, follow_symlinks=False)
            seen = (found.st_ino, found.st_mtime_ns)
            if seen == self._listed and now_s - self._listed_s < _RELIST_AFTER_S:
                return
            self._let_go()
            self._listed, self._listed_s = seen, now_s
            self._descriptor = opened(self._directory)
            for name in os.listdir(self._descriptor):
                if _is_own_socket(name, self._descriptor):
                    self._addresses[name] = _address(self._descriptor, name)
        except OSError:
            self._addresses = {}

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._addresses = -1, {}


def _is_own_socket(name: str, descriptor: int) -> bool:
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _address(descriptor: int, name: str) -> str:
    """A short path through the open directory, even if the directory's name now leads elsewhere."""
    return f"/proc/self/fd/{descriptor}/{name}"


def _send(sender: socket.socket, address: str) -> bool:
    """Wake the reader there. Returns False if there is none. A full socket counts: its reader is about to wake."""
    try:
        sender.sendto(b"!", address)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True
