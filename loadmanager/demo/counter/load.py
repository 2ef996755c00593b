"""A load generator: increments at a given rate through the client router, whether or not answers come back.

Counts what a caller sees, from the moment at which the request was due: ok (a 2xx within the budget), late (those of
them that took over 100 ms), failed (all others). A repeated attempt has the same request id. At the end it can
audit the store: every acknowledged increment must be stored once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sqlite3
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.traffic import Trace, TraceError, Traffic
from loadmanager.errors import LoadManagerError
from loadmanager.fencing.fences import driver

EXAMPLES_SHOWN = 10


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """A 2xx answer: this increment made the counter this value."""

    topic: str
    request_id: str
    value: int


class Audit(msgspec.Struct, frozen=True):
    """`lost` were acknowledged and not stored; `doubled` count twice, or differ from the acknowledged value."""

    stored: int
    lost: int
    doubled: int
    examples: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.lost and not self.doubled


def audit(store: Path | str, acknowledged: Iterable[Acknowledged]) -> Audit:
    """Compare what was acknowledged with what is stored, in a SQLite file or at `postgresql://…`.

    Raises sqlite3.Error or psycopg.Error.
    """
    with _opened(str(store)) as db:
        rows = db.execute("SELECT topic, request_id, value FROM increment").fetchall()
        counters = dict(db.execute("SELECT topic, value FROM counter").fetchall())
    stored = {(topic, request_id): value for topic, request_id, value in rows}
    lost, doubled = _missing(stored, acknowledged)
    doubled += _counted_twice(rows)
    increments = Counter(topic for topic, _, _ in rows)
    for topic in increments.keys() | counters.keys():
        counted, told = increments[topic], counters.get(topic, 0)
        doubled += [f"{topic}: counter {told}, increments {counted}"] * abs(counted - told)
    return Audit(len(stored), len(lost), len(doubled), (*lost[:EXAMPLES_SHOWN], *doubled[:EXAMPLES_SHOWN]))


def _opened(store: str) -> AbstractContextManager[Any]:
    if store.startswith("postgresql://"):
        return contextlib.closing(driver("psycopg", "postgresql").connect(store))
    return contextlib.closing(sqlite3.connect(f"file:{quote(store)}?mode=ro", uri=True, timeout=5))


def _missing(stored: dict[tuple[str, str], int], acknowledged: Iterable[Acknowledged]) -> tuple[list[str], list[str]]:
    lost: list[str] = []
    other: list[str] = []
    for answer in acknowledged:
        value = stored.get((answer.topic, answer.request_id))
        if value is None:
            lost.append(f"{answer.topic} {answer.request_id}: acknowledged as {answer.value}, not stored")
        elif value != answer.value:
            other.append(f"{answer.topic} {answer.request_id}: acknowledged as {answer.value}, stored as {value}")
    return lost, other


def _counted_twice(rows: Iterable[tuple[str, str, int]]) -> list[str]:
    """Values that two requests made: each increment of a topic must make a value of its own."""
    values = Counter((topic, value) for topic, _, value in rows)
    return [f"{topic}: {n} requests made {value}" for (topic, value), n in values.items() for _ in range(n - 1)]


LATE_S = 0.1
BUDGET_S = 10.0
TICK_S = 0.01
IN_FLIGHT = 10_000
WINDOW_S = 3.0
REPORT_S = 0.25


class Snapshot(msgspec.Struct, frozen=True):
    """Totals since the start; rates and latencies over the last WINDOW_S. `worst_ms` is of the whole run."""

    ok: int = 0
    late: int = 0
    failed: int = 0
    in_flight: int = 0
    rate_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0
    stored: int | None = None
    lost: int | None = None
    doubled: int | None = None
    examples: tuple[str, ...] = ()


class Load:
    """Sends increments. `run()` until `stop()`, then `settle()`.

    While `in_flight` requests are unanswered, requests that fall due are not sent at all. The default is never reached
    in health. A small number simulates callers that wait for their answers. They cannot overload a machine that is slow
    for a time.
    """

    def __init__(
        self, http: HttpRouter, traffic: Traffic | Trace, budget_s: float = BUDGET_S, in_flight: int = IN_FLIGHT
    ) -> None:
        self._http = http
        self._traffic = traffic
        self._budget_s = budget_s
        self._most_in_flight = in_flight
        self._stopping = asyncio.Event()
        self._run = secrets.token_hex(4)
        self._recent: deque[tuple[float, float]] = deque()
        self.acknowledged: list[Acknowledged] = []
        self.ok = self.late = self.failed = self.in_flight = 0
        self.worst_s = 0.0
        self.failures: list[str] = []

    async def run(self) -> None:
        """Send requests as they fall due, until `stop()`; returns when all have been answered or have failed."""
        begin_s, sent = time.monotonic(), 0
        async with asyncio.TaskGroup() as requests:
            while not self._stopping.is_set():
                due = self._traffic.requests_by(time.monotonic() - begin_s)
                while sent < due:
                    due_s = self._traffic.time_of(sent)
                    sent += 1
                    if self.in_flight >= self._most_in_flight:
                        continue
                    self.in_flight += 1
                    topic, request_id = self._traffic.pick(due_s), f"{self._run}-{sent}"
                    requests.create_task(self._one(topic, request_id, begin_s + due_s))
                await asyncio.sleep(TICK_S)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping.set()

    async def _one(self, topic: str, request_id: str, due_s: float) -> None:
        problem = ""
        try:
            body = {"topic": topic, "id": request_id}
            answer = await self._http.post(topic, "/v1/counters", body, budget_s=self._budget_s)
            if 200 <= answer.status < 300:
                self.acknowledged.append(Acknowledged(topic, request_id, answer.json()["value"]))
            else:
                problem = f"{answer.status} {answer.body[:200]!r}"
        except LoadManagerError as error:
            problem = str(error)
        finally:
            self.in_flight -= 1
        self._count(problem, time.monotonic(), due_s)

    def _count(self, problem: str, now_s: float, due_s: float) -> None:
        took_s = now_s - due_s
        if not problem and took_s > self._budget_s:
            problem = f"done, but {took_s:.1f} s after it was due"
        if problem:
            self.failed += 1
            self.failures.append(problem) if len(self.failures) < 10 else None
        else:
            self.ok += 1
            self.late += took_s > LATE_S
            self.worst_s = max(self.worst_s, took_s)
            self._recent.append((now_s, took_s))

    def snapshot(self) -> Snapshot:
        """The present figures."""
        now_s = time.monotonic()
        while self._recent and self._recent[0][0] < now_s - WINDOW_S:
            self._recent.popleft()
        took_ms = sorted(1000 * took_s for _, took_s in self._recent) or [0.0]
        return Snapshot(
            ok=self.ok,
            late=self.late,
            failed=self.failed,
            in_flight=self.in_flight,
            rate_s=len(self._recent) / WINDOW_S,
            p50_ms=took_ms[len(took_ms) // 2],
            p99_ms=took_ms[len(took_ms) * 99 // 100],
            worst_ms=1000 * self.worst_s,
            examples=tuple(self.failures),
        )

    def settle(self, store: Path | str) -> Snapshot:
        """The final figures, with the audit of the counters' store."""
        found = audit(store, self.acknowledged)
        snapshot = msgspec.structs.replace(self.snapshot(), stored=found.stored, lost=found.lost, doubled=found.doubled)
        return msgspec.structs.replace(snapshot, examples=snapshot.examples + found.examples)


