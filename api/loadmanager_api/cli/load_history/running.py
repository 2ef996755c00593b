"""Runs a job: session, lake, progress for people, and published results with their provenance.

Refusals become a message and an exit code. An existing session is used, and left running.
"""

from __future__ import annotations

import os
import shutil
import socket
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadmanager.errors import LoadManagerError, Unavailable, install_line
from loadmanager.history import published
from loadmanager.history.gist import gist
from loadmanager.history.place import check_place
from loadmanager.model.registration import VERSION
from loadmanager_api.cli.client import Failed, NotNow
from loadmanager_api.cli.load_history.options import Job
from loadmanager_api.cli.load_history.reaching import check_master, check_server
from loadmanager_api.cli.printing import echo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loadmanager.history.lake import Lake, Window
    from loadmanager.history.pinned import Pinned

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
        from loadmanager.history.pinned import pinned

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
        raise Failed(f"Spark gave up: {_told(str(error))}") from error
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
    spark = there or session(Spark(**_place(job), conf=_conf(job), brief=brief))
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

    from loadmanager.history.waiting import telling

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


def _place(job: Job) -> dict[str, str]:
    return {name: value for name in ("master", "remote", "memory") if (value := getattr(job, name))}


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


def _told(said: str) -> str:
    """Spark's message in one line, with advice where there is some."""
    told = gist(said)
    return "; ".join([told, *(remedy for sign, remedy in REMEDIES.items() if sign in told)])
