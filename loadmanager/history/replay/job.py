"""The replay job: cuts the record into windows, plays every candidate in each on executors, and ranks the results.

A task is a window with a lane of its candidates: a window's rows go to one executor once, and are read once. With few
windows the candidates are shared among lanes, which each get the rows. The driver collects one row per window and
candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any

import msgspec
import pyarrow
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses import DEFAULTS as DEFAULT_OPTIONS
from loadmanager.history.lake import ALWAYS, Lake, Window
from loadmanager.history.minutes import Reach, in_force
from loadmanager.history.replay.candidates import DEFAULTS, RECORDED, Candidate, parsed
from loadmanager.history.replay.cost import Gaps, Objective, Terms
from loadmanager.history.replay.game import LISTED, OWNERSHIP, REPORT, RULES, TOTAL, Frame, Missing
from loadmanager.history.replay.play import Rules, outcomes
from loadmanager.history.replay.ranking import (
    Fidelity,
    ReplayResult,
    WindowRow,
    compared,
    config_of,
    ranked,
    unknown,
    verdict,
)
from loadmanager.history.texts import on_spark
from loadmanager.history.utc import micros, time_of
from loadmanager.settings import Settings
from loadmanager.settings.overlay import overlaid
from loadmanager.strategies.registry import STRATEGIES

LONGEST_S = 4 * 3600.0
WANTED_WINDOWS = 24
FEWEST_ROUNDS, SHORTEST_ROUNDS = 2, 20
TASKS_A_SLOT = 4
MOST_WINDOWS = 10_000
"""The driver collects one row for each window and candidate."""
LONGEST_REST_S = 86_400.0
"""How far before a window moves are read: with a longer rest time, bundles that moved earlier count as free."""
_FIGURES = tuple(field.name for field in msgspec.structs.fields(Terms))
_SCHEMA = pyarrow.schema(
    [("window", pyarrow.int32()), ("candidate", pyarrow.int32()), ("missing", pyarrow.string())]
    + [("broke", pyarrow.string()), ("bound", pyarrow.float64()), ("ruled", pyarrow.bool_())]
    + [(name, pyarrow.float64()) for name in _FIGURES]
)


class Options(msgspec.Struct, frozen=True):
    """How to replay. Lengths in seconds."""

    interval_s: float | None = None
    """Time between two rounds; None: the cluster's `balancing_interval_s`."""
    window_s: float | None = None
    """Length of a window; None: a 24th of what was recorded, at least 20 rounds and at most 4 hours."""
    settings: Settings | None = None
    """The cluster's settings; None: those of its last recorded decision, over the defaults."""
    objective: Objective = Objective()
    gaps: Gaps | None = None
    """What moves cost; None: as recorded, or the playground's constants."""
    coverage: float = 0.9
    """The part of all bundles and rounds of a window for which the load must be known."""
    parallelism: int = 8
    """About how many tasks run at once; with few windows, their candidates are shared among this many tasks."""
    seed: int = 0


def replay(
    lake: Lake,
    window: Window = ALWAYS,
    candidates: Sequence[str] = DEFAULTS,
    options: Options = Options(),  # noqa: B008
) -> ReplayResult:
    """Play what was recorded in the window with each candidate (`candidates.parsed`), and rank them.

    Raises Invalid for unknown candidates, and where nothing can be replayed, with the reasons.
    """
    base = options.settings or recorded_settings(lake, window)
    chosen = parsed(candidates, base)
    checking = _checking(chosen, base)
    every = (*chosen, *(each for each in checking if each not in chosen))
    cut = _cut(lake, window, base, options, every)
    within = Window(time_of(cut.begin_us), time_of(cut.end_us))
    gaps = options.gaps or recorded_gaps(lake, within)
    own = {each.name: each.settings(base) for each in every if not each.is_recorded}
    rules = Rules(base, every, options.objective, gaps, options.coverage, options.seed, own)
    played, skipped = _played(lake, cut, rules)
    if not played:
        raise Invalid(f"no window can be replayed: {_told(skipped)}; take another --from, --to or window length")
    fidelity = _fidelity(played, checking, base)
    names = {each.name for each in chosen}
    rows = [row for row in played if row.candidate in names]
    table = ranked(rows, chosen, options.seed)
    best = next((each for each in table if not each.violations), table[0])
    config = config_of(next(each for each in chosen if each.name == best.candidate), base, fidelity)
    return ReplayResult(
        begin=time_of(cut.begin_us).isoformat(),
        end=time_of(cut.end_us).isoformat(),
        interval_s=cut.interval_us / 1e6,
        window_s=cut.width_us / 1e6,
        windows=cut.windows - sum(skipped.values()),
        ruled=len({row.begin for row in rows if row.ruled}),
        skipped=dict(skipped),
        ranked=table,
        rows=tuple(rows),
        config=config,
        verdict=verdict(table, config, fidelity),
        objective=msgspec.structs.asdict(options.objective),
        gap_cost={"transfer_s": gaps.transfer_s, "unload_s": gaps.unload_s},
        gap_source=gaps.source,
        seed=options.seed,
        fidelity=fidelity,
    )


