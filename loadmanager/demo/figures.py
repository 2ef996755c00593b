"""What the demo measures, and how.

* **gap** of a planned move: from the instant at which the old owner stops serving the bundle (before its `release` hook
begins) to the instant at which the new one starts (after its `acquire` hook), both taken at the change itself, on the
one monotonic clock of the machine. Moves from a killed owner have no such instant; they are failovers.
* **failover**: from just before SIGKILL until every bundle that the dead broker held has answered a read of one of its
counters, asked through a client router like any other.
* **requests**: counted by the load generator, from the moment at which each was due.
* **lost**, **doubled**: `loadmanager/demo/counter/audit.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class LoadFigures(msgspec.Struct, frozen=True):
    """The load generator's figures, four times a second; `stored`, `lost` and `doubled` only at its end."""

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


class Served(msgspec.Struct, frozen=True, order=True):
    """A bundle began or stopped being served by a broker."""

    at_ns: int
    bundle: str
    by: str
    on: bool


class Summary(msgspec.Struct, frozen=True):
    """What is written to `--json`. Times that were not measured are None."""

    requests_ok: int
    requests_late: int
    requests_failed: int
    increments_stored: int
    increments_lost: int
    increments_doubled: int
    transfers: int
    gap_ms_p50: float | None
    gap_ms_p99: float | None
    failover_s: float | None
    leader_failover_s: float | None
    latency_ms_worst: float
    broker_ready_s: float | None
    seconds: float
    log: str
    problems: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing failed, nothing lost, nothing doubled, and the script was played to its end."""
        return not (self.requests_failed or self.increments_lost or self.increments_doubled or self.problems)


def gaps_ms(served: Iterable[Served]) -> list[float]:
    """Gaps of all planned moves, sorted: from each stop of service to the next start of the same bundle."""
    gaps: list[float] = []
    last: dict[str, Served] = {}
    for event in sorted(served):
        before = last.get(event.bundle)
        if event.on and before is not None and not before.on and before.by != event.by:
            gaps.append((event.at_ns - before.at_ns) / 1e6)
        last[event.bundle] = event
    return sorted(gaps)


def percentile(values: list[float], share: float) -> float | None:
    """A percentile of sorted values; None if there are none."""
    return round(values[min(len(values) - 1, int(len(values) * share))], 2) if values else None


def summary(
    load: LoadFigures,
    served: Iterable[Served],
    *,
    transfers: int,
    failovers: dict[str, float],
    ready_s: float | None,
    seconds: float,
    log: str,
    problems: Iterable[str],
) -> Summary:
    """All figures together."""
    gaps = gaps_ms(served)
    return Summary(
        requests_ok=load.ok,
        requests_late=load.late,
        requests_failed=load.failed,
        increments_stored=load.stored or 0,
        increments_lost=load.lost or 0,
        increments_doubled=load.doubled or 0,
        transfers=transfers,
        gap_ms_p50=percentile(gaps, 0.5),
        gap_ms_p99=percentile(gaps, 0.99),
        failover_s=failovers.get("broker"),
        leader_failover_s=failovers.get("leader"),
        latency_ms_worst=round(load.worst_ms, 1),
        broker_ready_s=ready_s,
        seconds=round(seconds, 1),
        log=log,
        problems=(*problems, *load.examples),
    )
