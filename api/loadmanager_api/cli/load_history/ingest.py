"""`loadmanager history ingest`: takes new records of the log into the lake, once or continuously.

`history maintain` keeps a lake small and fast. For a cron job, beside a running ingest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from loadmanager_api.cli.client import Failed, NotNow
from loadmanager_api.cli.configuring import settings_of
from loadmanager_api.cli.load_history.jobs import (
    Job,
    Rows,
    check_answers,
    check_lake,
    failing,
    installed,
    job_options,
    opened,
    records_in,
    show_reading,
    source_options,
    table,
    topics_of,
    writing,
)
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import echo
from loadmanager_api.cli.stores import opened_log, working

if TYPE_CHECKING:
    from loadmanager.history.ingest import Options
    from loadmanager.history.lake import Lake
    from loadmanager.history.sources import Source
    from loadmanager.settings import Settings

COLUMNS = ("topic", "records", "up to", "in quarantine")
FEW = 200_000
"""Records of a log that is read to its end before the JVM's second compiler has paid for itself."""
USUAL_PARTITIONS = {"sqlite": 4, "kafka": 16}
"""Of a channel that is not there yet, where the settings say nothing: as brokers create it."""


@click.command()
@job_options(window=False, publish=False)
@source_options
@click.option(
    "--once/--follow", default=True, help="Stop when all records are copied, or run until stopped.  [default: once]"
)
@click.option(
    "--max-per-trigger",
    type=click.IntRange(1),
    metavar="N",
    help="Number of records in a batch at most.  [default: 200000]",
)
@click.option(
    "--trigger-s",
    type=click.FloatRange(0),
    metavar="S",
    help="With --follow: seconds between two batches.  [default: 5]",
)
@click.option(
    "--gold-s",
    type=click.FloatRange(1),
    metavar="S",
    help="With --follow: seconds between two updates of gold.  [default: 60]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    help="With --follow: port with metrics for Prometheus.",
)
@click.option(
    "--metrics-host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address of the metrics port."
)
@dry_run_option
def ingest(
    job: Job,
    log: str | None,
    more: tuple[str, ...],
    once: bool,
    max_per_trigger: int | None,
    trigger_s: float | None,
    gold_s: float | None,
    metrics_port: int | None,
    metrics_host: str,
    dry_run: bool,
) -> None:
    """Copy load reports, the channel, decisions (and audit and group lag, once they exist) into the lake.

    Each record is copied once, even if the job is stopped or killed: start the job again, and it continues. SIGINT and
    SIGTERM end --follow when the present batch is committed. A record that cannot be read goes to the quarantine, with
    its offset and the reason.
    """
    settings = settings_of({"log": log}, more)
    if once and (metrics_port or trigger_s is not None or gold_s is not None):
        raise click.UsageError("--metrics-port, --trigger-s and --gold-s are for --follow")
    check_answers(settings)
    with installed():
        from loadmanager.history.sources import TOPICS
    if dry_run:
        check_lake(job, new=True)
        written = [] if job.local is None else [job.local / name for name in ("tables", "checkpoints")]
        show_reading(job, topics_of(job, settings, TOPICS), written)
        return
    given = {"max_per_trigger": max_per_trigger, "trigger_s": trigger_s, "gold_s": gold_s}
    given |= {"metrics": f"{metrics_host}:{metrics_port}" if metrics_port else None}
    with writing(job, new=True, brief=once and _has_few(settings, TOPICS)) as lake:
        known = {name: value for name, value in given.items() if value is not None}
        source, options = _asked(settings, {"load_ttl_s": _ttl_s(lake, settings), **known})
        _run(lake, source, options, once=once)
        rows = _closed(lake, settings, options)
    table(job, rows, COLUMNS, rows, empty="there was nothing to ingest")


def _has_few(settings: Settings, topics: Iterable[str]) -> bool:
    """Whether the log is short. Where it does not say, the job says why."""
    with suppress(Failed, NotNow):
        return records_in(settings, topics) <= FEW
    return False


def _asked(settings: Settings, given: dict[str, Any]) -> tuple[Source, Options]:
    from loadmanager.history.ingest import Options
    from loadmanager.history.sources import source_of

    with failing():
        source = source_of(settings)
    return source, Options(partitions=partitions_of(settings, source), **given)


