"""Makes the Spark session of a job, or joins the one there is. The only place that knows Spark's configuration."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from loadmanager.errors import Invalid, Unavailable
from loadmanager.history import archive, daemon, jars
from loadmanager.history.progress import gist

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
JARS, CLASS_PATH = "spark.jars", "spark.driver.extraClassPath"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""The JVM has to be started with it."""
INCUBATOR = b"WARNING: Using incubator modules:"
"""The JVM tells that Spark uses one. No option ends that."""
LANGUAGE = "-Duser.language=en"
"""Delta numbers its files in the digits of the JVM's language, and finds those with the digits 0 to 9 alone."""
DRIVER_LANGUAGE = "spark.driver.defaultJavaOptions"
"""Options of JVMs that leave `extraJavaOptions` to others."""
BRIEF = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""One compiler; the JVM would keep 48 MB for compiled code then, as against 240: all analyses need more, and fail."""
CONNECT = "org.apache.spark.sql.connect.SparkConnectPlugin"
PARTITIONS = "spark.sql.shuffle.partitions"
INITIAL = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
LEAST_PARTITIONS, MOST_PARTITIONS = 8, 200
"""On a cluster: executors come after the session, so it may know of no core yet; and Spark's default."""
END_WORK_S = 5.0
ZONE = "spark.sql.session.timeZone"
SQL_ON_FILES = "spark.sql.runSQLOnFiles"
_NO_JVM = "[JAVA_GATEWAY_EXITED]"


class Spark(msgspec.Struct, frozen=True):
    """Where a job runs: `master` as in spark-submit, or `remote`, a Spark Connect address such as sc://host:15002.

    `memory` is the driver's, of a session that this process starts. `conf` goes over everything else; options of the
    driver's JVM are added. `brief`: the job has little to do, so the JVM compiles no method for long.
    """

    master: str = "local[2]"
    remote: str = ""
    memory: str = "2g"
    name: str = "loadmanager history"
    conf: dict[str, str] = {}
    brief: bool = False


def session(spark: Spark = Spark()) -> SparkSession:  # noqa: B008 - a frozen value
    """The session. Raises Invalid where jars or Java are missing, the remote does not answer, or the zone is not UTC.

    With `remote` the server has to have been started with the jars and settings of `configuration()`.
    """
    if spark.conf.get(ZONE, "UTC") != "UTC":
        raise Invalid(f"jobs of the load history compute in UTC: leave out --conf {ZONE}={spark.conf[ZONE]}")
    if spark.remote:
        builder = SparkSession.builder.remote(spark.remote).appName(spark.name)
        for key, value in (_ON_THE_FLY | spark.conf).items():
            builder = builder.config(key, value)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(spark.master).appName(spark.name)
        for key, value in _own(spark).items():
            builder = builder.config(key, value)
    try:
        with nullcontext() if spark.remote else _without_incubators():
            made = builder.getOrCreate()
    except Exception as error:
        raise Invalid(f"no Spark session at {spark.remote or spark.master}: {_why(str(error))}") from error
    if spark.remote:
        from loadmanager.history.asking import Patience

        client: Any = made.client
        client.set_retry_policies([Patience()])
        return made
    speak_no_language(made)
    if PARTITIONS not in spark.conf:
        fit_partitions(made)
    return made


def _own(spark: Spark) -> dict[str, str]:
    """The configuration of a session whose JVM this process starts."""
    made = configuration(spark.memory) | spark.conf
    options = [QUIET, BRIEF if spark.brief else "", spark.conf.get(JAVA_OPTIONS, "")]
    if re.fullmatch(r"local(\[.*\])?", spark.master) and not {JARS, CLASS_PATH} & spark.conf.keys():
        made[CLASS_PATH] = archive.class_path()  # classes of jars that it loads later are in no archive
        made[JARS] = ",".join(map(str, jars.for_s3()))
        options.insert(1, archive.options())
    return made | {JAVA_OPTIONS: " ".join(filter(None, options))}  # of two that contradict, the later one counts


def speak_no_language(spark: SparkSession) -> None:
    """Make the JVM write the digits 0 to 9, also one that was started in another language.

    Raises Invalid for a Spark Connect server that writes others: only its start can change that.
    """
    if not is_remote():
        java: Any = spark.sparkContext._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # no other way
        java.java.util.Locale.setDefault(java.java.util.Locale.ROOT)
        return
    [[style]] = spark.sql("SELECT reflect('java.time.format.DecimalStyle', 'ofDefaultLocale')").collect()
    if "[0" not in style:
        raise Invalid(
            f"the Spark Connect server writes other digits than 0 to 9 ({style}), and Delta would not find its files "
            f"again: start it with --conf {DRIVER_LANGUAGE}={LANGUAGE}"
        )


def connect_conf(host: str, port: int) -> dict[str, str]:
    """Settings by which a session serves Spark Connect, too; port 0 takes a free one."""
    binding = "spark.connect.grpc.binding"
    return {"spark.plugins": CONNECT, f"{binding}.address": host, f"{binding}.port": str(port)}


