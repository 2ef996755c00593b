"""`loadmanager history maintain`: keeps a lake small and fast. For a cron job, beside a running ingest."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from loadmanager_api.cli.load_history.answering import table
from loadmanager_api.cli.load_history.options import Job, job_options
from loadmanager_api.cli.load_history.running import opened, writing
from loadmanager_api.cli.options import dry_run_option
from loadmanager_api.cli.printing import echo

COLUMNS = ("table", "days_joined", "rows_removed")


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
    table(job, rows, COLUMNS, rows)
    if dry_run:
        echo("nothing was changed; this is what would be done, and unneeded files would be deleted", err=True)
