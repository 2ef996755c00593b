"""The demo as lines of text: every event, and every few seconds a line of figures. For logs and pipes."""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.text import Text

from loadmanager.demo.stage import Event, Stage

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
    owned = "  ".join(f"{m.label} {len(stage.watch.held_by_name(m.name))}" for m in stage.members.values())
    return (
        f"bundles {owned} | {load.rate_s:.0f}/s, p50 {load.p50_ms:.1f} ms, p99 {load.p99_ms:.1f} ms | "
        f"ok {load.ok}, late {load.late}, failed {load.failed} | transfers {stage.watch.transfers}"
    )
