"""Runs the demo: sets the stage in a temporary directory, plays the script, shows it, and prints the figures.

Each act of the script begins at its share of the time, or later if the one before is not over. However the demo ends
(time is up, an error, Ctrl-C), all its processes have ended and the directory is deleted. The directory is kept, with
the processes' error output, only after a failure or where the user asks for it; its path is then printed.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadmanager.demo.options import BUNDLES, NAMESPACE, Options
from loadmanager.demo.report import Summary, summary, timeline
from loadmanager.demo.screen import Pulse, picture, show_lines
from loadmanager.demo.stage import SETTLE_S, Member, Stage
from loadmanager.errors import first_cause
from statechannel.errors import StateChannelError

JOIN, BY_HAND, KILL, RETURN, KILL_LEADER, RETURN_AGAIN, DRAIN = 0.10, 0.24, 0.34, 0.52, 0.58, 0.78, 0.84
"""When each act begins, as a share of the whole."""

TRANSFERS_BY_HAND = 6


async def play(stage: Stage) -> None:
    """Play the whole script, from the first broker to the audit."""
    await overture(stage)
    begun_s = time.monotonic()
    seconds = stage.options.seconds

    async def at(share: float) -> None:
        await asyncio.sleep(max(0.0, begun_s + share * seconds - time.monotonic()))

    await at(JOIN)
    joined = await join(stage)
    await at(BY_HAND)
    await by_hand(stage, joined)
    await at(KILL)
    killed = await kill_an_owner(stage)
    await at(RETURN)
    await come_back(stage, killed)
    await at(KILL_LEADER)
    leader = await kill_the_leader(stage)
    await at(RETURN_AGAIN)
    await come_back(stage, leader)
    await at(DRAIN)
    await drain(stage)
    await at(1.0)
    stage.note("the load ends; the demo compares what was acknowledged with what is stored", "act")
    await stage.finish_load()


async def overture(stage: Stage) -> None:
    """Start brokers, bundles and load."""
    count = stage.options.brokers
    await stage.start_brokers(count)
    labels = ", ".join(sorted(m.label for m in stage.up()))
    stage.note(f"{labels} are ready; {BUNDLES} bundles wait for their first lookup", "good")
    port = stage.up()[0].name.rpartition(":")[2]
    stage.note(f"the dashboard is at http://localhost:{port}/ while the demo runs")
    await stage.observer.wait_for(lambda: len(stage.observer.bundles(NAMESPACE)) == BUNDLES, timeout_s=SETTLE_S)
    await stage.first_owners()
    stage.note(f"all bundles have owners; {stage.options.rate_s:g} increments/s begin", "act")
    stage.note(f"late: answered, but over 100 ms after it was due; failed: no answer in {stage.options.budget_s:g} s")
    await stage.start_load()


async def join(stage: Stage) -> Member:
    """Start one more broker; the leader's balancing gives it its part."""
    stage.note("one more broker is started", "act")
    member = await stage.start_broker()
    stage.note(f"{member.label} has joined; balancing will give it its share", "good")
    return member


async def by_hand(stage: Stage, to: Member) -> None:
    """Transfer some bundles of the broker with the most, one after the other."""
    source = max((m for m in stage.up() if m is not to), key=lambda m: len(stage.observer.held_by_name(m.name)))
    bundles = stage.observer.held_by_name(source.name)[:TRANSFERS_BY_HAND]
    stage.note(f"{len(bundles)} bundles are moved by hand from {source.label} to {to.label}", "act")
    for bundle in bundles:
        await stage.transfer(bundle, to)


async def kill_an_owner(stage: Stage) -> Member:
    """Kill the follower with the most bundles."""
    leader = await stage.led_by()
    followers = [m for m in stage.up() if m is not leader]
    member = max(followers, key=lambda m: len(stage.observer.held_by_name(m.name)))
    await stage.kill(member, "broker")
    return member


async def come_back(stage: Stage, member: Member) -> None:
    """Start a killed broker again under its old name: a new incarnation that inherits nothing."""
    stage.note(f"{member.label} is started again under its old name", "act")
    await stage.start_broker(member)
    stage.note(f"{member.label} is back, as a new incarnation", "good")


async def kill_the_leader(stage: Stage) -> Member:
    """Kill the leader. Another broker takes over the lead, then the bundles."""
    leader = await stage.led_by()
    await stage.kill(leader, "leader")
    return leader


async def drain(stage: Stage) -> None:
    """A follower drains and leaves."""
    leader = await stage.led_by()
    followers = [m for m in stage.up() if m is not leader]
    await stage.retire(max(followers, key=lambda m: len(stage.observer.held_by_name(m.name))))