def _ttl_s(lake: Lake, settings: Settings) -> float:
    """How long load reports count: as given, else as in the brokers' last recorded settings."""
    from loadmanager.history.replay.job import recorded_settings

    given = "load_report_max_interval_s" in settings.model_fields_set
    return settings.load_ttl_s if given else recorded_settings(lake).load_ttl_s


def _closed(lake: Lake, settings: Settings, options: Options) -> Rows:
    """How far the lake is with each topic, after gold is made again if the first decisions came just now, and say that
    brokers go by another time.
    """
    from loadmanager.history.ingest import refresh_gold
    from loadmanager.history.progress import waiting

    with waiting("reading how far the lake is"):
        ttl_s, rows = _ttl_s(lake, settings), _reached(lake)
    if ttl_s != options.load_ttl_s:
        with waiting("making all minutes again"):
            refresh_gold(lake, ttl_s, everything=True)
    return rows


def partitions_of(settings: Settings, source: Source) -> int:
    """The channel's number of partitions: the log's if it has the channel, else what brokers would create."""
    from loadmanager.diagnostics.topics import CHANNEL_TOPIC
    from loadmanager.history.sources import TOPICS

    if CHANNEL_TOPIC not in source.available(TOPICS):
        return settings.partitions or USUAL_PARTITIONS[settings.log.partition(":")[0]]
    return working(_counted(settings, CHANNEL_TOPIC))


async def _counted(settings: Settings, topic: str) -> int:
    from statechannel.ports import TopicSpec

    async with opened_log(settings) as log:
        return await log.open_topic(TopicSpec(topic))


def _run(lake: Lake, source: Source, options: Options, *, once: bool) -> None:
    from loadmanager.history.ingest import Ingest
    from loadmanager.history.progress import batches, steps

    job = Ingest(lake, source, options)
    if once:
        with steps(lake.spark, 1) as progress:
            progress.begin("ingest")
            job.run_available()
        return
    stop = threading.Event()
    with _ending(stop), batches(lake.spark):
        job.run(stop)


@contextmanager
def _ending(stop: threading.Event) -> Generator[None]:
    """SIGINT and SIGTERM set the event; a second one acts as usual."""
    before: dict[signal.Signals, Any] = {}

    def end(number: int, _: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])
        echo("stopping when this batch is committed; send the signal again to stop at once", err=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reached(lake: Lake) -> Rows:
    """How far the lake is with each topic."""
    from loadmanager.history.ingest.positions import totals
    from loadmanager.history.utc import time_of

    bad = {row["topic"]: row["count"] for row in lake.table("quarantine").groupBy("topic").count().collect()}
    return [
        {"topic": topic, "records": records, "up to": time_of(us), "in quarantine": bad.get(topic, 0)}
        for topic, (records, us) in sorted(totals(lake).items())
    ]


TABLE_COLUMNS = ("table", "days_joined", "rows_removed")


@click.command()
@job_options(window=False, publish=False)
@dry_run_option
@click.option(
    "--bronze-days",
    metavar="N",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Days to keep raw records.",
)
@click.option(
    "--silver-days",
    metavar="N",
    type=click.IntRange(1),
    default=365,
    show_default=True,
    help="Days to keep what the records say.",
)
@click.option(
    "--history-days",
    metavar="N",
    type=click.IntRange(1),
    default=7,
    show_default=True,
    help="Days that time travel goes back.",
)
def maintain(job: Job, dry_run: bool, bronze_days: int, silver_days: int, history_days: int) -> None:
    """Join small files, remove rows that are too old, and delete files that no version needs any more.

    Minutes (gold) are kept. Removed rows do not come back with the next ingest.
    """
    with opened(job) if dry_run else writing(job) as lake:
        from loadmanager.history.maintenance import Retention, maintain
        from loadmanager.history.progress import steps

        with steps(lake.spark, 1) as progress:
            progress.begin("maintain")
            retention = Retention(bronze_days, silver_days, history_days)
            done = maintain(lake, datetime.now(UTC), retention, dry_run=dry_run)
    rows = [msgspec.to_builtins(each) for each in done]
    table(job, rows, TABLE_COLUMNS, rows)
    if dry_run:
        echo("nothing was changed; this is what would be done, and unneeded files would be deleted", err=True)