def _checking(chosen: Sequence[Candidate], base: Settings) -> tuple[Candidate, ...]:
    """What the cluster did, and its own settings: among the candidates or not, they are played to check the replay."""
    if base.balancing_strategy not in STRATEGIES.names():
        return ()
    same = (each for each in chosen if not each.is_recorded and not each.changes(base))
    return Candidate(RECORDED), next(same, Candidate(base.balancing_strategy))


def _fidelity(rows: Sequence[WindowRow], checking: Sequence[Candidate], base: Settings) -> Fidelity:
    if not checking:
        return unknown(base.balancing_strategy)
    recorded, own = ([row for row in rows if row.candidate == each.name] for each in checking)
    return compared(recorded, own, checking[1].name)


def recorded_settings(lake: Lake, window: Window = ALWAYS) -> Settings:
    """The settings of the last decision before the window's end, over the defaults; unusable values are left out."""
    rows = lake.table("decision", Window(None, window.end)).where(f.col("settings").isNotNull())
    found = rows.orderBy(f.col("at").desc(), f.col("offset").desc()).select("settings").limit(1).collect()
    usual = Settings.model_construct(None)
    return overlaid(usual, msgspec.json.decode(found[0]["settings"], type=dict[str, Any])).settings if found else usual


def reported(lake: Lake, window: Window) -> tuple[int, int]:
    """When the first broker reported its load in the window, and the last, in µs. Raises Invalid if none did."""
    at = f.unix_micros("at")
    found = lake.table("broker_load", window).agg(f.min(at).alias("first"), f.max(at).alias("last")).collect()[0]
    if found["first"] is None:
        raise Invalid("no broker's load is recorded in this window: run `loadmanager history ingest` first")
    return found["first"], found["last"]


