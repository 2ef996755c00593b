"""`loadmanager history analyse`: runs analyses on the lake, shows the answers, and publishes them for brokers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager.history.published import ANALYSES as FOLDER
from loadmanager.history.published import MAX_ROWS, Published
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.answering import table, taken
from loadmanager_api.cli.load_history.options import Job, job_options, settings_option
from loadmanager_api.cli.load_history.rehearsing import results, show_reading, tables_of
from loadmanager_api.cli.load_history.running import (
    check_recorded,
    installed,
    provenance,
    publish,
    reading,
    say_where,
    window_of,
)
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import echo

if TYPE_CHECKING:
    from loadmanager.history.analyses import Analysis, Options
    from loadmanager.history.lake import Lake
    from loadmanager.history.pinned import Pinned
    from loadmanager.settings import Settings

MOST_SHOWN = 20


@click.command()
@job_options()
@settings_option
@click.option(
    "--analysis", "names", multiple=True, metavar="NAME", help="Only this analysis; repeatable.  [default: all]"
)
@click.option(
    "--rows",
    type=click.IntRange(1, MAX_ROWS),
    metavar="N",
    default=MAX_ROWS,
    show_default=True,
    help="Number of rows to publish of each analysis.",
)
@click.option("--list", "listing", is_flag=True, help="List the analyses, and run none.")
@dry_run_option
def analyse(job: Job, more: tuple[str, ...], names: tuple[str, ...], rows: int, listing: bool, dry_run: bool) -> None:
    """Run the analyses of the load history: imbalance, hot bundles, forecasts, transfers, gaps, outages, capacity …

    A single analysis is shown with its first rows, several with their numbers of rows. Thresholds and tolerance are
    those that brokers had last; --set overrides them.
    """
    settings_of({}, more)  # says what is wrong with it before anything starts
    with installed():
        chosen = _chosen(names)
    if listing:
        found = [{"name": each.name, "title": each.title, "needs": ", ".join(each.needs)} for each in chosen]
        table(job, found, ("name", "title", "needs"), found)
        return
    with reading(job) as lake:
        check_recorded(job, lake)
        if dry_run:
            needs = dict.fromkeys(name for each in chosen for name in each.needs)
            reads = tables_of(job, lake, needs)
            show_reading(job, reads, results(job, [FOLDER + each.name for each in chosen]))
            return
        _show(job, _run(job, lake, chosen, options_of(job, lake, more), rows), chosen)


def _chosen(names: tuple[str, ...]) -> list[Analysis]:
    from loadmanager.history.analyses import ANALYSES

    unknown = [name for name in names if name not in ANALYSES]
    if unknown:
        raise Failed(f"there is no analysis {unknown[0]}; there are {', '.join(sorted(ANALYSES))}")
    return [ANALYSES[name] for name in dict.fromkeys(names or ANALYSES)]


def options_of(job: Job, lake: Lake, more: tuple[str, ...]) -> Options:
    """Options of the analyses: the settings of the last recorded decision, and --set over them."""
    from loadmanager.history.analyses import Options

    return Options.of(settings_in(job, lake, more))


def settings_in(job: Job, lake: Lake, more: tuple[str, ...]) -> Settings:
    """The settings of the last decision in the record, and --set over them. Raises UsageError."""
    from loadmanager.history.replay.job import recorded_settings

    recorded = recorded_settings(lake, window_of(job))
    given = settings_of({}, more)
    chosen = {name: getattr(given, name) for name in given.model_fields_set}
    return recorded.model_copy(update=chosen)


def _run(job: Job, lake: Pinned, chosen: list[Analysis], options: Options, most: int) -> list[Published]:
    from loadmanager.history.analyses.running import answers
    from loadmanager.history.progress import steps

    found: list[Published] = []
    paths: list[Any] = []
    every = answers(chosen, lake.table, window_of(job), options, lambda answer: taken(answer, most))
    with steps(lake.spark, len(chosen)) as progress, closing(every):
        for analysis in chosen:
            progress.begin(analysis.name)
            rows, truncated = next(every)
            made = provenance(
                job, "analyse", lake.versions(analysis.needs), truncated=truncated, analysis=analysis.name
            )
            paths.append(publish(job, FOLDER + analysis.name, rows, made, {"title": analysis.title}))
            found.append(Published(FOLDER + analysis.name, made, rows, {"title": analysis.title}))
    say_where(job, paths)
    return found


def _show(job: Job, found: list[Published], chosen: list[Analysis]) -> None:
    answer = msgspec.to_builtins(found)
    if len(found) == 1 and found[0].rows:
        rows = found[0].rows
        table(job, answer, tuple(rows[0]), rows[:MOST_SHOWN])
        if job.shown.for_people and len(rows) > MOST_SHOWN:
            echo(f"… and {len(rows) - MOST_SHOWN:,} more rows: -o json has all", err=True)
        return
    summary = [
        {"analysis": each.name, "rows": len(one.rows), "more": one.provenance.truncated, "says": each.title}
        for each, one in zip(chosen, found, strict=True)
    ]
    table(job, answer, ("analysis", "rows", "more", "says"), summary)
