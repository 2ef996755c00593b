"""Options that the jobs share: lake, time, Spark, output.

A job gets them as one `Job`; `loadmanager_api.cli.load_history.running` makes its session and lake.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from loadmanager_api.cli.load_history.windows import Moment, check_order
from loadmanager_api.cli.options import ParamType, prints
from loadmanager_api.cli.remote import Remote

F = TypeVar("F", bound=Callable[..., Any])

LAKE = "LOADMANAGER_LAKE"
REMOTE = "LOADMANAGER_SPARK_REMOTE"

MASTER = re.compile(r"local(\[([1-9]\d*|\*)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
MEMORY = re.compile(r"[1-9]\d*[kmgtKMGT]")
"""Told before a JVM starts, which would do so in pages of Java."""


class Job(msgspec.Struct, frozen=True):
    """The shared options of a job."""

    lake: str = ""
    begin: datetime | None = None
    end: datetime | None = None
    master: str | None = None
    remote: str | None = None
    memory: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    publish: Path | None = None
    output: str = "table"

    @property
    def local(self) -> Path | None:
        """The lake's folder, where it is on this machine's disk and not behind a Spark Connect server."""
        if self.remote or not self.lake or "://" in self.lake:
            return None
        return Path(self.lake.removeprefix("file:"))

    @property
    def shown(self) -> Remote:
        """How to print."""
        return Remote(output=self.output)


class Pair(ParamType[tuple[str, str]]):
    """`name=value`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write name=value", param, ctx)
        return name, text


_LAKE = (
    click.option(
        "--lake", envvar=LAKE, metavar="PATH", help=f"Folder of the lake, or a URI that Spark knows.  [env {LAKE}]"
    ),
    click.option("--master", metavar="URL", help="Spark master, as in spark-submit.  [default: local[2]]"),
    click.option(
        "--remote",
        envvar=REMOTE,
        metavar="URL",
        help=f"Spark Connect server to use instead: sc://host:15002.  [env {REMOTE}]",
    ),
    click.option("--memory", metavar="SIZE", help="Memory of the driver, if this process starts it.  [default: 2g]"),
    click.option("--conf", multiple=True, type=Pair(), metavar="NAME=VALUE", help="Setting of Spark; repeatable."),
)
_WINDOW = (
    click.option(
        "--from",
        "begin",
        type=Moment(),
        metavar="TIME",
        help="Begin: -7d, -90m, or 2030-01-31T12:00 (UTC).  [default: all]",
    ),
    click.option(
        "--to", "end", type=Moment(), metavar="TIME", help="End, not included; written as --from.  [default: all]"
    ),
)
_PUBLISH = click.option(
    "--publish",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for results, where brokers look (history_dir).  [default: published/ in a lake on this disk]",
)


def job_options(
    *, window: bool = True, publish: bool = True, lake: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options, and give the command a `Job` as its first argument. `lake`: one has to be named."""
    options = [*_LAKE[:1], *(_WINDOW if window else ()), *([_PUBLISH] if publish else ()), *_LAKE[1:]]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @prints
        @click.pass_context
        @wraps(command)
        def working(ctx: click.Context, shown: Remote, /, **given: Any) -> Any:
            own = {name: given.pop(name) for name in list(given) if name in Job.__struct_fields__}
            own["lake"] = own["lake"] or ""
            if lake and not own["lake"]:
                raise click.MissingParameter(param_hint="'--lake'", param_type="option")
            job = Job(**own, output=shown.output)
            _check(job)
            return ctx.invoke(command, job, **given)

        for option in reversed(options):
            working = option(working)
        return working

    return add


def _check(job: Job) -> None:
    check_order(job.begin, job.end)
    if job.master and not MASTER.fullmatch(job.master):
        raise click.UsageError(
            f"--master {job.master}: write local[2], spark://host:7077, yarn, or k8s://https://host:port"
        )
    if job.memory and not MEMORY.fullmatch(job.memory):
        raise click.UsageError(f"--memory {job.memory}: write 2g, or 1500m")
    if job.remote and (job.master or job.memory):
        raise click.UsageError("--remote names a session that runs already: leave --master and --memory out")
    if job.remote and not job.remote.startswith("sc://"):
        raise click.UsageError(f"--remote {job.remote}: write sc://host:port, as for Spark Connect")
    if job.remote and job.lake and "://" not in job.lake and not job.lake.startswith(("/", "file:/")):
        raise click.UsageError(
            f"--lake {job.lake}: with --remote the lake is at the server; give an absolute path or a URI"
        )


_SOURCE = (
    click.option("--log", metavar="ADDRESS", help="Log: sqlite:FILE or kafka://host:port[,…], as for brokers."),
    click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any setting of the brokers; repeatable."),
)


def settings_option(command: F) -> F:
    """Add `--set`, for `settings_of`."""
    return _SOURCE[1](command)


def source_options(command: F) -> F:
    """Add `--log` and `--set`, for `settings_of`."""
    return _SOURCE[0](_SOURCE[1](command))
