"""The system's programs that servers and tests need: where they are, and how to install what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGES = {
    "java": "openjdk-17-jdk-headless",
    "keytool": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "postgres": "postgresql",
    "initdb": "postgresql",
    "redis-server": "redis-server",
    "chromium": "chromium",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "go": "golang",
}
"""Debian's package for each program."""


class StackError(RuntimeError):
    """This machine lacks something, or a server does not start. The message says what to do."""


def find(name: str) -> str | None:
    """The path of a program, or None. Debian keeps PostgreSQL's programs off the PATH: the newest version counts."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    return str(newest) if newest is not None else shutil.which(name)


def program(name: str) -> str:
    """The path of a program. Raises StackError with the command that installs it."""
    found = find(name)
    if found is None:
        raise StackError(f"{name} is missing; on Debian: {install(name)}")
    return found


def install(*names: str) -> str:
    """The command that installs these programs on Debian."""
    return f"apt-get install --no-install-recommends {' '.join(sorted({PACKAGES[name] for name in names}))}"
