"""The demo afterwards: what it measured, and a timeline as one SVG.

* **gap** of a planned move: from the instant at which the old owner stops serving the bundle (before its `release`
  hook) to the instant at which the new one starts (after its `acquire` hook). Both are taken at the change itself, on
  the machine's one monotonic clock. Moves from a killed owner have no such instant; they are failovers.
* **failover**: from just before SIGKILL until every bundle that the dead broker held has answered a read of one of its
counters, asked through a client router like any other.
* **requests**: counted by the load generator, from the moment at which each was due.
* **lost**, **doubled**: `loadmanager/demo/counter/load.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from math import log10

import msgspec

from loadmanager.demo.counter.load import Snapshot
from loadmanager.demo.stage import Event, Life, Served, Stage


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
    load: Snapshot,
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


WIDTH, LEFT, RIGHT = 1120, 96, 24
LANE, GAP, TOP = 56, 12, 84
LATENCY = 120
EVENT_LINE, COLUMNS, TEXT_AT_MOST = 19, 2, 72
COLOURS = ("#0f766e", "#b45309", "#4338ca", "#be185d", "#15803d", "#b91c1c", "#0369a1")
MARKS = {"act": "#334155", "good": "#15803d", "bad": "#b91c1c"}
LATE_MS, SLOWEST_MS = 100.0, 10_000.0
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"

Points = list[tuple[float, float]]


def timeline(stage: Stage, found: Summary) -> str:
    """The demo as one SVG: bundles per broker, latencies that callers saw, and events.

    The lane of a killed broker ends with its process, because the broker could not report that it stopped serving.
    """
    end_s = max(1.0, stage.now_s)
    labels = sorted({life.label for life in stage.lives})
    events = [event for event in stage.events if event.tone in MARKS]
    latency_y = TOP + len(labels) * (LANE + GAP) + 22
    list_y = latency_y + LATENCY + 52
    height = list_y + EVENT_LINE * -(-len(events) // COLUMNS) + 16
    scale = _Scale(end_s)
    held = {label: bundles_over_time(stage.served, stage.lives, label, stage.began_s) for label in labels}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_head(found),
        *_marks(events, scale, latency_y + LATENCY),
        *_lanes(labels, stage.lives, held, scale),
        *_latency(stage.loads, scale, latency_y),
        *_seconds(end_s, scale, latency_y + LATENCY),
        *_legend([(event, stage.words(event.text)) for event in events], list_y),
        "</svg>\n",
    ]
    return "\n".join(parts)


def bundles_over_time(served: Sequence[Served], lives: Sequence[Life], label: str, began_s: float) -> Points:
    """How many bundles the broker served from each instant on, in seconds of the demo."""
    changes = [(event.at_ns / 1e9 - began_s, event.bundle, event.on) for event in served if event.by == label]
    changes += [(life.ended_s, "", False) for life in lives if life.label == label and life.ended_s is not None]
    held, points = set[str](), Points()
    for at_s, bundle, on in sorted(changes):
        if not bundle:
            held.clear()
        elif on:
            held.add(bundle)
        else:
            held.discard(bundle)
        points.append((at_s, float(len(held))))
    return points


class _Scale:
    def __init__(self, end_s: float) -> None:
        self._end_s = end_s

    def x(self, at_s: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at_s / self._end_s)), 1)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{escape(text)}</text>'


def _head(found: Summary) -> Iterator[str]:
    yield _text(16, 30, "loadmanager demo", 'font-size="19" font-weight="600"')
    said = f"{found.requests_ok:,} requests ok, {found.requests_late:,} of them late, {found.requests_failed:,} failed"
    said += f"; {found.increments_stored:,} increments stored, {found.increments_lost:,} lost, "
    yield _text(16, 52, f"{said}{found.increments_doubled:,} doubled; {found.transfers:,} transfers", 'fill="#475569"')


def _lanes(labels: Sequence[str], lives: Sequence[Life], held: dict[str, Points], scale: _Scale) -> Iterator[str]:
    most = max((count for points in held.values() for _, count in points), default=1.0) or 1.0
    for number, label in enumerate(labels):
        top, colour = TOP + number * (LANE + GAP), COLOURS[number % len(COLOURS)]
        floor = top + LANE
        yield _text(16, top + 24, f"broker {label}", f'fill="{colour}" font-weight="600"')
        peak = max((count for _, count in held[label]), default=0.0)
        yield _text(16, top + 42, f"up to {peak:.0f}", 'fill="#64748b" font-size="11.5"')
        for life in (life for life in lives if life.label == label):
            yield from _life(life, top, colour, scale)
        area = _steps(held[label], scale, lambda count, floor=floor: floor - count / most * (LANE - 4))
        yield f'<path d="M{area} L{scale.x(1e9)} {floor} Z" fill="{colour}" fill-opacity="0.75"/>' if area else ""


def _life(life: Life, top: float, colour: str, scale: _Scale) -> Iterator[str]:
    begin, ready = scale.x(life.begun_s), scale.x(life.ready_s if life.ready_s is not None else 1e9)
    end = scale.x(life.ended_s if life.ended_s is not None else 1e9)
    size = f'width="{max(0.0, end - begin):.1f}" height="{LANE}"'
    yield f'<rect x="{begin}" y="{top}" {size} fill="{colour}" opacity="0.1"/>'
    if ready < end:
        yield f'<line x1="{ready}" y1="{top}" x2="{ready}" y2="{top + LANE}" stroke="{colour}" stroke-dasharray="2 3"/>'
    if life.end:
        fill = MARKS["bad"] if life.end == "SIGKILL" else "#475569"
        where = (end - 4, "end") if end > WIDTH - RIGHT - 60 else (end + 4, "start")
        more = f'fill="{fill}" font-size="11.5" font-weight="600" text-anchor="{where[1]}"'
        yield _text(where[0], top + 14, life.end, more)


def _steps(points: Points, scale: _Scale, y: Callable[[float], float]) -> str:
    """A line that stays at each value until the next one, from the floor on."""
    path: list[str] = []
    before = y(0.0)
    for at_s, value in points:
        path += [f"{scale.x(at_s)} {before:.1f}", f"{scale.x(at_s)} {y(value):.1f}"]
        before = y(value)
    return " L".join([*path, f"{scale.x(1e9)} {before:.1f}"]) if path else ""


def _latency(loads: Sequence[tuple[float, Snapshot]], scale: _Scale, top: float) -> Iterator[str]:
    def y(value_ms: float) -> float:
        share = log10(min(SLOWEST_MS, max(1.0, value_ms))) / log10(SLOWEST_MS)
        return round(top + LATENCY * (1 - share), 1)

    yield _text(LEFT, top - 8, "p99 of the last 3 s, as callers see it", 'fill="#475569" font-size="11.5"')
    for value_ms, name in ((1, "1 ms"), (10, "10 ms"), (100, "100 ms"), (1_000, "1 s"), (10_000, "10 s")):
        late = value_ms == LATE_MS
        stroke = 'stroke="#b45309" stroke-dasharray="5 4"' if late else 'stroke="#e2e8f0"'
        yield f'<line x1="{LEFT}" y1="{y(value_ms)}" x2="{WIDTH - RIGHT}" y2="{y(value_ms)}" {stroke}/>'
        more = f'text-anchor="end" font-size="11.5" fill="{"#b45309" if late else "#64748b"}"'
        yield _text(LEFT - 8, y(value_ms) + 4, f"late: {name}" if late else name, more)
    line = " ".join(f"{scale.x(at_s)},{y(load.p99_ms)}" for at_s, load in loads)
    yield f'<polyline points="{line}" fill="none" stroke="#0f172a" stroke-width="1.6"/>'
    failed = 0
    for at_s, load in loads:
        if load.failed > failed:
            yield f'<circle cx="{scale.x(at_s)}" cy="{y(load.p99_ms)}" r="4" fill="{MARKS["bad"]}"/>'
        failed = load.failed


def _seconds(end_s: float, scale: _Scale, y: float) -> Iterator[str]:
    step = next(step for step in (1, 2, 5, 10, 20, 60, 300, 3_600) if end_s / step <= 15 or step == 3_600)
    for second in range(0, int(end_s) + 1, step):
        yield _text(scale.x(second), y + 18, f"{second} s", 'text-anchor="middle" font-size="11.5" fill="#64748b"')


def _marks(events: Sequence[Event], scale: _Scale, bottom: float) -> Iterator[str]:
    """A numbered line for each event; numbers that would cover each other take turns in two rows."""
    last = [-1e9, -1e9]
    for number, event in enumerate(events, 1):
        x, colour = scale.x(event.at_s), MARKS[event.tone]
        row = 0 if x - last[0] >= 18 or x - last[1] < x - last[0] else 1
        last[row] = x
        yield f'<line x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{bottom}" stroke="{colour}" stroke-opacity="0.35"/>'
        yield _text(x, TOP - 8 - 12 * row, str(number), f'text-anchor="middle" font-size="10.5" fill="{colour}"')


def _legend(events: Sequence[tuple[Event, str]], top: float) -> Iterator[str]:
    rows = -(-len(events) // COLUMNS)
    for index, (event, text) in enumerate(events):
        x, y = 16 + index // rows * (WIDTH // COLUMNS), top + index % rows * EVENT_LINE
        fill = f'fill="{MARKS[event.tone]}" font-size="12"'
        yield _text(x + 16, y, str(index + 1), f'{fill} text-anchor="end"')
        yield _text(x + 66, y, f"{event.at_s:.1f} s", f'{fill} text-anchor="end"')
        yield _text(x + 78, y, text if len(text) <= TEXT_AT_MOST else text[: TEXT_AT_MOST - 1] + "…", fill)
