"""Closes in forked children what belongs to their parent alone: sockets whose end others watch, and locks on files.

A child of `os.fork` has copies of all descriptors. When its parent is killed, they keep the parent's port open, its
connections up and its locks held, for as long as the child lives. Other brokers then notice the death seconds late.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

_held: dict[int, tuple[int, int]] = {}
"""Descriptors, each with device and inode of its file: a number may have been closed and given out again."""
_warned = False
_log = logging.getLogger(__name__)


def close_in_children(descriptor: int) -> None:
    """Close this descriptor in children that are forked from now on. Any thread may call this."""
    with suppress(OSError):
        _held[descriptor] = _file_of(descriptor)


def forget(descriptor: int) -> None:
    """The descriptor is about to be closed."""
    _held.pop(descriptor, None)


def _file_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _held_now() -> list[int]:
    """The descriptors that still are what they were."""
    found = list[int]()
    for descriptor, file in tuple(_held.items()):
        with suppress(OSError):
            if _file_of(descriptor) == file:
                found.append(descriptor)
    return found


def _before_fork() -> None:
    global _warned
    if not _warned and _held_now():
        _warned = True
        _log.warning(
            "this process has a broker and forks: the child has no broker, and must not use the parent's. "
            "Use multiprocessing's start method `spawn` or `forkserver`, or fork before the broker starts"
        )


def _in_child() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in _held_now():
        # the number stays taken: a copy of the parent's socket object may close it later
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