def connect_port(spark: SparkSession) -> int:
    """Where a session with `connect_conf` listens."""
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # no other way
    service = getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$")  # Scala's object of this name
    return int(getattr(service, "MODULE$").localPort())


def wait_for_end(spark: SparkSession) -> None:
    """Wait until the JVM ends by itself, and raise Unavailable. Never returns for one that spark-submit started."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # no other way
    while gateway.proc is None:
        signal.pause()
    code = gateway.proc.wait()
    raise Unavailable(f"Spark's JVM ended with exit code {code}: look at what it said, and start it again")


def leave(spark: SparkSession) -> None:
    """End a session at a Spark Connect server, without retries, as it may have ended."""
    client: Any = spark.client
    client.set_retry_policies([])
    spark.stop()


def fit_partitions(spark: SparkSession) -> None:
    """Unless its configuration says how many: as many partitions as cores, on this machine as on a cluster.

    On a cluster, adaptive plans still begin with Spark's default and join what is small. Others keep the number: those
    of the ingest's batches, and the tasks of the audit and of the fold, for which 200 are many.
    """
    context = spark.sparkContext
    given = dict(context.getConf().getAll())
    if PARTITIONS in given:
        return
    if str(context.master).startswith("local"):
        spark.conf.set(PARTITIONS, str(context.defaultParallelism))
        return
    spark.conf.set(PARTITIONS, str(cluster_partitions(given, context.defaultParallelism)))
    if INITIAL not in given:
        spark.conf.set(INITIAL, str(MOST_PARTITIONS))


def cluster_partitions(conf: Mapping[str, str], registered: int) -> int:
    """A partition for each core that the job may get by its configuration, or has already."""
    cores = int(conf.get("spark.executor.cores", "1"))
    dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    executors = conf.get("spark.executor.instances", "1")
    if dynamic:
        executors = conf.get("spark.dynamicAllocation.maxExecutors", executors)
    wanted = max(registered, int(conf.get("spark.cores.max", "0")), int(executors) * cores)
    return min(max(wanted, LEAST_PARTITIONS), MOST_PARTITIONS)


def end_work(spark: SparkSession) -> None:
    """Cancel what still runs, before the session is stopped.

    An adaptive plan that finds one side of a join empty leaves the stages of the other side running. They would lose
    their Python workers with the session, and tell that as errors below a good answer.
    """
    context = spark.sparkContext
    context.cancelAllJobs()
    latest_s = time.monotonic() + END_WORK_S
    while context.statusTracker().getActiveStageIds() and time.monotonic() < latest_s:
        time.sleep(0.05)


def keep_stdout(spark: SparkSession) -> None:
    """Drop what the JVM's libraries print to standard output (Delta's "Deleted 0 files …").

    It is for the answer of the program that runs this JVM. Logs go to standard error.
    """
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # no other way
    nowhere = java.java.io.OutputStream.nullOutputStream()
    java.java.lang.System.setOut(java.java.io.PrintStream(nowhere))


@contextmanager
def tables_alone(spark: SparkSession) -> Generator[None]:
    """Inside, SQL cannot name a file (text.`/etc/passwd`), only tables and views."""
    before = spark.conf.get(SQL_ON_FILES)
    spark.conf.set(SQL_ON_FILES, "false")
    try:
        yield
    finally:
        spark.conf.set(SQL_ON_FILES, str(before))


@contextmanager
def _without_incubators() -> Generator[None]:
    """A JVM that is started inside writes its standard error to a pipe. All of it is passed on but INCUBATOR's line."""
    try:
        own = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(own)), daemon=True, name="JVM's errors")
    passing.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        os.dup2(own, 2)
        os.close(own)
        if failed:  # what the JVM told comes before what we say
            passing.join(END_WORK_S)


def _pass_on(reading: int, to: int) -> None:
    rest = b""
    while read := os.read(reading, 1 << 16):  # to its end, or the JVM would wait for a reader
        *lines, rest = (rest + read).split(b"\n")
        with suppress(OSError):  # our standard error has no reader any more
            os.write(to, b"".join(line + b"\n" for line in lines if not line.startswith(INCUBATOR)))
    with suppress(OSError):
        os.write(to, rest)
    os.close(reading)
    os.close(to)


def _why(said: str) -> str:
    if _NO_JVM in said:
        return "its JVM did not start, see its output above; it needs a JDK 17 or later"
    return gist(said)


_ON_THE_FLY = {
    ZONE: "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # by default VACUUM lists a folder in 10,000 tasks
}
"""Settings that a session may change at any time."""


def configuration(memory: str = "2g") -> dict[str, str]:
    """The settings that a job needs, with the jars of this machine. Raises Invalid where they are missing."""
    return _ON_THE_FLY | {
        JARS: ",".join(str(jar) for jar in jars.present()),
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
        **dict.fromkeys((DRIVER_LANGUAGE, "spark.executor.defaultJavaOptions"), LANGUAGE),
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": daemon.__name__,
        "spark.buffer.size": str(1 << 20),  # between the JVM and Python; by default 64 KiB, which took twice as long
        "spark.sql.codegen.cache.maxEntries": "2000",  # a batch of the ingest has more than the 100 that are kept
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
    }
