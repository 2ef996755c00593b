"""`loadmanager history advise`: what would do better, and by how much; shown, and proposed to the leader if wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.analyse import settings_in
from loadmanager_api.cli.load_history.answering import table
from loadmanager_api.cli.load_history.options import Job, job_options, source_options
from loadmanager_api.cli.load_history.reaching import check_answers
from loadmanager_api.cli.load_history.running import check_recorded, provenance, publish, reading, say_where, window_of
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import echo

if TYPE_CHECKING:
    from loadmanager.history.advising import Considered
    from loadmanager.history.lake import Lake
    from loadmanager.leader.plans.advice import Advice

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
    _show(job, found, rows)


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


def _show(job: Job, found: Considered, rows: list[dict[str, Any]]) -> None:
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