async def _report(load: Load, *, json: bool) -> None:
    while True:
        await asyncio.sleep(REPORT_S if json else 1.0)
        _show(load.snapshot(), json=json)


def _show(snapshot: Snapshot, *, json: bool) -> None:
    if json:
        sys.stdout.write(msgspec.json.encode(snapshot).decode() + "\n")
    else:
        print(
            f"{snapshot.rate_s:6.0f}/s  ok {snapshot.ok}  late {snapshot.late}  failed {snapshot.failed}"
            f"  p50 {snapshot.p50_ms:.1f} ms  p99 {snapshot.p99_ms:.1f} ms"
        )
    sys.stdout.flush()


async def _until_stdin_ends() -> None:
    """Wait until standard input ends: the parent closes it to end this process, or by its own death."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def main() -> int:
    """The command. 0 if nothing failed, was lost or doubled."""
    given = _arguments()
    http = HttpRouter(Router(given.admin))
    try:
        load = Load(http, _traffic(given), given.budget, given.in_flight)
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    async with http, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(load.run())
        reporting = tasks.create_task(_report(load, json=given.json))
        if given.seconds is None:
            await _until_stdin_ends()
        else:
            await asyncio.sleep(given.seconds)
        load.stop()
        await running
        reporting.cancel()
    final = load.snapshot() if given.store is None else await asyncio.to_thread(load.settle, given.store)
    _show(final, json=given.json)
    if not given.json:
        print(f"stored {final.stored}  lost {final.lost}  doubled {final.doubled}", *final.examples, sep="\n")
    return 1 if final.failed or final.lost or final.doubled else 0


def _traffic(given: argparse.Namespace) -> Traffic | Trace:
    """Raises TraceError."""
    if given.trace is not None:
        return Trace(given.trace, given.namespace, speed=given.speed, rate_s=given.rate)
    rate_s = 300.0 if given.rate is None else given.rate
    return Traffic(given.namespace, rate_s=rate_s, topics=given.topics, skew=given.skew, drift_s=given.drift_s)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin", action="append", required=True, help="admin URL of a broker; give several")
    parser.add_argument("--store", help="the counters' file, or postgresql://…, to audit it at the end")
    parser.add_argument(
        "--rate", type=float, help="requests per second, of a trace on the mean (default: 300, as traced)"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE.csv", help="time,key,rate: replay it instead of --topics")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the trace played per second")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds after which a request has failed")
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="unanswered requests above which none is sent")
    parser.add_argument("--seconds", type=float, help="default: until standard input ends")
    parser.add_argument("--namespace", default="demo/counters")
    parser.add_argument("--topics", type=int, default=400)
    parser.add_argument("--skew", type=float, default=0.9)
    parser.add_argument("--drift-s", type=float, default=8.0)
    parser.add_argument("--json", action="store_true", help="a JSON line every quarter of a second")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
