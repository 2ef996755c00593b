"""Files that are read again when they change: certificates, keys, tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence

from loadmanager.errors import Invalid

MAX_FILE_BYTES = 1 << 20


class Watched:
    """Some files, and whether they changed since they were last looked at."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(path for path in paths if path)
        self._seen = self._state()

    def changed(self) -> bool:
        """Whether one of them is another file, or has other content by its time and size, than at the last call."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        return True

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_state(path) for path in self._paths)


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_file(path: str, setting: str) -> bytes:
    """The file's content. Raises Invalid, with the setting that names it."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Invalid(f"{setting}={path}: cannot read this file: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise Invalid(f"{setting}={path}: this file has more than {MAX_FILE_BYTES:,} bytes")
    return content
