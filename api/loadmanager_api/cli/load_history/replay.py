"""`loadmanager history replay`: the recorded load under other strategies and settings, ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager.history.published import MAX_ROWS
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.jobs import (
    Job,
    check_recorded,
    failing,
    installed,
    job_options,
    provenance,
    publish,
    reading,
    results,
    say_where,
    settings_option,
    show_reading,
    table,
    tables_of,
    window_of,
)
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import echo

if TYPE_CHECKING:
    from loadmanager.history.lake import Lake, Pinned
    from loadmanager.history.replay import Fidelity, Options, ReplayResult

TABLES = ("broker_load", "bundle_load", "bundle_total", "transition", "decision", "bronze")
RESULTS = ("replay", "replay-windows")
LEAST_HOURS = 24
COLUMNS = ("rank", "candidate", "windows", "cost", "regret", "max/mean", "above %", "moves", "gap s/h", "broke")


@click.command()
@job_options()
@settings_option
@click.option(
    "--candidate",
    "candidates",
    multiple=True,
    metavar="STRATEGY[:SETTING=VALUE|VALUE,…]",
    help="Repeatable; `recorded` is what the cluster did.  [default: every strategy, and tolerances of plan]",
)
@click.option("--window-s", type=click.FloatRange(min=1), metavar="S", help="Seconds of a window.")
@click.option(
    "--interval-s",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help="Seconds between two rounds.  [default: as recorded]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of strategies that use random numbers.",
)
@dry_run_option
def replay(
    job: Job,
    more: tuple[str, ...],
    candidates: tuple[str, ...],
    window_s: float | None,
    interval_s: float | None,
    seed: int,
    dry_run: bool,
) -> None:
    """Play the recorded load again under each candidate, with the code that runs in brokers, and rank the candidates.

    The time is cut into windows; each begins with the recorded placement. Costs have 95 % intervals over the windows.
    *Regret* is the cost above the optimum in hindsight. Nothing changes: the last lines say how to apply the best.
    """
    settings_of({}, more)  # says what is wrong with it before anything starts
    _check_spelling(candidates)
    with reading(job) as lake:
        check_recorded(job, lake)
        options = _options(job, lake, more, window_s, interval_s, seed)
        if dry_run:
            from loadmanager.history.replay.job import reported

            reported(lake, window_of(job))
            show_reading(job, tables_of(job, lake, TABLES), results(job, RESULTS))
            return
        result = _run(job, lake, candidates, options)
        _publish(job, lake, result, window_s, interval_s, seed)
    _show(job, result)


def _check_spelling(candidates: tuple[str, ...]) -> None:
    with installed():
        from loadmanager.history.replay import spelled
    if candidates:
        with failing():
            spelled(candidates)


def _options(
    job: Job, lake: Lake, more: tuple[str, ...], window_s: float | None, interval_s: float | None, seed: int
) -> Options:
    from loadmanager.history.replay import Options
    from loadmanager_api.cli.load_history.analyses import settings_in

    settings = settings_in(job, lake, more) if more else None
    return Options(interval_s=interval_s, window_s=window_s, settings=settings, seed=seed)


def _run(job: Job, lake: Lake, candidates: tuple[str, ...], options: Options) -> ReplayResult:
    from loadmanager.history.progress import steps
    from loadmanager.history.replay import DEFAULTS, replay

    with steps(lake.spark, 1) as progress:
        progress.begin("replay")
        return replay(lake, window_of(job), candidates or DEFAULTS, options)


def _publish(
    job: Job, lake: Pinned, result: ReplayResult, window_s: float | None, interval_s: float | None, seed: int
) -> None:
    facts: dict[str, Any] = msgspec.to_builtins(result)
    ranked, windows = facts.pop("ranked"), facts.pop("rows")
    given = {"window_s": window_s, "interval_s": interval_s, "seed": seed}
    made = provenance(job, "replay", lake.versions(), truncated=False, **given)
    paths = [publish(job, RESULTS[0], ranked, made, facts)]
    cut = msgspec.structs.replace(made, truncated=len(windows) > MAX_ROWS)
    paths.append(publish(job, RESULTS[1], windows[:MAX_ROWS], cut))
    say_where(job, paths)


def _show(job: Job, result: ReplayResult) -> None:
    rows = [
        {
            "rank": each.rank,
            "candidate": each.candidate,
            "windows": each.windows,
            "cost": _interval(each.objective),
            "regret": _interval(each.regret),
            "max/mean": _interval(each.max_over_mean),
            "above %": each.above_percent,
            "moves": each.moves,
            "gap s/h": each.gap_s_an_hour,
            "broke": each.violations,
        }
        for each in result.ranked
    ]
    table(job, msgspec.to_builtins(result), COLUMNS, rows)
    if job.shown.for_people:
        skipped = "".join(f"; {count} left out: {why}" for why, count in result.skipped.items())
        echo(f"\n{length_of(result.windows, result.window_s, result.ruled)}{skipped}")
        if result.fidelity is not None:
            echo(checked(result.fidelity))
        echo(result.verdict)
        for line in to_set(result):
            echo(f"  {line}")


def to_set(result: ReplayResult) -> tuple[str, ...]:
    """The commands to print as advice; of less than a day of load, why there are none."""
    hours = result.windows * result.window_s / 3600
    if result.config.commands and hours < LEAST_HOURS:
        return (f"no command follows from {hours:.2g} hours of load: replay a day or more",)
    return result.config.commands


def checked(fidelity: Fidelity) -> str:
    """What the replay of the cluster's own settings gives, beside what the cluster had."""
    word = "agrees with" if fidelity.agrees else "is not"
    return (
        f"check: the replay {word} the record; the cluster's own settings ({fidelity.candidate}) "
        f"cost {fidelity.replayed:.3g} in the replay, {fidelity.recorded:.3g} in the record "
        f"(max/mean {fidelity.replayed_max_over_mean:.3g} and {fidelity.recorded_max_over_mean:.3g})"
    )


def length_of(windows: int, window_s: float, ruled: int) -> str:
    """How much was played, and in how many of the windows candidates were held to the policies of the time."""
    others = " (in the others nothing was forbidden)" if ruled < windows else ""
    return f"{windows} windows of {window_s:g} s, policies known in {ruled}{others}"


def _interval(value: Any) -> str:
    return f"{value.mean:.3g} ({value.low:.3g} to {value.high:.3g})"
