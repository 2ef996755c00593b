"""What the jobs of the load history share: options, session, lake, checks beforehand, dry runs, and printed rows.

A job gets the shared options (lake, time, Spark, output) as one `Job`. Times are written `--from -7d --to
2030-01-31T12:00`, in UTC where nothing else is said. Before anything starts it is checked whether the log and the Spark
server can be reached. A dry run checks what can be checked, shows what would be read and written, and changes nothing.

A job has progress for people, and published results with their provenance. Refusals become a message and an exit code.
An existing session is used, and left running. Rows of a DataFrame are printed for people and programs: at most the
wanted number, with a note if there are more.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from loadmanager.errors import LoadManagerError, Unavailable, install_line
from loadmanager.history import published
from loadmanager.history.columns import check_place
from loadmanager.history.progress import gist
from loadmanager.model.registration import VERSION
from loadmanager_api.cli.client import Failed, NotNow
from loadmanager_api.cli.options import ParamType, prints, with_options
from loadmanager_api.cli.printing import echo, show, show_answer
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.stores import check_there, opened_log, working

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from loadmanager.history.lake import Lake, Pinned, Window
    from loadmanager.settings import Settings

_AGO = re.compile(r"-?([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(ParamType[datetime]):
    """`-7d`, `-90m` (before now), `now`, or ISO 8601: `2030-01-31`, `2030-01-31T12:00`, `…+02:00`. Aware, in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        if value == "now":
            return now
        try:
            ago = _AGO.fullmatch(value)
            if ago is not None:
                return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            at = datetime.fromisoformat(value)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time; write -7d, -90m, now, or 2030-01-31T12:00 (UTC)", param, ctx)


def check_order(begin: datetime | None, end: datetime | None) -> None:
    """Raises UsageError if the window is empty."""
    if begin is not None and end is not None and begin >= end:
        raise click.UsageError(
            f"--from {begin:%Y-%m-%dT%H:%M:%S} is not before --to {end:%Y-%m-%dT%H:%M:%S}: exchange them"
        )


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


def lake_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a lake and a Spark session; `job_of` makes a `Job` of them."""
    return with_options(command, *_LAKE)


def job_of(**given: Any) -> Job:
    """Raises UsageError for what a session would refuse in pages of Java."""
    job = Job(**given)
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
    return job


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
            job = job_of(**own, output=shown.output)
            begun_s = time.monotonic()
            result = ctx.invoke(command, job, **given)
            if _STARTED in ctx.meta:
                echo(f"took {time.monotonic() - begun_s:.1f} s in all", err=True)
            return result

        return with_options(working, *options)

    return add


engine_option = click.option(
    "--engine",
    type=click.Choice(("auto", "spark", "duckdb")),
    default="auto",
    show_default=True,
    help="DuckDB needs no JVM, and a lake on this disk; `auto` takes it where it can.",
)


def takes_duckdb(job: Job, engine: str, why_spark: Callable[[Path], str | None] = lambda _: None) -> bool:
    """Returns True if DuckDB answers a job. `why_spark` says why it cannot or should not, of a lake's folder.

    Raises Failed where DuckDB is wanted and cannot answer.
    """
    if engine == "spark" or (engine == "auto" and (job.local is None or job.master or job.conf)):
        return False
    if job.local is None:
        raise Failed("--engine duckdb reads lakes on this disk: take --engine spark, or copy the lake")
    check_lake(job, new=False)
    why = why_spark(job.local.absolute())
    if engine == "duckdb" and why:
        raise Failed(f"--engine duckdb: {why}; take --engine spark")
    return not why


_STARTED = f"{__name__}.started"
"""In the command's context once it has started a session: what it prints of its time is the whole then."""


_LOG = click.option("--log", metavar="ADDRESS", help="Log: sqlite:FILE or kafka://host:port[,…], as for brokers.")
settings_option = click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE", help="Any setting of the brokers; repeatable."
)
"""For `settings_of`."""


def source_options(command: F) -> F:
    """Add `--log` and `--set`, for `settings_of`."""
    return with_options(command, _LOG, settings_option)


Rows = list[dict[str, Any]]


