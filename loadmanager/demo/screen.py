"""The demo while it runs: a live picture in a terminal, lines of text in logs and pipes.

The picture shows owners, usage, moves with their reasons, and what callers see; it fits into 80 x 24. The lines are
every event, and every few seconds the figures.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmanager.demo.observer import Move
from loadmanager.demo.options import NAMESPACE
from loadmanager.demo.stage import Event, Member, Stage
from loadmanager.model.load import usage
from statechannel.law.transitions import State

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "white")
TONES = {"act": ("▶", "bold"), "good": ("✓", "green"), "bad": ("✗", "bold red"), "plain": ("·", "bright_black")}
BARS = " ▁▂▃▄▅▆▇█"
SAMPLES_KEPT = 200
GROUP_S = 1.0
FIXED_LINES = 11
FAINT = "bright_black"


class Pulse:
    """The last latencies that callers saw, one per frame."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    def take(self, stage: Stage) -> None:
        """Remember the present latency."""
        self._samples.append(stage.load.p99_ms)

    def line(self, width: int) -> Text:
        """The last samples as a line of bars, on a logarithmic scale from 1 ms to 10 s."""
        text = Text()
        for sample in list(self._samples)[-width:]:
            height = min(8, max(1, 1 + (len(str(int(sample * sample))) if sample >= 1 else 0)))
            text.append(BARS[height], style="green" if sample < 30 else "yellow" if sample < 100 else "red")
        return text


