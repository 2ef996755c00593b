"""`loadmanager history analyse`: runs analyses on the lake, shows the answers, and publishes them for brokers.

`history report`: one page with pictures, and the pictures as files. `history advise`: what would do better, and by how
much; shown, and proposed to the leader if wanted.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager.errors import Invalid, NotFound
from loadmanager.history import published
from loadmanager.history.published import ANALYSES as FOLDER
from loadmanager.history.published import MAX_ROWS, Published
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.jobs import (
    Job,
    check_answers,
    check_recorded,
    engine_option,
    failing,
    installed,
    job_options,
    provenance,
    publish,
    published_in,
    reading,
    results,
    say_where,
    settings_option,
    show_reading,
    source_options,
    table,
    tables_of,
    taken,
    takes_duckdb,
    window_of,
)
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import done, echo

if TYPE_CHECKING:
    from loadmanager.history.advising import Considered
    from loadmanager.history.analyses import Analysis, Options
    from loadmanager.history.lake import Lake, Pinned
    from loadmanager.history.report import Found, Made, Material
    from loadmanager.leader.plans.advice import Advice
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
@engine_option
@dry_run_option
def analyse(
    job: Job, more: tuple[str, ...], names: tuple[str, ...], rows: int, listing: bool, engine: str, dry_run: bool
) -> None:
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
    if not dry_run and _takes_duckdb(job, chosen, engine):
        _show(job, _run_on_duckdb(job, chosen, more, rows), chosen)
        return
    with reading(job) as lake:
        check_recorded(job, lake)
        if dry_run:
            needs = dict.fromkeys(name for each in chosen for name in each.needs)
            reads = tables_of(job, lake, needs)
            show_reading(job, reads, results(job, [FOLDER + each.name for each in chosen]))
            return
        _show(job, _run(job, lake, chosen, options_of(job, lake, more), rows), chosen)


def _takes_duckdb(job: Job, chosen: list[Analysis], engine: str) -> bool:
    """Raises Failed where DuckDB is wanted and cannot answer, and for tables that this release cannot read."""
    from loadmanager.history.engine import why_spark

    with failing():
        taken = takes_duckdb(job, engine, lambda root: why_spark(root, [each.name for each in chosen]))
    if taken and job.shown.for_people:
        echo("engine: DuckDB (--engine spark for Spark)", err=True)
    return taken


def _run_on_duckdb(job: Job, chosen: list[Analysis], more: tuple[str, ...], most: int) -> list[Published]:
    from loadmanager.history.analyses import Options
    from loadmanager.history.engine import on_duckdb
    from loadmanager.settings import Settings
    from loadmanager.settings.overlay import overlaid

    assert job.local is not None
    found: list[Published] = []
    with failing(), on_duckdb(job.local.absolute(), [each.name for each in chosen]) as lake:
        lake.check_recorded(window_of(job))
        recorded = overlaid(Settings.model_construct(None), lake.recorded_settings(window_of(job))).settings
        options = Options.of(_over(recorded, more))
        for analysis in chosen:
            rows, truncated = lake.answer(analysis.name, window_of(job), options, most)
            made = provenance(job, "analyse", lake.versions(analysis.name), truncated=truncated, analysis=analysis.name)
            found.append(Published(FOLDER + analysis.name, made, rows, {"title": analysis.title}))
    say_where(job, [publish(job, each.name, each.rows, each.provenance, each.facts) for each in found])
    return found


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

    return _over(recorded_settings(lake, window_of(job)), more)


def _over(recorded: Settings, more: tuple[str, ...]) -> Settings:
    given = settings_of({}, more)
    chosen = {name: getattr(given, name) for name in given.model_fields_set}
    return recorded.model_copy(update=chosen)


def _run(job: Job, lake: Pinned, chosen: list[Analysis], options: Options, most: int) -> list[Published]:
    from loadmanager.history.analyses.analysis import answers
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
    from loadmanager.history.report.material import QUESTIONS, span_of

    span_of(lake.table, window_of(job))
    asked = (name for question in QUESTIONS if question in ANALYSES for name in ANALYSES[question].needs)
    return list(dict.fromkeys([*RECORDED, *asked]))


def _made(job: Job, lake: Pinned, more: tuple[str, ...]) -> Made:
    from loadmanager.history.progress import steps
    from loadmanager.history.report import CHARTS, made
    from loadmanager.history.report.material import QUESTIONS

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


KINDS = ("replay", "bundles", "weights", "forecast")
COLUMNS = ("id", "kind", "what", "measure", "before", "after", "surely", "at best")


@click.command()
@job_options()
@source_options
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only advice of this kind; repeatable.")
@click.option(
    "--cluster", metavar="NAME", help="Cluster of the data; other clusters refuse the advice.  [default: the setting]"
)
@click.option("--propose", is_flag=True, help="Propose the advice to the leader: with --log, or --admin-url.")
@dry_run_option
@click.option("--admin-url", metavar="URL", help="With --propose: any broker of the cluster, instead of --log.")
def advise(
    job: Job,
    log: str | None,
    more: tuple[str, ...],
    kinds: tuple[str, ...],
    cluster: str | None,
    propose: bool,
    dry_run: bool,
    admin_url: str | None,
) -> None:
    """Advise settings, splits of bundles, weights, and moves ahead of a peak; and show what each promises.

    The job advises only what is surely better. Nothing changes in the cluster. With --propose the leader shows the
    advice, and follows it after an approval, or if the setting `advice_apply` allows it.
    """
    settings = settings_of({"log": log} if log else {}, more)
    if propose and not (log or admin_url):
        raise click.UsageError("--propose: say where, with --log or --admin-url")
    if log:
        check_answers(settings)
    with reading(job) as lake:
        check_recorded(job, lake)
        found = _considered(job, lake, more, kinds or KINDS, cluster or settings.cluster)
        made = provenance(job, "advise", lake.versions(), truncated=False, kinds=list(kinds or KINDS))
        if propose and found.advice and not dry_run:
            from loadmanager.history.advising import publish as proposed

            ids = proposed(found.advice, admin_url or settings)
            echo(f"proposed: {', '.join(ids)}", err=True)
    rows = [row_of(each) for each in found.advice]
    if dry_run:
        echo("nothing was changed: the advice was neither published nor proposed", err=True)
    else:
        say_where(job, [publish(job, "advice", rows, made, {"left_out": dict(found.left_out)})])
    _show_advice(job, found, rows)


def _considered(job: Job, lake: Lake, more: tuple[str, ...], kinds: tuple[str, ...], cluster: str) -> Considered:
    from loadmanager.history.advising import Options, consider
    from loadmanager.history.progress import steps

    settings = settings_in(job, lake, more) if more else None
    options = Options(cluster=cluster, settings=settings, kinds=kinds)
    with steps(lake.spark, len(kinds)) as progress:
        return consider(lake, window_of(job), options, progress.begin)


def row_of(advice: Advice) -> dict[str, Any]:
    """The published row: the advice, and a title for people."""
    row: dict[str, Any] = msgspec.to_builtins(advice)
    return {"kind": advice.kind, "title": title_of(advice), **row}


def title_of(advice: Advice) -> str:
    """The change in one line."""
    from loadmanager.leader.plans.advice import ChangeSettings, CutBundles

    match advice.change:
        case ChangeSettings(changes):
            return "; ".join(f"{each.name}: {each.was} to {each.to}" for each in changes)
        case CutBundles(namespace=namespace, was=was, cuts=cuts):
            return f"{namespace}: {was} to {was + sum(cut.parts - 1 for cut in cuts)} bundles"
        case moving:
            return f"{len(moving.moves)} moves ahead of a peak"


def _show_advice(job: Job, found: Considered, rows: list[dict[str, Any]]) -> None:
    shown = [
        {
            "id": row["id"],
            "kind": row["kind"],
            "what": row["title"],
            "measure": row["expected"]["measure"],
            "before": row["expected"]["before"],
            "after": row["expected"]["after"],
            "surely": row["expected"]["low"],
            "at best": row["expected"]["high"],
        }
        for row in rows
    ]
    table(job, {"advice": rows, "left_out": dict(found.left_out)}, COLUMNS, shown, empty="")
    if job.shown.for_people:
        for row in rows:
            echo(f"\n{row['id']}: {row['reason']}")
        for kind, why in found.left_out.items():
            echo(f"no advice of kind {kind}: {why}")
