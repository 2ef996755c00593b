"""The three tiers of the suite, and what happens where a machine lacks a program that a test needs.

A test without one of the marks `slow` and `release` is fast: `make test` runs it. The summary names it if it takes more
than `CPU_LIMIT_S`, and it fails above `FAILS_AT_S`. `make test-all` runs the `slow` tests too; `make test-release` runs
the `release` tests. Tests whose programs are missing are skipped: the header names the programs and the command that
installs them, and the last lines count the tests. In CI (`CI=true`) a missing program is an error, and so is each skip
that `ALLOWED_SKIPS` does not name. PYTEST_DONT_REWRITE: tests/landing.py imports this module before pytest does.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from collections import Counter
from collections.abc import Generator

import pytest

from stack.programs import find, install

CPU_LIMIT_S = 2.0
"""CPU time of the body of a fast test, the processes that it waited for included, on an idle machine like ours.

Elsewhere, and beside other work, the same test takes more: beside two other processes twice the CPU time on two cores.
So a test that took more is compared with a sample of work, done at once: it may take `CPU_LIMIT_S / SAMPLE_S` samples.
"""
FAILS_AT_S = 2 * CPU_LIMIT_S
"""The same test takes between 0.6 and 1.8 of its mean: a test that keeps to the limit must not fail by chance."""
SAMPLE_S = 0.0125
"""CPU time of `_sample` on an idle machine like ours."""
MOST_LOAD = 2.0
"""Processes that want to run, for each core. Above it a test is named, but does not fail."""

PROGRAMS = {
    "kafka": ("java", "mvn"),
    "zookeeper": ("java", "mvn"),
    "spark": ("java", "mvn"),
    "postgresql": ("postgres",),
    "redis": ("redis-server",),
    "chromium": ("chromium",),
    "prometheus": ("prometheus", "promtool"),
    "go": ("go",),
}
"""The programs that the tests with a mark need."""

DEADLINE = "LANDING_DEADLINE"
"""The environment variable with the time, in seconds of the epoch, after which no slow or release test starts."""
ORDER = "LANDING_ORDER"
"""The environment variable with the files whose tests run first, in their order, one a line."""
NO_TIME = "no time was left"
ALLOWED_SKIPS = (
    "permissions do not bind the superuser",
    "a setting has no parts",
    NO_TIME,
)
"""Reasons for which a test may be skipped in CI."""

MISSING = "missing program: "
_SKIPS = Counter[str]()
"""How many tests were skipped, by reason."""
DEAR = "dear"
_DEAR = dict[str, str]()
"""Fast tests that took too much CPU and did not fail, and what to do."""


def missing(mark: str) -> list[str]:
    """The programs that this machine lacks for the tests with a mark."""
    return [name for name in PROGRAMS[mark] if find(name) is None]


def pytest_configure() -> None:
    lacking = sorted({name for mark in PROGRAMS for name in missing(mark)})
    if lacking and os.environ.get("CI"):
        raise pytest.UsageError(f"missing: {', '.join(lacking)}; {install(*lacking)}")


def pytest_report_header() -> list[str]:
    lacking = sorted({name for mark in PROGRAMS for name in missing(mark)})
    if not lacking:
        return []
    return [f"missing, and the tests that need them are skipped: {', '.join(lacking)}", f"  {install(*lacking)}"]


@pytest.hookimpl(trylast=True)  # other plugins add marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = {mark: names for mark in PROGRAMS if (names := missing(mark))}
    for item in items:
        names = sorted({name for mark, names in lacking.items() if item.get_closest_marker(mark) for name in names})
        if names:
            item.add_marker(pytest.mark.skip(reason=MISSING + ", ".join(names)))
    places = {file: place for place, file in enumerate(os.environ.get(ORDER, "").splitlines())}
    if places:
        items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_collection_finish() -> None:
    """Keep thousands of collected tests out of later garbage collections, each of which would walk all of them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _is_fast(item) and time.time() > float(os.environ.get(DEADLINE, "inf")):
        pytest.skip(NO_TIME)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    before = _cpu_s()
    yield
    took_s = _cpu_s() - before
    if took_s > CPU_LIMIT_S and _is_fast(item) and took_s > CPU_LIMIT_S * (slower := _slower()):
        dear = f"took {took_s:.1f} s of CPU ({took_s / slower:.1f} s on an idle machine): "
        dear += "make it cheaper, or mark it with pytest.mark.slow"
        if took_s > FAILS_AT_S * slower and os.getloadavg()[0] <= MOST_LOAD * (os.cpu_count() or 1):
            pytest.fail(dear, pytrace=False)
        item.user_properties.append((DEAR, dear))


def _is_fast(item: pytest.Item) -> bool:
    return not any(map(item.get_closest_marker, ("slow", "release")))


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _slower() -> float:
    """How many times the CPU time of an idle machine like ours the same work takes here and now, at least 1."""
    return max(1.0, statistics.median(_sample() for _ in range(15)) / SAMPLE_S)


def _sample() -> float:
    """CPU time of a piece of Python work, in seconds."""
    before = time.process_time()
    made = {f"key {number}": [number, str(number)] for number in range(20_000)}
    sorted(made.items(), key=lambda item: item[1][1])
    return time.process_time() - before


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _DEAR.update((report.nodeid, str(said)) for name, said in report.user_properties if name == DEAR)
    if report.skipped and isinstance(report.longrepr, tuple):
        _SKIPS[report.longrepr[2].removeprefix("Skipped: ")] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK and _forbidden():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for test, said in sorted(_DEAR.items()):
        terminalreporter.write_line(f"{test} {said}")
    for reason, count in sorted(_SKIPS.items()):
        if reason.startswith(MISSING):
            terminalreporter.write_line(f"skipped, {reason}: {count} tests")
    if os.environ.get("CI"):
        for reason in _forbidden():
            terminalreporter.write_line(f"FAILED: in CI no test may be skipped for this reason: {reason}", red=True)


def _forbidden() -> list[str]:
    return sorted(reason for reason in _SKIPS if not reason.startswith(ALLOWED_SKIPS))