def picture(stage: Stage, pulse: Pulse, console: Console) -> RenderableType:
    """One frame for this console's size."""
    width, height = console.size
    rows = max(4, height - FIXED_LINES - len(stage.members))
    moves = max(2, rows * 2 // 5)
    return Group(
        _head(stage, width),
        Text(f"  setting up: {stage.setting_up}" if stage.setting_up else "", style="yellow"),
        _brokers(stage, width),
        _ring(stage, width),
        Text(),
        _requests(stage, pulse, width),
        Text(),
        _title("moves", f"{stage.observer.transfers} transfers done", width),
        *_moves(stage, moves, width),
        _title("what happens", "", width),
        *_events(stage, rows - moves, width),
    )


# --- the head


def _head(stage: Stage, width: int) -> Text:
    elapsed_s = min(time.monotonic() - stage.began_s, 5999)
    where = "one SQLite file" if stage.options.log is None else stage.options.log
    text = Text(" loadmanager ", style="bold black on cyan")
    text.append(f"  {len(stage.up())} brokers, {len(stage.observer.bundles(NAMESPACE))} bundles, {where}", style="bold")
    text.truncate(width - 8, overflow="ellipsis")
    text.append(f"{elapsed_s:.0f} s".rjust(width - text.cell_len))
    return text


# --- brokers


def _brokers(stage: Stage, width: int) -> Table:
    table = Table.grid(padding=(0, 1))
    bar = max(8, (width - 46) // 2)
    for column, right in (("", 0), ("broker", 0), ("", 0), ("load", 0), ("", 1), ("req/s", 1), ("bundles", 0), ("", 1)):
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    titles = ("", "broker", "", "load", "", "req/s", "bundles", "")
    table.add_row(*(Text(title, style=FAINT) for title in titles))
    total = max(1, len(stage.observer.bundles(NAMESPACE)))
    for member in stage.members.values():
        table.add_row(*_broker(stage, member, total, bar))
    return table


def _broker(stage: Stage, member: Member, total: int, bar: int) -> Sequence[RenderableType]:
    colour = colour_of(member.label)
    held = len(stage.observer.held_by_name(member.name)) if member.name else 0
    load = stage.observer.load(member.name) if member.state in ("up", "leaving") else None
    name = Text(f"{member.label} ", style=f"bold {colour}")
    name.append(member.name or "…", style="" if member.state == "up" else FAINT)
    used = usage(load) if load is not None else 0.0
    return (
        Text("●" if member.state == "up" else "○", style=colour if member.state == "up" else FAINT),
        name,
        _state(stage, member),
        _bar(used, bar, "red" if used > 0.9 else "yellow" if used > 0.7 else "green"),
        Text(f"{100 * used:.0f} %" if load is not None else ""),
        Text(f"{load.in_rate_msg_s:.0f}" if load is not None else ""),
        _bar(held / total, bar, colour),
        Text(str(held) if held or member.state == "up" else ""),
    )


def _state(stage: Stage, member: Member) -> Text:
    if member.state == "up":
        leads = member is stage.leader()
        return Text("leader" if leads else "", style="bold")
    style = {"killed": "bold red", "starting": "yellow", "leaving": "yellow"}.get(member.state, FAINT)
    return Text(member.state, style=style)


def _bar(share: float, width: int, style: str) -> Text:
    full = min(width, round(share * width))
    text = Text("━" * full, style=style)
    text.append("━" * (width - full), style="grey23")
    return text


def _ring(stage: Stage, width: int) -> Text:
    """Every bundle in ring order, in its owner's colour; one on its way is a hollow block."""
    bundles = stage.observer.bundles(NAMESPACE)
    cells = max(1, min(2, (width - 2) // max(1, len(bundles))))
    text = Text("  ")
    for bundle in bundles:
        entry = stage.observer.table.get(bundle)
        if entry is None or entry.holder is None:
            text.append("·" * cells, style=FAINT)
            continue
        label = stage.label((entry.target or entry.holder).name)
        settled = entry.state in (State.ASSIGNED, State.SPLITTING)
        lost = entry.state is State.REVOKING
        text.append(("█" if settled else "░" if lost else "▒") * cells, style="red" if lost else colour_of(label))
    return text


def colour_of(label: str) -> str:
    """A broker's colour, by its letter."""
    return COLOURS[(ord(label[0]) - ord("A")) % len(COLOURS)]


# --- requests


def _requests(stage: Stage, pulse: Pulse, width: int) -> Text:
    load = stage.load
    text = Text("  ")
    text.append(f"{load.ok:,} ok", style="bold green")
    text.append("   ")
    text.append(f"{load.late:,} late (> 100 ms)", style="yellow" if load.late else FAINT)
    text.append("   ")
    text.append(f"{load.failed:,} failed", style="bold white on red" if load.failed else "bold green")
    text.append(f"   {load.rate_s:.0f}/s   p50 {load.p50_ms:.1f} ms   p99 {load.p99_ms:.1f} ms")
    if load.in_flight > 50:
        text.append(f"   {load.in_flight} held", style="yellow")
    text.truncate(width)
    text.append("\n  p99 ", style=FAINT)
    text.append_text(pulse.line(width - 8))
    return text


# --- moves and events


class _Flock(msgspec.Struct):
    """Moves from one broker to another that began at about the same time."""

    first: Move
    count: int
    slowest_s: float | None
    arrived: int


def _moves(stage: Stage, rows: int, width: int) -> list[Text]:
    flocks = _flocks(list(stage.observer.moves))[-rows:]
    lines = [_move(stage, flock, width) for flock in flocks]
    return lines + [Text()] * (rows - len(lines))


def _flocks(moves: Sequence[Move]) -> list[_Flock]:
    flocks: list[_Flock] = []
    for move in moves:
        same = next((f for f in reversed(flocks) if _together(f.first, move)), None)
        if same is None:
            flocks.append(same := _Flock(move, 0, None, 0))
        same.count += 1
        if move.arrived_s is not None:
            same.arrived += 1
            same.slowest_s = max(same.slowest_s or 0.0, move.arrived_s - move.begun_s)
    return flocks


def _together(one: Move, other: Move) -> bool:
    route = (one.source, one.destination, one.planned)
    return route == (other.source, other.destination, other.planned) and other.begun_s - one.begun_s < GROUP_S


def _move(stage: Stage, flock: _Flock, width: int) -> Text:
    move = flock.first
    text = Text(f"{move.begun_s - stage.began_s:5.1f}  ", style=FAINT)
    source, destination = stage.label(move.source), stage.label(move.destination) if move.destination else "?"
    text.append(source, style=f"bold {colour_of(source)}")
    text.append(" → ", style=FAINT)
    text.append(destination, style=f"bold {colour_of(destination)}" if destination != "?" else FAINT)
    text.append(f"  {flock.count:2d} {'bundle ' if flock.count == 1 else 'bundles'} ")
    took = _took(flock.slowest_s)
    text.append(f"{took:>10}  ", style="green" if flock.arrived == flock.count else "yellow")
    reason = {"admin": "by hand", "drain": "its broker leaves"}.get(move.reason, stage.words(move.reason))
    text.append(reason, style="" if move.planned else "red")
    text.truncate(width, overflow="ellipsis")
    return text


def _took(slowest_s: float | None) -> str:
    if slowest_s is None:
        return "under way"
    return f"{1000 * slowest_s:.0f} ms" if slowest_s < 1 else f"{slowest_s:.1f} s"


def _events(stage: Stage, rows: int, width: int) -> list[Text]:
    lines = [_event(stage, event, width) for event in list(stage.events)[-rows:]]
    return lines + [Text()] * (rows - len(lines))


def _event(stage: Stage, event: Event, width: int) -> Text:
    mark, style = TONES[event.tone]
    text = Text(f"{event.at_s:5.1f}  ", style=FAINT)
    text.append(f"{mark} {stage.words(event.text)}", style=style)
    text.truncate(width, overflow="ellipsis")
    return text


def _title(title: str, right: str, width: int) -> Text:
    text = Text(f"─── {title} ", style=FAINT)
    text.append("─" * max(0, width - text.cell_len - len(right) - 2), style=FAINT)
    text.append(f" {right}" if right else "──", style=FAINT)
    return text


LOOK_S = 0.1
STATUS_S = 3.0


async def show_lines(stage: Stage, console: Console) -> None:
    """Print events until cancelled; the last ones are printed before it ends."""
    shown = 0.0
    status_s = time.monotonic() + STATUS_S
    try:
        while True:
            shown = _show_events(stage, console, shown)
            if time.monotonic() >= status_s:
                status_s += STATUS_S
                line(console, time.monotonic() - stage.began_s, status(stage))
            await asyncio.sleep(LOOK_S)
    finally:
        _show_events(stage, console, shown)


def _show_events(stage: Stage, console: Console, after_s: float) -> float:
    events: list[Event] = [event for event in stage.events if event.at_s > after_s]
    for event in events:
        line(console, event.at_s, stage.words(event.text))
    return events[-1].at_s if events else after_s


def line(console: Console, at_s: float, text: str) -> None:
    """One line with its time, not wrapped and not interpreted."""
    console.print(Text(f"{at_s:6.2f} s  {text}"), soft_wrap=True)


def status(stage: Stage) -> str:
    """The cluster and the load in one line."""
    if stage.setting_up:
        return f"setting up: {stage.setting_up}"
    load = stage.load
    owned = "  ".join(f"{m.label} {len(stage.observer.held_by_name(m.name))}" for m in stage.members.values())
    return (
        f"bundles {owned} | {load.rate_s:.0f}/s, p50 {load.p50_ms:.1f} ms, p99 {load.p99_ms:.1f} ms | "
        f"ok {load.ok}, late {load.late}, failed {load.failed} | transfers {stage.observer.transfers}"
    )