def _cut(lake: Lake, window: Window, base: Settings, options: Options, candidates: Sequence[Candidate]) -> Cut:
    first, last = reported(lake, window)
    begin = max(micros(window.begin), first) if window.begin is not None else first
    end = min(micros(window.end), last + 1) if window.end is not None else last + 1
    interval = round((options.interval_s or base.balancing_interval_s) * 1e6)
    rounds = (end - begin) // interval
    if rounds < FEWEST_ROUNDS:
        raise Invalid(
            f"{(end - begin) / 1e6:.0f} s are recorded here, and a round takes {interval / 1e6:g} s: take a longer time"
        )
    wanted = int((options.window_s or 0.0) * 1e6) // interval
    if not wanted:
        wanted = min(max(rounds // WANTED_WINDOWS, SHORTEST_ROUNDS), round(LONGEST_S * 1e6) // interval)
    width = min(max(wanted, FEWEST_ROUNDS), rounds)
    windows = rounds // width
    if windows > MOST_WINDOWS:
        raise Invalid(
            f"these are {windows:,} windows, at most {MOST_WINDOWS:,} are played: take longer windows or less time"
        )
    lanes = min(len(candidates), max(1, ceil(TASKS_A_SLOT * options.parallelism / windows)))
    rest_s = max((each.settings(base).bundle_rest_s for each in candidates if not each.is_recorded), default=0.0)
    memory_s = max(base.load_ttl_s, min(rest_s, LONGEST_REST_S))
    return Cut(
        begin, width * interval, windows, interval, round(base.load_ttl_s * 1e6), lanes, memory_us=round(memory_s * 1e6)
    )


def _played(lake: Lake, cut: Cut, rules: Rules) -> tuple[list[WindowRow], Mapping[str, int]]:
    tasks = cut.windows * cut.lanes
    rows = (
        events(lake, cut)
        .repartition(tasks, "slot")
        .groupBy("slot")
        .applyInArrow(_player(cut, rules), from_arrow_schema(_SCHEMA))
    )
    most = cut.windows * (len(rules.candidates) + cut.lanes)
    found = sorted(rows.limit(most).collect(), key=lambda row: (row["window"], row["candidate"]))
    skipped = Counter(row["missing"] for row in found if row["missing"] is not None)
    silent = cut.windows - len({row["window"] for row in found})
    if silent:
        skipped["nothing was recorded"] += silent
    return [_row(row.asDict(), cut, rules.candidates) for row in found if row["missing"] is None], skipped


def _row(row: dict[str, Any], cut: Cut, candidates: Sequence[Candidate]) -> WindowRow:
    figures = {name: row[name] for name in _FIGURES if row[name] is not None}
    if "moves" in figures:
        figures["moves"] = int(figures["moves"])
    begin = time_of(cut.begin_us + row["window"] * cut.width_us).isoformat()
    name = candidates[row["candidate"]].name
    return WindowRow(begin, name, row["broke"], row["bound"], ruled=row["ruled"], **figures)


def _told(skipped: Mapping[str, int]) -> str:
    return "; ".join(f"{reason} ({count} windows)" for reason, count in skipped.items())


def _player(cut: Cut, rules: Rules) -> Callable[[Any], Any]:
    """The function for executors: the rows of one slot in, one row for each of its candidates out."""

    def play(table: Any) -> Any:
        window, lane = divmod(int(table["slot"][0].as_py()), cut.lanes)
        chosen = range(lane, len(rules.candidates), cut.lanes)
        rows = list(_answers(table, window, lane, cut, rules, chosen))
        return pyarrow.Table.from_pylist(rows, schema=_SCHEMA)

    return play


def _answers(
    table: Any, window: int, lane: int, cut: Cut, rules: Rules, chosen: Sequence[int]
) -> Iterator[dict[str, Any]]:
    answer = outcomes(table, cut.frame(window), rules, chosen)
    if isinstance(answer, Missing):
        if lane == 0:
            yield {"window": window, "candidate": -1, "missing": answer.reason}
        return
    for each in answer:
        figures = {} if each.terms is None else msgspec.structs.asdict(each.terms)
        told = {"broke": each.broke, "bound": each.bound, "ruled": each.ruled}
        yield {"window": window, "candidate": each.candidate, **told, **figures}


EVENT = {
    "kind": "tinyint",
    "us": "bigint",
    "until_us": "bigint",
    "nth": "bigint",
    "ordinal": "int",
    "broker": "string",
    "bundle": "string",
    "gone": "boolean",
    "source": "string",
    "action": "string",
    "role": "string",
    "cpu_percent": "double",
    "memory_percent": "double",
    "in_rate_bytes_s": "double",
    "out_rate_bytes_s": "double",
    "rate_msg_s": "double",
    "cores": "double",
    "memory_bytes": "double",
    "in_capacity_bytes_s": "double",
    "out_capacity_bytes_s": "double",
    "capacity_msg_s": "double",
    "data": "binary",
}
"""Columns of a row, beside its `slot` = window · lanes + lane."""
_DECLARED = {
    "cores": "cpu",
    "memory_bytes": "memory_bytes",
    "in_capacity_bytes_s": "in_rate_bytes_s",
    "out_capacity_bytes_s": "out_rate_bytes_s",
    "capacity_msg_s": "rate_msg_s",
}
"""Capacity columns, and the names under which brokers declare them (`load.usage.CAPACITIES`)."""
SLACK = timedelta(hours=1)
"""A decision reaches the log a little after it was made, by other clocks."""
_TO = ("transferring", "releasing")
_NOBODY = ("unassigned", "revoking")


class Cut(msgspec.Struct, frozen=True):
    """Consecutive windows of equal length, and how many lanes share the candidates of each."""

    begin_us: int
    width_us: int
    windows: int
    interval_us: int
    ttl_us: int
    lanes: int = 1
    memory_us: int = 0
    """How long before a window transitions still matter to it: bundles rest, and dead brokers stay dead."""

    @property
    def end_us(self) -> int:
        """Where the last one ends."""
        return self.begin_us + self.width_us * self.windows

    def frame(self, window: int) -> Frame:
        """The rounds of a window."""
        return Frame(self.begin_us + window * self.width_us, self.interval_us, self.width_us // self.interval_us)


def events(lake: Lake, cut: Cut) -> DataFrame:
    """`slot` and the columns of EVENT: everything that each window needs."""
    rows = _reports(lake, cut).unionByName(_totals(lake, cut)).unionByName(_listed(lake, cut))
    rows = rows.unionByName(_ownerships(lake, cut)).unionByName(_rules(lake, cut))
    lane = f.explode(f.array(*[f.lit(each) for each in range(cut.lanes)])) if cut.lanes > 1 else f.lit(0)
    return rows.withColumn("lane", lane).select(
        (f.col("window") * cut.lanes + f.col("lane")).cast("int").alias("slot"), *EVENT
    )


def _as_events(rows: DataFrame, kind: int) -> DataFrame:
    """With all columns of EVENT, null where these rows have none, and `window`."""
    columns = [
        (f.col(name) if name in rows.columns else f.lit(None)).cast(type_).alias(name)
        for name, type_ in EVENT.items()
        if name != "kind"
    ]
    return rows.select("window", f.lit(kind).cast("tinyint").alias("kind"), *columns)


def _window_of(us: Column, cut: Cut) -> Column:
    return f.floor((us - f.lit(cut.begin_us)) / f.lit(cut.width_us)).cast("int")


def _in_windows(rows: DataFrame, first: Column, last: Column) -> DataFrame:
    """Each row once for every window from `first` to `last`."""
    return rows.where(last >= first).withColumn("window", f.explode(f.sequence(first, last)))


def _reported(lake: Lake, table: str, cut: Cut) -> DataFrame:
    """Rows of reports with `us`, for each window in which they may be in force."""
    first, last = (time_of(us).date() for us in (cut.begin_us - cut.ttl_us, cut.end_us))
    rows = lake.table(table).where(f.col("day").isNull() | f.col("day").between(f.lit(first), f.lit(last)))
    us = f.unix_micros(f.coalesce("at", "appended_at"))
    rows = rows.withColumn("us", us).where(f.col("us").between(cut.begin_us - cut.ttl_us, cut.end_us - 1))
    own, still = _window_of(f.col("us"), cut), _window_of(f.col("us") + f.lit(cut.ttl_us), cut)
    return _in_windows(
        rows.withColumn("nth", f.col("offset")),
        f.greatest(own, f.lit(0)),
        f.least(f.greatest(still, own), f.lit(cut.windows - 1)),
    )


def _message_rate() -> Column:
    return f.coalesce("in_rate_msg_s", f.lit(0.0)) + f.coalesce("out_rate_msg_s", f.lit(0.0))


def _reports(lake: Lake, cut: Cut) -> DataFrame:
    """The reports in force, with `until_us`."""
    first = time_of(cut.begin_us - 2 * cut.ttl_us)
    before = f.coalesce("at", "appended_at").between(f.lit(first), f.lit(time_of(cut.end_us)))
    near = f.col("appended_at").between(f.lit(first), f.lit(time_of(cut.end_us)))
    reports, changes = lake.table("broker_load").where(before), lake.table("transition").where(near)
    times = on_spark(in_force(Reach(cut.ttl_us)), {"report": reports, "transition": changes})
    times = times.select("partition", "offset", f.col("end_us").alias("until_us"))
    rows = _reported(lake, "broker_load", cut).join(times, ["partition", "offset"]).where("until_us > us")
    rows = rows.withColumn("rate_msg_s", _message_rate())
    for name, declared in _DECLARED.items():
        rows = rows.withColumn(name, f.element_at("capacity", f.lit(declared)))
    return _as_events(rows, REPORT)


def _totals(lake: Lake, cut: Cut) -> DataFrame:
    return _as_events(_reported(lake, "bundle_total", cut).withColumn("rate_msg_s", _message_rate()), TOTAL)


def _listed(lake: Lake, cut: Cut) -> DataFrame:
    return _as_events(_reported(lake, "bundle_load", cut).withColumn("rate_msg_s", _message_rate()), LISTED)


def _ownerships(lake: Lake, cut: Cut) -> DataFrame:
    """Transitions, each for its own window and for later ones in which it still matters.

    The last one before a window is always included, if the bundle existed then. A bundle's transitions are in the order
    of the log; one whose author's clock was behind gets the time of the one before.
    """
    history = Over.partitionBy("bundle").orderBy("partition", "offset", "ordinal")
    so_far = history.rowsBetween(Over.unboundedPreceding, Over.currentRow)
    rows = lake.table("transition").where(f.col("at") < f.lit(time_of(cut.end_us)))
    rows = rows.withColumn("us", f.max(f.unix_micros("at")).over(so_far)).where(f.col("us") < cut.end_us)
    rows = rows.withColumn("next_us", f.lead("us").over(history))
    own = _window_of(f.col("us"), cut)
    still = f.greatest(own, _window_of(f.col("us") + f.lit(cut.memory_us), cut))
    until = f.coalesce(_window_of(f.col("next_us"), cut), f.lit(cut.windows - 1))
    last = f.when(f.col("state").isNull(), still).otherwise(f.greatest(still, until))
    last = f.least(last, f.lit(cut.windows - 1))
    return _as_events(_in_windows(_places(rows), f.greatest(own, f.lit(0)), last), OWNERSHIP)


def _rules(lake: Lake, cut: Cut) -> DataFrame:
    """The record of each window's first decision with a model: it contains the policies in force.

    Records are read from bronze, which is kept for a shorter time than silver: beyond that there are none.
    """
    first, last = time_of(cut.begin_us), time_of(cut.end_us)
    made = lake.table("decision").where(
        f.col("has_model") & (f.col("at") >= f.lit(first)) & (f.col("at") < f.lit(last))
    )
    us = f.unix_micros("at")
    firsts = made.groupBy(_window_of(us, cut).alias("window")).agg(
        f.min(f.struct(us.alias("us"), "partition", "offset", "appended_at")).alias("first")
    )
    firsts = firsts.select("window", "first.*")
    held = lake.table("bronze").where(f.col("topic") == DECISIONS_TOPIC)
    held = held.where(f.col("appended_at").between(f.lit(first - SLACK), f.lit(last + SLACK)))
    held = held.select("partition", "offset", f.col("value").alias("data"))
    rows = held.join(f.broadcast(firsts), ["partition", "offset"]).withColumn("nth", f.col("offset"))
    return _as_events(rows, RULES)


def _places(rows: DataFrame) -> DataFrame:
    """Adds where the bundle is, or is about to be, as strategies see it."""
    state = f.col("state")
    broker = f.when(state.isin(*_TO), f.col("target")).when(~state.isin(*_NOBODY), f.col("holder"))
    return rows.select(
        "us", "next_us", "ordinal", "bundle", "state", "action", "role",
        f.col("offset").alias("nth"),
        state.isNull().alias("gone"),
        f.col("holder_before").alias("source"),
        broker.alias("broker"),
    )  # fmt: skip


FEWEST = 20
"""The fewest recorded moves of a kind for a mean; below that the playground's constant counts."""


def recorded_gaps(lake: Lake, window: Window = ALWAYS) -> Gaps:
    """Mean gaps of planned moves, from the old owner's stop to the new owner's start, by the log's clock."""
    moves = (
        ANALYSES["transfers"].run(lake.table, window, DEFAULT_OPTIONS).where(f.col("how").isin("transfer", "unload"))
    )
    means = moves.groupBy("how").agg(f.avg("gap_s").alias("gap_s"), f.count("*").alias("moves")).collect()
    found = {row["how"]: float(row["gap_s"]) for row in means if row["moves"] >= FEWEST}
    usual = Gaps()
    if not found:
        return usual
    return Gaps(
        found.get("transfer", usual.transfer_s),
        found.get("unload", usual.unload_s),
        " and ".join(f"recorded {kind}s" for kind in sorted(found)),
    )
