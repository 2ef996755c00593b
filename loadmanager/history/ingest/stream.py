"""Runs the ingest: one streaming query over all topics, and gold behind it.

All topics share one query, because one commit per batch is cheaper than six, and the tables then agree on one moment. A
topic that does not exist yet joins the query when it comes (`sources`). The checkpoint is Spark's own and may be lost;
`PLAN` changes when a release cannot go on from an older one's, and the topics are then read again.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from loadmanager.errors import Conflict, Invalid, LoadManagerError, Unavailable
from loadmanager.history.ingest.batch import Batches, Plan, complete, reread
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.gold import refresh_gold
from loadmanager.history.ingest.metrics import Gauges, exporter
from loadmanager.history.ingest.positions import SILVER, Logs, reached, resume
from loadmanager.history.lake import Lake
from loadmanager.history.progress import gist
from loadmanager.history.sources import TOPICS, Source

_log = logging.getLogger(__name__)

PLAN = 1
"""Version of the streaming plan, and so of its checkpoint."""

QUERY = "ingest"
LOOK_S = 1.0
"""How often a run checks whether it shall stop, or has failed."""

SLOW_START = "Python worker failed to connect back"
"""Spark's message when a source's Python process took more than 10 s to start, as on a machine that is too busy. The
limit is fixed in Spark; it does not apply to the workers of tasks, which are forked."""
STARTS = 4

REFUSED = re.compile(
    r"(Authentication failed|SSL handshake failed|Failed to create new KafkaAdminClient|Not authorized)"
    r"(?:(?! SQLSTATE).)*+"
)
"""What Kafka's Java client says where starting again cannot help."""


class Options(msgspec.Struct, frozen=True):
    """How the ingest runs.

    `partitions` is how many the channel has, `load_ttl_s` twice the brokers' `load_report_max_interval_s`. A batch
    takes at most `max_per_trigger` records, and batches begin `trigger_s` apart, or later. Gold follows every `gold_s`.
    `metrics`: `host:port` on which Prometheus finds them, none if empty.
    """

    partitions: int = 1
    load_ttl_s: float = 1800.0
    max_per_trigger: int = 200_000
    trigger_s: float = 5.0
    gold_s: float = 60.0
    metrics: str = ""


class Ingest:
    """The ingest of one lake from one source. Only one may run: a second one gets Conflict when it writes."""

    def __init__(
        self,
        lake: Lake,
        source: Source,
        options: Options = Options(),  # noqa: B008 - a frozen value
        failpoints: Failpoints | None = None,
    ) -> None:
        self._lake = lake
        self._source = source
        self._options = options
        self._failpoints = failpoints or Failpoints(os.environ)

    def run_available(self) -> None:
        """Ingest all that the topics hold now, in as many batches as needed; bring gold up to it. Raises as `run`."""
        patiently(self._take)
        self._gold()

    def _take(self) -> None:
        with self._running(self._source.until_now, until_now=True) as (query, gate):
            try:
                query.processAllAvailable()
            except Exception as error:
                raise gate.failure or _failed(error) from error

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop`: then finish the batch under way, and bring gold up to it.

        Raises Conflict if another ingest writes to the lake, Invalid if a topic was recreated or Kafka refuses Spark's
        client, Unavailable if the stream fails for another reason. Start it again then: nothing is lost or counted
        twice.
        """
        gauges = Gauges()
        with exporter(self._options.metrics, gauges):
            patiently(lambda: self._follow(stop, gauges))
        self._gold()

    def _follow(self, stop: threading.Event, gauges: Gauges) -> None:
        trigger = {"processingTime": f"{self._options.trigger_s} seconds"}
        with self._running(trigger) as (query, gate):
            since_gold_s = 0.0
            while not stop.wait(LOOK_S):
                error = query.exception()
                if not query.isActive or error is not None:
                    raise gate.failure or _failed(error)
                since_gold_s += LOOK_S
                if since_gold_s >= self._options.gold_s:
                    self._gold()
                    since_gold_s = 0.0
                if self._options.metrics:
                    gauges.look(self._lake, query)

    @contextmanager
    def _running(
        self, trigger: Mapping[str, Any], *, until_now: bool = False
    ) -> Generator[tuple[StreamingQuery, Gate]]:
        plan = Plan(self._source, self._options.partitions, self._failpoints)
        Logs(self._source).check(self._lake, reached(self._lake, SILVER))
        begun = complete(self._lake, plan)
        reread(self._lake)
        checkpoint = self._lake.checkpoint(QUERY, PLAN)
        given = resume(self._lake.spark, checkpoint, begun)
        gate = Gate(Batches(self._lake.root, plan, uuid.uuid4().hex, begun, given))
        bound = self._options.max_per_trigger
        rows = self._source.stream(self._lake.spark, TOPICS, bound, until_now=until_now)
        writer = rows.writeStream.queryName(QUERY).trigger(**trigger)
        writer = writer.option("checkpointLocation", checkpoint)
        query = writer.foreachBatch(gate.batches if is_remote() else gate).start()
        try:
            yield query, gate
        finally:
            gate.close()
            query.stop()

    def _gold(self) -> None:
        with suppress(Conflict):  # its files are being joined: the next time makes what this one left
            refresh_gold(self._lake, self._options.load_ttl_s, failpoints=self._failpoints)


class Gate:
    """Lets batches through until it is closed, and keeps the error of a failed one.

    With Spark Connect batches run elsewhere, without a gate: stopping cuts one off there, which does no harm.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.failure: Exception | None = None
        self._closed = False
        self._turn = threading.Lock()

    def __call__(self, rows: DataFrame, number: int) -> None:
        """The next batch. Raises Unavailable behind a closed gate: Spark does not count the batch as done."""
        with self._turn:
            if self._closed:
                raise Unavailable("the ingest is stopping")
            try:
                self.batches(rows, number)
            except Exception as error:
                self.failure = error
                raise

    def close(self) -> None:
        """Return when the batch under way is done; none comes after it."""
        with self._turn:
            self._closed = True


def patiently(work: Callable[[], None]) -> None:
    """Run `work`, again where Spark did not wait for a Python process that it started: a new start loses nothing."""
    for _ in range(STARTS - 1):
        try:
            return work()
        except Exception as error:
            if SLOW_START not in str(error):
                raise
    return work()


def _failed(error: object) -> LoadManagerError:
    _log.debug("the stream stopped: %s", error)
    if refused := REFUSED.search(str(error)):
        return Invalid(
            f"Kafka refused Spark's client: {refused[0].strip()}. Correct the setting `kafka`: security.protocol, "
            "sasl.…, ssl.ca.location; names that begin with `kafka.` are for Spark's client alone"
        )
    return Unavailable(f"the stream stopped: {gist(str(error))}; start it again, it goes on where it stopped")
