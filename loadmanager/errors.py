"""What an operation can answer instead of being done. Each is an answer to somebody, that says what to do.

LoadManagerError
├── Invalid        the request itself makes no sense                       (REST 400/412)
│   └── MissingExtra   it needs packages that are not installed
├── NotFound       no such namespace, bundle or broker                     (REST 404)
├── Conflict       it exists, but not in a state in which this can be done (REST 409)
├── Gone           it was there once, and is not kept any more              (REST 410)
└── Unavailable    not now: nothing was changed, or it is not known yet    (REST 503, Retry-After)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from statechannel.errors import Error


class LoadManagerError(Error):
    """Root of what this package raises on purpose."""


class Invalid(LoadManagerError):
    """The request makes no sense."""


class NotFound(LoadManagerError):
    """There is no such thing."""


class Conflict(LoadManagerError):
    """It cannot be done to this thing in its present state."""


class Gone(LoadManagerError):
    """It is not kept any more; asking again does not help."""


class Unavailable(LoadManagerError):
    """Try again after `retry_after_s`. `record_id` names a record whose verdict is not known yet."""

    def __init__(self, message: str, retry_after_s: float = 1.0, record_id: str | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.record_id = record_id


class MissingExtra(Invalid, ModuleNotFoundError, ValueError):
    """It needs packages that only an extra brings; the message has the line that installs them."""


@contextmanager
def needs_extra(extra: str, what: str) -> Generator[None]:
    """Around imports of packages that `extra` brings, which `what` needs. Raises MissingExtra where one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "statechannel", "loadmanager", "loadmanager_api"):
            raise
        raise MissingExtra(
            f"{what} needs the package {package}, which is not installed: {install_line(extra)}", name=package
        ) from None


def install_line(extra: str) -> str:
    """What brings the packages of an extra. Beside an installed loadmanager, pip takes that one and no other."""
    return f"pip install 'loadmanager[{extra}]'"