def taken(answer: DataFrame, most: int) -> tuple[Rows, bool]:
    """At most so many rows, times in UTC, and whether there were more."""
    rows: Rows = answer.limit(most + 1).toArrow().to_pylist(maps_as_pydicts="lossy")
    return rows[:most], len(rows) > most


def table(job: Job, answer: Any, columns: Sequence[str], rows: Sequence[dict[str, Any]], empty: str = "none") -> None:
    """Print the answer, or these columns of the rows."""
    show(job.shown, answer, columns, [[cell_of(row.get(name)) for name in columns] for row in rows], empty=empty)


def cell_of(value: Any) -> Any:
    """How a value looks in a table; figures keep three digits, whatever their size."""
    match value:
        case float():
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return value


CONNECT_PORT = 15_002
STANDALONE, MASTER_PORT = "spark://", 7077
CONNECT_TIMEOUT_S = 10.0


def check_server(remote: str) -> None:
    """Raises NotNow if nothing listens at a Spark Connect address: its client would try for ten minutes."""
    try:
        place = _place(remote, CONNECT_PORT)
    except ValueError as error:
        raise click.UsageError(f"--remote {remote}: {error}; write sc://host:port") from None
    if why := _silent(place):
        raise NotNow(f"no Spark Connect server answers at {remote}: {why}")


def check_master(master: str) -> None:
    """Raises NotNow if none of the masters in spark://host:port[,host:port…] listens: Spark would try for a minute.

    Raises UsageError for yarn without its configuration.
    """
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & set(os.environ):
        raise click.UsageError("--master yarn: set HADOOP_CONF_DIR or YARN_CONF_DIR")
    if not master.startswith(STANDALONE):
        return
    try:
        places = [_place(STANDALONE + each, MASTER_PORT) for each in master.removeprefix(STANDALONE).split(",")]
    except ValueError as error:
        raise click.UsageError(f"--master {master}: {error}; write spark://host:port") from None
    why = [_silent(place) for place in places]
    if all(why):
        raise NotNow(f"no Spark master answers at {master}: {why[0]}")


def _place(url: str, port: int) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or port


