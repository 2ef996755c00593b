"""`loadmanager history audit`: judges every record of the channel again, and checks every invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from loadmanager_api.cli.client import EXIT_REFUSED
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.jobs import (
    Job,
    Rows,
    check_answers,
    failing,
    job_options,
    provenance,
    publish,
    reading,
    results,
    say_where,
    show_reading,
    source_options,
    table,
    tables_of,
    taken,
    there,
    topics_of,
)
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import echo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from loadmanager.history.lake import Lake
    from loadmanager.settings import Settings

MOST = 1_000
PARTITIONS = 1_024
TABLES = ("progress", "channel_state", "bronze", "channel", "transition", "quarantine")
"""In the order in which they are pinned: what a state speaks of was in the others before it, also while an ingest runs.
"""
VIOLATIONS = ("partition", "offset", "invariant", "detail", "record")
SUMMARY = ("partition", "begin", "next_offset", "records", "accepted", "refused", "compared", "unjudged", "violations")


class Log(NamedTuple):
    """What is audited: records of the channel and, from the log itself, snapshots; None without snapshots."""

    raw: DataFrame
    snapshots: DataFrame | None
    partitions: int


@click.command()
@job_options(window=False, lake=False)
@source_options
@dry_run_option
def audit(job: Job, log: str | None, more: tuple[str, ...], dry_run: bool) -> None:
    """Replay the channel's whole log, in parallel, and check every invariant: one owner, growing tokens, no gaps …

    The job reads the lake's copy of the log; with --log it reads the log itself with its snapshots, and needs no lake.
    It also compares the lake's own verdicts and states with the replay. Exit code 1: an invariant is broken; the output
    has offset and record.
    """
    settings = settings_of({"log": log} if log else {}, more)
    with_lake = there(job)
    if log:
        check_answers(settings)
    elif not job.lake:
        raise click.UsageError("say what to audit: a lake with --lake, or the log itself with --log")
    if dry_run:
        _rehearse(job, settings, log)
        return
    with reading(job, new=bool(log)) as lake:
        read = lake.versions(TABLES) if with_lake else {}
        violations, truncated, summary = _audited(lake, _log(lake, settings, from_log=bool(log)), with_lake=with_lake)
    made = provenance(job, "audit", read, truncated=truncated, log=log or "")
    count = sum(row["violations"] for row in summary)
    facts = {name: sum(row[name] for row in summary) for name in ("violations", "records", "unjudged")}
    if with_lake or job.publish:
        say_where(job, [publish(job, "audit", violations, made, {**facts, "partitions": summary})])
    else:
        echo(f"the log alone was audited: there is no lake{f' at {job.lake}' if job.lake else ''}", err=True)
    _show(job, violations, summary, facts)
    if count:
        raise SystemExit(EXIT_REFUSED)


def _rehearse(job: Job, settings: Settings, log: str | None) -> None:
    from loadmanager.diagnostics.topics import CHANNEL_TOPIC

    reads: Rows = []
    if log:
        reads += topics_of(msgspec.structs.replace(job, lake=""), settings, (CHANNEL_TOPIC,))
    if there(job) or not log:
        with reading(job) as lake:
            reads += tables_of(job, lake, TABLES)
    show_reading(job, reads, results(job, ["audit"]) if there(job) or job.publish else [])


def _log(lake: Lake, settings: Settings, *, from_log: bool) -> Log:
    from pyspark.sql import functions as f

    from loadmanager.diagnostics.topics import CHANNEL_TOPIC, SNAPSHOTS_TOPIC
    from loadmanager.history.sources import source_of

    if from_log:
        from loadmanager_api.cli.load_history.ingest import partitions_of

        with failing():
            source = source_of(settings)
        raw, snapshots = (source.read(lake.spark, [topic]) for topic in (CHANNEL_TOPIC, SNAPSHOTS_TOPIC))
        return Log(raw, snapshots, partitions_of(settings, source))
    raw = lake.table("bronze").where(f.col("topic") == CHANNEL_TOPIC)
    highest = raw.agg(f.max("partition").alias("highest")).collect()[0]["highest"]
    return Log(raw, None, settings.partitions or (highest or 0) + 1)  # each partition has its leaders' records


def _audited(lake: Lake, log: Log, *, with_lake: bool) -> tuple[Rows, bool, Rows]:
    from loadmanager.history.audit import Silver, audit
    from loadmanager.history.ingest import settled_states
    from loadmanager.history.progress import steps

    known: dict[str, Any] = {}
    if with_lake:
        known = {"states": settled_states(lake), "quarantine": lake.table("quarantine")}
        known["silver"] = Silver(lake.table("channel"), lake.table("transition"))
    with steps(lake.spark, 2) as progress:
        progress.begin("plan")
        found = audit(log.raw, log.partitions, snapshots=log.snapshots, **known)
        try:
            progress.begin("replay and check")
            summary = taken(found.summary, PARTITIONS)[0]
            violations, truncated = taken(found.violations, MOST)
        finally:
            found.close()
    return violations, truncated, summary


def _show(job: Job, violations: Rows, summary: Rows, facts: dict[str, int]) -> None:
    answer: dict[str, Any] = {"violations": violations, "partitions": summary}
    if not job.shown.for_people:
        table(job, msgspec.to_builtins(answer), (), [])
        return
    if violations:
        table(job, answer, VIOLATIONS, violations)
        echo()
    table(job, answer, SUMMARY, summary)
    echo(f"\n{verdict_of(**facts)}")


def verdict_of(*, records: int, violations: int, unjudged: int) -> str:
    """The result in one line; it claims nothing about records that were not judged."""
    if violations:
        holds = ""
    elif unjudged == records:
        holds = "; nothing could be judged"
    else:
        holds = ": every invariant holds" + (" for the others" if unjudged else "")
    said = f"{records:,} records, {violations:,} violations"
    if not unjudged:
        return said + holds
    return f"{said}, {unjudged:,} not judged (trimmed before the first state, or behind a newer format){holds}"
