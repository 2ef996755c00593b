"""`loadmanager history audit`: judges every record of the channel again, and checks every invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from api.cli.client import EXIT_REFUSED
from api.cli.configuring import settings_of
from api.cli.load_history.answering import Rows, table, taken
from api.cli.load_history.options import Job, job_options, source_options
from api.cli.load_history.running import failing, opened, provenance, publish, say_where, versions
from api.cli.stores import check_there

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from loadmanager.history.lake import Lake
    from loadmanager.settings import Settings

MOST = 1_000
PARTITIONS = 1_024
TABLES = ("bronze", "channel", "transition", "channel_state")
VIOLATIONS = ("partition", "offset", "invariant", "detail", "record")
SUMMARY = ("partition", "begin", "next_offset", "records", "accepted", "refused", "compared", "violations")


class Log(NamedTuple):
    """What is audited: records of the channel and, from the log itself, snapshots; None without."""

    raw: DataFrame
    snapshots: DataFrame | None
    partitions: int


@click.command()
@job_options(window=False)
@source_options
def audit(job: Job, log: str | None, more: tuple[str, ...]) -> None:
    """Replay the channel's whole log, in parallel, and check every invariant: one owner, growing tokens, whole rings …

    Of what the lake has of the log; with --log of the log itself, with its snapshots. The lake's own verdicts and
    states are held against the replay as well. Exit code 1 if anything is broken, with offset and record.
    """
    settings = settings_of({"log": log} if log else {}, more)
    if log:
        check_there(settings.log, "--log")
    with opened(job) as lake:
        violations, truncated, summary = _audited(lake, _log(lake, settings, from_log=bool(log)))
        made = provenance(job, "audit", versions(lake, TABLES), truncated=truncated, log=log or "")
    count = sum(row["violations"] for row in summary)
    facts = {"violations": count, "records": sum(row["records"] for row in summary), "partitions": summary}
    say_where(job, [publish(job, "audit", violations, made, facts)])
    _show(job, violations, summary, count)
    if count:
        raise SystemExit(EXIT_REFUSED)


def _log(lake: Lake, settings: Settings, *, from_log: bool) -> Log:
    from pyspark.sql import functions as f

    from loadmanager.checking.topics import CHANNEL_TOPIC, SNAPSHOTS_TOPIC
    from loadmanager.history.sources import read, source_of

    if from_log:
        from api.cli.load_history.ingest import partitions_of

        with failing():
            source = source_of(settings)
        raw, snapshots = read(lake.spark, source, (CHANNEL_TOPIC,)), read(lake.spark, source, (SNAPSHOTS_TOPIC,))
        return Log(raw, snapshots, partitions_of(settings, source))
    raw = lake.table("bronze").where(f.col("topic") == CHANNEL_TOPIC)
    highest = raw.agg(f.max("partition").alias("highest")).collect()[0]["highest"]
    return Log(raw, None, settings.partitions or (highest or 0) + 1)  # each partition has its leaders' records


def _audited(lake: Lake, log: Log) -> tuple[Rows, bool, Rows]:
    from loadmanager.history.audit import Silver, audit
    from loadmanager.history.progress import steps

    silver = Silver(lake.table("channel"), lake.table("transition"))
    with steps(lake.spark, 2) as progress:
        progress.begin("plan")
        found = audit(
            log.raw, log.partitions, snapshots=log.snapshots, states=lake.table("channel_state"), silver=silver
        )
        try:
            progress.begin("replay and check")
            summary = taken(found.summary, PARTITIONS)[0]
            violations, truncated = taken(found.violations, MOST)
        finally:
            found.close()
    return violations, truncated, summary


def _show(job: Job, violations: Rows, summary: Rows, count: int) -> None:
    answer: dict[str, Any] = {"violations": violations, "partitions": summary}
    if job.output == "json":
        table(job, _plain(answer), (), [])
        return
    if violations:
        table(job, answer, VIOLATIONS, violations)
        click.echo()
    table(job, answer, SUMMARY, summary)
    records = sum(row["records"] for row in summary)
    click.echo(f"\n{records:,} records, {count:,} violations" + ("" if count else ": every invariant holds"))


def _plain(answer: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(answer)
