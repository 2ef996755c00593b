"""`loadmanager history report`: one page with pictures, and the pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadmanager.errors import Invalid, NotFound
from loadmanager.history import published
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.analyse import settings_in
from loadmanager_api.cli.load_history.options import Job, job_options, settings_option
from loadmanager_api.cli.load_history.rehearsing import show_reading, tables_of
from loadmanager_api.cli.load_history.running import (
    provenance,
    published_in,
    reading,
    say_where,
    window_of,
)
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import done

if TYPE_CHECKING:
    from loadmanager.history.lake import Lake
    from loadmanager.history.pinned import Pinned
    from loadmanager.history.report import Found, Made, Material


@click.command()
@job_options()
@settings_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write report.html and pictures/ there instead of publishing them.",
)
@dry_run_option
def report(job: Job, more: tuple[str, ...], out: Path | None, dry_run: bool) -> None:
    """Draw one page of what the lake holds: usage of brokers over time, imbalance, moves and gaps, forecasts, what load
    costs; and what `replay`, `audit` and `advise` published last.

    Neither the job nor a reader of the page needs a network. Brokers serve it at /v1/history/report.
    """
    root = out or published_in(job)
    if root is None:
        raise Failed("the lake is not on this disk: name a folder for the report with --out or --publish")
    settings_of({}, more)  # says what is wrong with it before anything starts
    with reading(job) as lake:
        if dry_run:
            show_reading(job, tables_of(job, lake, _needed(job, lake)), [root / published.REPORT, root / "pictures"])
            return
        drawn = _made(job, lake, more)
    try:
        paths = [published.publish_page(root, drawn.html)]
        paths += [published.publish_picture(root, name, png) for name, png in drawn.pictures.items()]
    except OSError as error:
        raise Failed(f"{root}: {error.strerror}") from None
    if out is None:
        say_where(job, paths[:1])
    files = [str(path) for path in paths]
    done(job.shown, f"{files[0]} and {len(files) - 1} pictures", report=files[0], pictures=files[1:])


def _needed(job: Job, lake: Pinned) -> list[str]:
    from loadmanager.history.analyses import ANALYSES
    from loadmanager.history.coverage import RECORDED
    from loadmanager.history.report.collecting import QUESTIONS, span_of

    span_of(lake.table, window_of(job))
    asked = (name for question in QUESTIONS if question in ANALYSES for name in ANALYSES[question].needs)
    return list(dict.fromkeys([*RECORDED, *asked]))


def _made(job: Job, lake: Pinned, more: tuple[str, ...]) -> Made:
    from loadmanager.history.progress import steps
    from loadmanager.history.report import made
    from loadmanager.history.report.collecting import QUESTIONS
    from loadmanager.history.report.page import CHARTS

    with steps(lake.spark, len(QUESTIONS) + len(CHARTS)) as progress:
        material = _collected(job, lake, more, progress.begin)
        origin = provenance(job, "report", lake.versions(), truncated=False)
        return made(material, origin, progress.begin)


def _collected(job: Job, lake: Lake, more: tuple[str, ...], asked: Any) -> Material:
    from loadmanager.history.analyses import Options
    from loadmanager.history.report import collect

    settings = settings_in(job, lake, more)
    return collect(
        lake.table, window_of(job), Options.of(settings), _found(job), ttl_s=settings.load_ttl_s, asked=asked
    )


def _found(job: Job) -> Found:
    from loadmanager.history.report import Found

    root = published_in(job)
    return Found(replay=_read(root, "replay"), audit=_read(root, "audit"), advice=_read(root, "advice"))


def _read(root: Path | None, name: str) -> published.Published | None:
    if root is None:
        return None
    try:
        return published.read(root, name)
    except (NotFound, Invalid):
        return None
