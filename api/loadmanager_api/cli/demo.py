"""`loadmanager demo`: the options of `loadmanager.demo`, and nothing else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click


@click.command()
@click.option("--seconds", type=float, default=40.0, show_default=True, help="Seconds of load; at least 10.")
@click.option("--brokers", type=int, default=3, show_default=True, help="Number of brokers at the start, 2 to 6.")
@click.option("--rate", type=float, default=300.0, show_default=True, help="Increments per second.")
@click.option(
    "--budget", type=float, default=10.0, show_default=True, help="Seconds after which a request counts as failed."
)
@click.option("--plain", is_flag=True, help="Print lines of text instead of the picture, as without a terminal.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="File for the figures.")
@click.option(
    "--log", metavar="ADDRESS", help="kafka://host:port; without it, the demo uses a SQLite file and removes it."
)
@click.option("--coordination", metavar="ADDRESS", help="zookeeper://host:port; needed with Kafka.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the cluster's data in this folder, for `loadmanager history`; without --log the log is DIR/cluster.db.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg",
    help="File for a picture of the timeline.",
)
def demo(
    seconds: float,
    brokers: int,
    rate: float,
    budget: float,
    plain: bool,
    json_file: Path | None,
    log: str | None,
    coordination: str | None,
    keep: Path | None,
    picture: Path | None,
) -> None:
    """Run a cluster on this machine: brokers as processes, real requests, moves, two SIGKILLs, a drain.

    Exit code 0: no request failed, and no increment was lost or counted twice.

    On real servers the demo's topics (demo-<hex>.*) and ZooKeeper nodes (/loadmanager/demo-<hex>) stay: delete them
    yourself.
    """
    from loadmanager.demo.engine import run
    from loadmanager.demo.options import Options
    from loadmanager.errors import needs_extra

    with needs_extra("api", "the demo"):
        import_module("loadmanager_api.server")
    options = Options(seconds, brokers, rate, budget, plain, json_file, log, coordination, keep, picture)
    try:
        raise SystemExit(run(options))
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from None
