"""What `loadmanager check` looks at in one round: settings, the machine, and the stores' auditors.

A store that hangs delays no other. `broker/wiring.py` chooses the auditors; this module runs them and interprets
their failures.
"""

from __future__ import annotations

import asyncio
import ctypes
import platform
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import cast

import msgspec

from loadmanager.cluster.clocks import clocks_outside
from loadmanager.diagnostics.settings_check import check_settings
from loadmanager.errors import install_line
from loadmanager.model.registration import VERSION
from loadmanager.settings import Settings
from statechannel.audit import Finding, Severity
from statechannel.errors import StateChannelError

MIN_PYTHON = (3, 11)
MIN_SQLITE = (3, 35, 0)
"""For `RETURNING`; the write-ahead log and upserts are older."""

_TIMEX_BYTES = 512
_UNSYNCHRONISED = 5


class Clocks(msgspec.Struct, frozen=True):
    """`boot` says whether there is a clock that runs on during suspend; `kept` is None where it is unknown."""

    boot: bool
    kept: bool | None
    """Whether NTP or the hypervisor synchronizes the wall clock."""
    outside: tuple[str, ...] = ()
    """Sources that tell whether this machine was paused: see `docs/clocks.md`."""


class Versions(msgspec.Struct, frozen=True):
    """Installed versions; None where missing. `librdkafka` is the library inside confluent-kafka."""

    python: tuple[int, ...]
    sqlite: tuple[int, ...]
    confluent_kafka: str | None
    librdkafka: str | None
    kazoo: str | None
    scipy: str | None = None


def read_clocks() -> Clocks:
    """Read this machine's clocks."""
    return Clocks(boot=hasattr(time, "CLOCK_BOOTTIME"), kept=_kept_right(), outside=tuple(clocks_outside()))


def _kept_right() -> bool | None:
    """The kernel's state of its wall clock; asking changes nothing (`modes` is 0)."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


def read_versions() -> Versions:
    """Read the installed versions."""
    return Versions(
        python=tuple(sys.version_info[:3]),
        sqlite=sqlite3.sqlite_version_info,
        confluent_kafka=_version_of("confluent-kafka"),
        librdkafka=_librdkafka(),
        kazoo=_version_of("kazoo"),
        scipy=_version_of("scipy"),
    )


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _librdkafka() -> str | None:
    try:
        return str(import_module("confluent_kafka").libversion()[0])
    except ImportError:
        return None


def check_clocks(clocks: Clocks) -> Iterator[Finding]:
    """Judge the clocks: proofs need one that runs on during suspend; the wall clock is for people and ages of loads."""
    if clocks.boot:
        yield Finding("clock", Severity.OK, "CLOCK_BOOTTIME is available")
    else:
        advice = "run on Linux: without this clock a machine that was suspended still trusts its old proofs"
        yield Finding("clock", Severity.ERROR, f"{platform.system()} has no CLOCK_BOOTTIME", advice)
    if clocks.kept is None:
        yield Finding("clock", Severity.OK, "the system does not tell whether its wall clock is synchronized")
    elif clocks.kept:
        yield Finding("clock", Severity.OK, "the kernel says that the wall clock is synchronized")
    else:
        advice = "run chrony or ntpd: ages of loads and times in the history depend on it (ownership does not)"
        yield Finding("clock", Severity.WARNING, "the kernel says that the wall clock is not synchronized", advice)
    if clocks.outside:
        told_by = " and ".join(clocks.outside)
        yield Finding("clock", Severity.OK, f"{told_by} tells whether this machine was paused")


def check_versions(found: Versions, settings: Settings) -> Iterator[Finding]:
    """Judge our version, and those that these settings need."""
    yield Finding("versions", Severity.OK, f"loadmanager {VERSION} on Python {_dotted(found.python)}")
    if found.python < MIN_PYTHON:
        yield Finding("versions", Severity.ERROR, f"Python {_dotted(found.python)}", "use Python 3.11 or newer")
    if settings.log.startswith("sqlite:") or (settings.coordination or "sqlite:").startswith("sqlite:"):
        yield _sqlite(found.sqlite)
    if settings.log.startswith("kafka:"):
        name = f"confluent-kafka {found.confluent_kafka} with librdkafka {found.librdkafka}"
        yield _installed(name, found.librdkafka, "kafka")
    if (settings.coordination or "").startswith("zookeeper:"):
        yield _installed(f"kazoo {found.kazoo}", found.kazoo, "zookeeper")
    if settings.balancing_strategy == "plan":
        yield _planner(found.scipy)


def _planner(scipy: str | None) -> Finding:
    if scipy is None:
        missing = "SciPy is not installed: the strategy `plan` leaves its exact stage out"
        return Finding("versions", Severity.WARNING, missing, install_line("planner"))
    return Finding("versions", Severity.OK, f"SciPy {scipy}")


def _sqlite(found: tuple[int, ...]) -> Finding:
    if found < MIN_SQLITE:
        advice = f"use a Python with SQLite {_dotted(MIN_SQLITE)} or newer"
        return Finding("versions", Severity.ERROR, f"SQLite {_dotted(found)}", advice)
    return Finding("versions", Severity.OK, f"SQLite {_dotted(found)}")


def _installed(name: str, there: str | None, extra: str) -> Finding:
    if there is None:
        return Finding("versions", Severity.ERROR, f"the client of {extra} is not installed", install_line(extra))
    return Finding("versions", Severity.OK, name)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


Auditor = Callable[[], AsyncIterator[Finding]]
"""Checks one store; its findings count, even if it hangs or fails later."""

AUDIT_TIMEOUT_S = 20.0


async def check(
    settings: Settings, auditors: Mapping[str, Auditor], timeout_s: float = AUDIT_TIMEOUT_S
) -> list[Finding]:
    """All findings, in the order: settings, machine, stores. Raises no error of a store."""
    found = [*check_settings(settings), *check_clocks(read_clocks()), *check_versions(read_versions(), settings)]
    rounds = await asyncio.gather(*(_audited(name, audit, timeout_s) for name, audit in auditors.items()))
    return [*found, *(finding for findings in rounds for finding in findings)]


async def _audited(name: str, audit: Auditor, timeout_s: float) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with asyncio.timeout(timeout_s), aclosing(_closable(audit())) as findings:
            async for finding in findings:
                found.append(finding)  # noqa: PERF401 - a comprehension would lose them where it fails
    except TimeoutError:
        advice = "check that it runs and is reachable from here, then run the check again"
        found.append(Finding(name, Severity.ERROR, f"no answer within {timeout_s:g} s", advice))
    except (StateChannelError, OSError, ValueError) as error:
        advice = "correct that, then run the check again: it could check nothing else"
        found.append(Finding(name, Severity.ERROR, " ".join(str(error).split()), advice))
    return found


async def _closable(findings: AsyncIterator[Finding]) -> AsyncGenerator[Finding]:
    """Closes the auditor's generator, however it is left."""
    try:
        async for finding in findings:
            yield finding
    finally:
        if isinstance(findings, AsyncGenerator):
            await cast("AsyncGenerator[Finding]", findings).aclose()


def worst(findings: Sequence[Finding]) -> Severity:
    """The highest severity."""
    order = list(Severity)
    return max((finding.severity for finding in findings), key=order.index, default=Severity.OK)