def _silent(place: tuple[str, int]) -> str:
    """The reason why no server answers there; empty if one does."""
    try:
        socket.create_connection(place, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_answers(settings: Settings) -> None:
    """Raises Failed for an invalid address or a missing file, and NotNow if Kafka does not answer."""
    check_there(settings.log, "--log")
    if not settings.log.startswith("sqlite:"):
        working(_answer(settings))


async def _answer(settings: Settings) -> None:
    async with opened_log(settings):
        pass


INSTALL = "the load history needs the extra `history`: " + install_line("history")
JAVA = "Java is missing: install a JDK 17 or later (Debian: apt-get install openjdk-17-jre-headless)"

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable that spark-submit sets for its program."""

REMEDIES = {
    "S3AFileSystem not found": "run `loadmanager history jars --s3` once",
    'No FileSystem for scheme "s3"': "write s3a://…",
    "[FAILED_READ_FILE": "restore that file from a copy, or ingest into another lake",
    "SparkConcurrentModificationException": "another ingest works on this lake: wait for it, or stop it",
}
"""What to do, by what Spark says."""
GONE = (
    *("[RETRIES_EXCEEDED]", "StatusCode.UNAVAILABLE"),
    *("INVALID_HANDLE.SESSION_", "INVALID_HANDLE.OPERATION_", "server side session"),
)
"""What PySpark says if a Spark Connect server does not answer any more, or another one answers in its place."""
SERVER_GONE = (
    "the Spark Connect server ended, or was started again, while the job ran; results that were not published by then "
    "are as they were. Look at the server's log, start it if need be, and start the job again"
)
MOST_SAID = 500
SMALL_BYTES = 128 << 20


@contextmanager
def installed() -> Generator[None]:
    """A context for code that imports Spark. Raises Failed where the extra is missing."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith(("loadmanager", "statechannel")):
            raise
        raise Failed(INSTALL) from None


@contextmanager
def opened(job: Job, *, new: bool = False, brief: bool = True) -> Generator[Lake]:
    """The lake, in a session; `brief` if the job is short on a small lake. Raises Failed; a missing lake is an error
    only without `new`.
    """
    check_lake(job, new=new)
    with installed():
        from loadmanager.history.columns import TABLES
        from loadmanager.history.lake import Lake
    with failing(), _session(job, brief=brief and _small(job)) as spark:
        lake = Lake(spark, job.lake if job.local is None else str(job.local.absolute()))
        if job.local is None and not new and not any(map(lake.exists, TABLES)):
            raise Failed(_missing(job))
        yield lake


@contextmanager
def writing(job: Job, *, new: bool = False, brief: bool = True) -> Generator[Lake]:
    """As `opened`, for a job that writes: it says so if nothing keeps its commits apart from those of another one."""
    with opened(job, new=new, brief=brief) as lake:
        if not lake.keeps_writers_apart:
            from loadmanager.history.lake import ALONE

            echo(f"Warning: {ALONE}: let no other ingest or maintain run meanwhile", err=True)
        yield lake


@contextmanager
def reading(job: Job, *, new: bool = False) -> Generator[Pinned]:
    """As `opened`, for a job that only reads: its result names the versions of the tables that it was made from."""
    with opened(job, new=new) as lake:
        from loadmanager.history.lake import pinned

        yield pinned(lake)


@contextmanager
def failing() -> Generator[None]:
    """Turns errors inside it into a message and an exit code. Raises Failed, NotNow."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except Unavailable as error:
        raise NotNow(_brief(str(error))) from error
    except (LoadManagerError, ValueError) as error:
        raise Failed(str(error)) from None
    except (PySparkException, Py4JError) as error:
        if _server_is_gone(error):
            raise NotNow(SERVER_GONE) from error
        told = gist(str(error))
        advice = (remedy for sign, remedy in REMEDIES.items() if sign in told)
        raise Failed(f"Spark gave up: {'; '.join([told, *advice])}") from error
    except ConnectionError as error:
        raise Failed(f"Spark's JVM, or its server, ended ({error}): start the job again") from error


def _server_is_gone(error: BaseException | None) -> bool:
    """Whether that is why, or why what failed before it did: cleaning up fails too, in other words."""
    while error is not None:
        if any(sign in str(error) for sign in GONE):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _session(job: Job, *, brief: bool = False) -> Generator[SparkSession]:
    from pyspark.sql import SparkSession

    from loadmanager.history.progress import waiting
    from loadmanager.history.session import Spark, keep_stdout, session

    if not job.remote and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise Failed(JAVA)
    if job.remote:
        check_server(job.remote)
        warnings.filterwarnings("ignore", "WARN WindowExpression")  # elsewhere the JVM says that, to its log
    if job.master:
        check_master(job.master)
    active = SparkSession.getActiveSession()
    there = active or _submitted(job)
    if there is None:
        with waiting("starting Spark"):
            place = {name: value for name in ("master", "remote", "memory") if (value := getattr(job, name))}
            spark = session(Spark(**place, conf=_conf(job), brief=brief))
        click.get_current_context().meta[_STARTED] = True
    else:
        spark = there
    if active is None and not job.remote:
        keep_stdout(spark)
    try:
        with _telling(job, spark):
            yield spark
    finally:
        if active is None:
            _end(spark, remote=bool(job.remote), ours=there is None)


@contextmanager
def kept(job: Job, host: str, port: int) -> Generator[tuple[str, Callable[[], None]]]:
    """A session that serves Spark Connect: its address, sc://host:port, and what waits for its end. Raises Failed."""
    with installed():
        from loadmanager.history.session import connect_conf, connect_port, wait_for_end
    conf = tuple(connect_conf(host, port).items())
    with failing(), _session(msgspec.structs.replace(job, conf=(*conf, *job.conf))) as spark:
        yield f"sc://{f'[{host}]' if ':' in host else host}:{connect_port(spark)}", lambda: wait_for_end(spark)


def _telling(job: Job, spark: SparkSession) -> AbstractContextManager[None]:
    """People learn what the job waits for; a Spark Connect server does not tell it."""
    from pyspark.sql.utils import is_remote

    from loadmanager.history.progress import telling

    return (
        nullcontext() if job.remote or is_remote() else telling(spark, lambda said: echo(f"Warning: {said}", err=True))
    )


def _end(spark: SparkSession, *, remote: bool, ours: bool) -> None:
    from py4j.protocol import Py4JError

    from loadmanager.history.session import end_work, leave

    if remote:  # a Spark Connect server has other clients
        leave(spark)
        return
    with suppress(Py4JError, ConnectionError):  # it may have ended by itself
        end_work(spark)
        if ours:
            spark.stop()


def _submitted(job: Job) -> SparkSession | None:
    """The session that spark-submit has prepared: it says where and with what, unless --master or --remote do."""
    from pyspark.sql import SparkSession

    from loadmanager.history.session import fit_partitions

    if SUBMITTED not in os.environ or job.master or job.remote:
        return None
    spark = SparkSession.builder.appName("loadmanager history").getOrCreate()
    fit_partitions(spark)
    return spark


def _small(job: Job) -> bool:
    """Whether the lake is on this disk, and of so few bytes that the JVM's start takes longer than all the rest."""
    if job.local is None:
        return False
    left = SMALL_BYTES
    for folder, _, files in os.walk(job.local / "tables"):
        for file in files:
            with suppress(FileNotFoundError):  # another job may delete it
                left -= Path(folder, file).lstat().st_size
        if left < 0:
            return False
    return True


def _conf(job: Job) -> dict[str, str]:
    given = dict(job.conf)
    if job.remote:
        return given
    elsewhere = job.master is not None and not job.master.startswith("local")
    reachable = {"spark.driver.bindAddress": "0.0.0.0", "spark.driver.host": socket.getfqdn()} if elsewhere else {}
    return reachable | given


def window_of(job: Job) -> Window:
    """The time that the job is about."""
    from loadmanager.history.lake import Window

    return Window(job.begin, job.end)


def check_recorded(job: Job, lake: Lake) -> None:
    """Raises NotFound where the time has no records: an empty result must not replace an earlier one."""
    from loadmanager.history.coverage import check_recorded

    check_recorded(lake, window_of(job))


def published_in(job: Job) -> Path | None:
    """The folder for results; None if none is given and the lake is not on this machine."""
    if job.publish is not None:
        return job.publish
    return job.local / published.FOLDER if job.local is not None else None


def provenance(job: Job, name: str, versions: Mapping[str, int], *, truncated: bool, **options: Any) -> Any:
    """Where a result comes from."""
    return published.Provenance(
        job=name,
        at=datetime.now(UTC),
        begin=job.begin,
        end=job.end,
        lake=job.lake,
        lake_versions=dict(versions),
        release=VERSION,
        options=options,
        truncated=truncated,
    )


def publish(
    job: Job,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    made: published.Provenance,
    facts: Mapping[str, Any] | None = None,
) -> Path | None:
    """Publish a result where brokers look for it, if there is such a place. Raises Failed."""
    root = published_in(job)
    if root is None:
        return None
    try:
        return published.publish(root, name, rows, made, facts)
    except OSError as error:
        raise Failed(f"--publish {root}: {error.strerror}") from None
    except LoadManagerError as error:
        raise Failed(str(error)) from None


def say_where(job: Job, paths: Sequence[Path | None]) -> None:
    """Tell people where the results are, on standard error."""
    there = [path for path in paths if path is not None]
    if not there:
        echo("nothing was published: the lake is not on this disk; name a folder with --publish", err=True)
    elif len(there) == 1:
        echo(f"published: {there[0]}", err=True)
    else:
        echo(f"published: {len(there)} results in {published_in(job)}", err=True)


def check_lake(job: Job, *, new: bool) -> None:
    """Raises Failed for what is seen to be no lake before a JVM starts; `new`: it may be missing."""
    folder = job.local
    try:
        check_place(str(folder.absolute()) if folder else job.lake)
    except LoadManagerError as error:
        raise Failed(str(error)) from None
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise Failed(f"--lake {job.lake}: that is a file; name a folder")
    if not new and not there(job):
        raise Failed(_missing(job))


def there(job: Job) -> bool:
    """Whether a lake is named and, as far as this machine's disk tells, there."""
    return bool(job.lake) and (job.local is None or (job.local / "tables").is_dir())


def _missing(job: Job) -> str:
    return f"there is no lake at {job.lake}: `loadmanager history ingest --lake {job.lake} --log …` makes one"


def _brief(message: str) -> str:
    """A message in one line; pages of Spark's text are cut to their beginning, and the advice at the end is kept."""
    if "\n" not in message:
        return message
    begin, advice = message.splitlines()[0].strip(), message.rpartition("; ")[2]
    return f"{begin[:MOST_SAID]}; {advice}" if "\n" not in advice else begin[:MOST_SAID]


TABLES = ("table", "version", "rows", "columns missing")
TOPICS = ("topic", "partitions", "begin", "end", "in the lake", "to read", "tables")


def show_reading(job: Job, reads: Rows, writes: Sequence[Path]) -> None:
    """Show what a job would read, and which files it would write."""
    answer = {"dry_run": True, "reads": reads, "writes": [str(path) for path in writes]}
    if not job.shown.for_people:
        show_answer(job.shown, answer)
        return
    for columns in (TOPICS, TABLES):
        if rows := [row for row in reads if columns[0] in row]:
            table(job, answer, columns, rows)
            echo()
    if not reads:
        echo("there is nothing to read")
    echo(f"nothing was changed; without --dry-run the job would write{':' if writes else ' nothing'}")
    for path in writes:
        echo(f"  {path}")


def results(job: Job, names: Iterable[str]) -> list[Path]:
    """The files of results of these names, in the folder where they are published; none without such a folder."""
    root = published_in(job)
    return [] if root is None else [root / f"{name}.json" for name in names]


def tables_of(job: Job, lake: Pinned, names: Iterable[str]) -> Rows:
    """The version of each table that is there, its rows in the job's time, and columns that an older release left out.

    Raises Failed for a column of another type than this release reads.
    """
    return [_table_of(job, lake, name, version) for name, version in lake.versions(names).items()]


def _table_of(job: Job, lake: Pinned, name: str, version: int) -> dict[str, Any]:
    from loadmanager.history.schemas import TABLES

    stored = {field.name: field.dataType for field in lake.stored(name)}
    for field in TABLES[name].fields:
        if stored.get(field.name, field.dataType) != field.dataType:
            was, wanted = stored[field.name].simpleString(), field.dataType.simpleString()
            raise Failed(f"table {name} has {field.name} as {was}; this release reads {wanted}: ingest into a new lake")
    missing = [field for field in TABLES[name].names if field not in stored]
    rows = lake.table(name, window_of(job)).count()
    return {"table": name, "version": version, "rows": rows, "columns missing": ", ".join(missing) or None}


def topics_of(job: Job, settings: Settings, names: Iterable[str]) -> Rows:
    """How far each of these topics reaches, how far the lake has it, and how many records would be read at most.

    Spark starts only if there is a lake. Raises Failed.
    """
    known: Mapping[tuple[str, int], int] = {}
    if there(job):
        with reading(job) as lake:
            from loadmanager.history.ingest.positions import SILVER, reached
            from loadmanager.history.schemas import TABLES

            tables_of(job, lake, TABLES)
            known = reached(lake, SILVER).next_offsets
    return [_topic_of(name, *edges, known) for name, edges in working(_edges(settings, names)).items()]


def records_in(settings: Settings, names: Iterable[str]) -> int:
    """How many records the log has of these topics. Raises Failed, NotNow."""
    return sum(sum(ends) - sum(begins) for begins, ends in working(_edges(settings, names)).values())


async def _edges(settings: Settings, names: Iterable[str]) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    from loadmanager.history.sources import TOPICS, source_of
    from statechannel.ports import TopicSpec

    there = [name for name in source_of(settings).available(TOPICS) if name in names]
    async with opened_log(settings) as log:
        for name in there:
            await log.open_topic(TopicSpec(name, compacted=TOPICS[name].compacted))
        return {name: (await log.begins(name), await log.ends(name)) for name in there}


def _topic_of(
    name: str, begins: Sequence[int], ends: Sequence[int], known: Mapping[tuple[str, int], int]
) -> dict[str, Any]:
    from loadmanager.history.sources import TOPICS

    has = [known.get((name, partition), 0) for partition in range(len(ends))]
    left = (end - max(begin, at) for begin, end, at in zip(begins, ends, has, strict=True))
    return {
        "topic": name,
        "partitions": len(ends),
        "begin": sum(begins),
        "end": sum(ends),
        "in the lake": sum(has),
        "to read": sum(max(0, count) for count in left),
        "tables": ", ".join(TOPICS[name].tables),
    }
