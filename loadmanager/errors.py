"""The errors with which an operation can answer. Each message says what to do.

LoadManagerError
├── Invalid        the request itself makes no sense                       (REST 400/412)
│   └── MissingExtra   it needs packages that are not installed
├── NotFound       no such namespace, bundle or broker                     (REST 404)
├── Forbidden      the caller may not do this                              (REST 403)
│   └── NotKnown       the caller is not known: no token, or none that can be checked now (REST 401)
├── Conflict       it exists, but its state does not allow this            (REST 409)
├── Gone           it was there once, and is not kept any more             (REST 410)
└── Unavailable    not now: nothing was changed, or the outcome is unknown (REST 503, Retry-After)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from statechannel.errors import Error


def first_cause(error: BaseException) -> BaseException:
    """The first error, without the exception groups of task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class LoadManagerError(Error):
    """Root of everything that this package raises on purpose."""


class Invalid(LoadManagerError):
    """The request makes no sense."""


class NotFound(LoadManagerError):
    """There is no such thing."""


class Forbidden(LoadManagerError):
    """The caller may not do this, or did not say who it is."""


class NotKnown(Forbidden):
    """The caller could not be identified. A later try may succeed, with a new token or once the keys can be read."""


class Conflict(LoadManagerError):
    """The present state of the thing does not allow this."""


class VersionConflict(Conflict):
    """The thing has another version than the one to be changed: another change came first."""


class Gone(LoadManagerError):
    """It is not kept any more; asking again does not help."""


class Unavailable(LoadManagerError):
    """Try again after `retry_after_s`. `record_id` names a record whose verdict is not known yet."""

    def __init__(self, message: str, retry_after_s: float = 1.0, record_id: str | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.record_id = record_id


class MissingExtra(Invalid, ModuleNotFoundError, ValueError):
    """It needs packages that only an extra installs; the message has the command."""


@contextmanager
def needs_extra(extra: str, what: str) -> Generator[None]:
    """A context for imports of packages of `extra`, which `what` needs. Raises MissingExtra if one is missing."""
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
    """The command that installs the packages of an extra; pip keeps the installed version of loadmanager."""
    return f"pip install 'loadmanager[{extra}]'"
