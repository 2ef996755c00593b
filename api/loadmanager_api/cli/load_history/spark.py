"""`loadmanager history jars`: brings what Spark needs beside itself. The only command that downloads anything.

`history serve` keeps a session warm, so that commands with --remote answer in seconds.
"""

from __future__ import annotations

import shlex
import signal

import click

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.load_history.jobs import Job, job_options, kept
from loadmanager_api.cli.options import ParamType, prints
from loadmanager_api.cli.printing import echo, show_answer
from loadmanager_api.cli.remote import Remote


@click.command()
@click.option(
    "--spark-submit",
    "submit",
    is_flag=True,
    help="Print the jars as options of spark-submit, on one line, quoted for a shell.",
)
@click.option("--s3", is_flag=True, help="Download also the jars for a lake on S3 (s3a://…).")
@click.option(
    "--archive/--no-archive",
    "archived",
    default=True,
    show_default=True,
    help="Archive the classes that Spark loads (190 MB), for commands on this machine to begin some seconds earlier.",
)
@prints
def jars(remote: Remote, submit: bool, s3: bool, archived: bool) -> None:
    """Download the missing jars of Delta Lake and the Kafka connector, with Maven.

    The jars go to ~/.cache/loadmanager/jars, or to the folder in LOADMANAGER_HISTORY_JARS. For a machine without
    network, copy that folder. The command prints the folder. No other command downloads anything.
    """
    from loadmanager.errors import LoadManagerError
    from loadmanager.history import archive
    from loadmanager.history.jars import bring, folder

    try:
        found = bring(s3=s3)
        if archived and not archive.make():
            echo("Warning: there is no archive of classes, so commands take some seconds longer to begin", err=True)
    except (LoadManagerError, OSError) as error:
        raise Failed(str(error)) from None
    if submit:
        echo(shlex.join(options()))
    elif not remote.for_people:
        show_answer(remote, {"folder": str(folder()), "jars": [path.name for path in found]})
    else:
        echo(f"{len(found)} jars in {folder()}")


def options() -> list[str]:
    """Options for spark-submit, wherever the job runs: jars, and the settings that make Delta work."""
    from loadmanager.history.session import DRIVER_LANGUAGE, configuration

    wanted = configuration().items()
    given = {name: value for name, value in wanted if name == DRIVER_LANGUAGE or not name.startswith("spark.driver.")}
    files = given.pop("spark.jars")
    return ["--jars", files, *(word for name, value in given.items() for word in ("--conf", f"{name}={value}"))]


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
    help="Where to listen. Every client that reaches it may run any code: keep it on this machine.",
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
