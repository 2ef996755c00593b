"""`loadmanager history serve`: keeps a session warm, so that commands with --remote answer in seconds."""

from __future__ import annotations

import signal

import click

from loadmanager_api.cli.load_history.options import Job, job_options
from loadmanager_api.cli.load_history.running import kept
from loadmanager_api.cli.options import ParamType
from loadmanager_api.cli.printing import echo

HERE = "127.0.0.1:15002"


class Listening(ParamType[tuple[str, int]]):
    """`host:port`; port 0 takes a free one."""

    name = "host:port"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            self.fail(f"{value!r}: write host:port, such as {HERE}", param, ctx)
        return host.strip("[]"), int(port)


@click.command()
@job_options(window=False, publish=False, lake=False)
@click.option(
    "--listen",
    type=Listening(),
    default=HERE,
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen. Whoever reaches it may run any code: leave it to this machine.",
)
def serve(job: Job, listen: tuple[str, int]) -> None:
    """Keep a Spark session that other commands use with --remote, so that they need not start one.

    It runs until SIGTERM or Ctrl-C, or until Spark's JVM ends.
    """
    if job.remote:
        raise click.UsageError("--remote: this command starts a session; name the --master that it shall run on")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with kept(job, *listen) as (address, wait):
            echo(f"serves at {address}: give it to other commands as --remote, or in LOADMANAGER_SPARK_REMOTE")
            wait()
    except KeyboardInterrupt:
        pass
