"""`loadmanager demo`: the options of `loadmanager.demo`, and nothing else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click


@click.command()
@click.option("--seconds", type=float, default=40.0, show_default=True, help="How long the load runs; at least 10.")
@click.option("--brokers", type=int, default=3, show_default=True, help="How many to begin with, 2 to 6.")
@click.option("--rate", type=float, default=300.0, show_default=True, help="Increments per second.")
@click.option("--budget", type=float, default=10.0, show_default=True, help="Seconds after which a request has failed.")
@click.option("--plain", is_flag=True, help="Lines of text instead of the picture; also without a terminal.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here.")
@click.option("--log", metavar="ADDRESS", help="kafka://host:port; without it, a SQLite file that is removed again.")
@click.option("--coordination", metavar="ADDRESS", help="zookeeper://host:port; needed with Kafka.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep what the cluster wrote there, for `loadmanager history`; without --log the log is DIR/cluster.db.",
)
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Draw the timeline here."
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
    """A cluster at work, here and now: brokers as processes, real requests, moves, two SIGKILLs, a drain.

    Exit code 0 if no request failed and no increment was lost or counted twice.

    On real servers its topics (demo-<hex>.*) and its ZooKeeper nodes (/loadmanager/demo-<hex>) stay: they are yours to
    delete.
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