FRAME_S = 0.2


def run(options: Options, console: Console | None = None) -> int:
    """Run the demo. Exit code 0 if nothing failed, was lost or doubled, and the script was played to its end.

    Raises ValueError for invalid options. Ctrl-C gives 130.
    """
    options.check()
    console = console or Console()
    directory = _folder(options)
    worth_keeping = True
    where = options.log or "a SQLite file"
    console.print(f"setting up {options.brokers} brokers and a load generator on {where}", soft_wrap=True)
    try:
        found = asyncio.run(_run(options, directory, console))
        tell(found, console)
        if options.picture is not None:
            console.print(f"the timeline is in {options.picture}", soft_wrap=True)
        if options.json is not None:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        worth_keeping = not found.clean
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; all processes of the demo have ended")
        worth_keeping = False
        return 130
    except ExceptionGroup as failures:
        foreseen, bugs = failures.split(StateChannelError)
        if foreseen is None or bugs is not None:
            raise
        console.print(Text(f"the demo cannot go on: {first_cause(foreseen)}", style="red"), soft_wrap=True)
        worth_keeping = False
        return 1
    else:
        return 0 if found.clean else 1
    finally:
        if worth_keeping or options.keep is not None:
            console.print(f"the output of the processes is kept in {directory}", soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _folder(options: Options) -> Path:
    if options.keep is None:
        return Path(tempfile.mkdtemp(prefix="loadmanager-demo-"))
    options.keep.mkdir(parents=True, exist_ok=True)
    return options.keep


async def _run(options: Options, directory: Path, console: Console) -> Summary:
    begun_s = time.monotonic()
    _end_on(signal.SIGTERM)
    async with asyncio.TaskGroup() as tasks:
        stage = Stage(options, directory, tasks)
        try:
            async with stage.observer.running(), _shown(stage, console):
                await _played(stage)
        finally:
            await stage.clear()
    found = summary(
        stage.load,
        stage.served,
        transfers=stage.observer.transfers,
        failovers=stage.failovers,
        ready_s=round(max(stage.ready_s), 3) if stage.ready_s else None,
        seconds=time.monotonic() - begun_s,
        log=options.log or "sqlite",
        problems=stage.problems,
    )
    if options.picture is not None:
        options.picture.write_text(timeline(stage, found), encoding="utf-8")
    return found


def _end_on(number: signal.Signals) -> None:
    """Let this signal end the demo in order, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _played(stage: Stage) -> None:
    try:
        await play(stage)
    except* Exception as failures:  # noqa: BLE001 - the summary tells it
        for failure in failures.exceptions:
            stage.problem(f"{type(failure).__name__}: {failure}")


@asynccontextmanager
async def _shown(stage: Stage, console: Console) -> AsyncGenerator[None]:
    showing = _show_picture if console.is_terminal and not stage.options.plain else show_lines
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(showing(stage, console))
        try:
            yield
        finally:
            task.cancel()


async def _show_picture(stage: Stage, console: Console) -> None:
    pulse = Pulse()
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            pulse.take(stage)
            live.update(picture(stage, pulse, console), refresh=True)
            await asyncio.sleep(FRAME_S)


def tell(found: Summary, console: Console) -> None:
    """The figures, for people."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black")
    table.add_row(
        "requests",
        f"{found.requests_ok:,} ok   {found.requests_late:,} late (> 100 ms)   "
        f"{found.requests_failed:,} failed   slowest {found.latency_ms_worst / 1000:.2f} s",
    )
    table.add_row(
        "increments",
        f"{found.increments_stored:,} stored   {found.increments_lost:,} lost   {found.increments_doubled:,} doubled",
    )
    table.add_row("transfers", f"{found.transfers:,}   gap p50 {_ms(found.gap_ms_p50)}   p99 {_ms(found.gap_ms_p99)}")
    table.add_row("failover", f"owner killed: {_s(found.failover_s)}   leader killed: {_s(found.leader_failover_s)}")
    table.add_row("a broker is ready", f"in {_s(found.broker_ready_s)} at the latest")
    console.print()
    console.print(table)
    console.print()
    if found.clean:
        console.print(Text("✓ nothing failed, nothing was lost, nothing was counted twice", style="bold green"))
    else:
        if found.requests_late > found.requests_ok / 2:
            console.print(
                "most requests were late: this machine is too slow, or too busy, for this load; try --rate 50"
            )
        for problem in found.problems:
            console.print(Text(f"✗ {problem}", style="red"), soft_wrap=True)
        console.print(Text("✗ this must not happen", style="bold red"))


def _ms(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f} ms"


def _s(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} s"
