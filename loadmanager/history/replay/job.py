"""The replay job: cuts the record into windows, plays every candidate in each on executors, and ranks the results.

A task is a window with a lane of its candidates: a window's rows go to one executor once, and are read once. With few
windows the candidates are shared among lanes, which each get the rows. The driver collects one row per window and
candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
import pyarrow
from pyspark.sql import functions as f

from loadmanager.errors import Invalid
from loadmanager.history.lake import ALWAYS, Lake, Window
from loadmanager.history.replay.candidates import DEFAULTS, RECORDED, Candidate, parsed
from loadmanager.history.replay.fidelity import compared, unknown
from loadmanager.history.replay.gaps import recorded_gaps
from loadmanager.history.replay.judging import Gaps, Objective, Terms
from loadmanager.history.replay.playing import Rules, outcomes
from loadmanager.history.replay.ranking import config_of, ranked, verdict
from loadmanager.history.replay.recording import Missing
from loadmanager.history.replay.result import Fidelity, ReplayResult, WindowRow
from loadmanager.history.replay.slicing import Cut, events, moment
from loadmanager.history.utc import micros
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
_PLAYED = ", ".join(
    (
        "window int",
        "candidate int",
        "missing string",
        "broke string",
        "bound double",
        "ruled boolean",
        *(f"{x} double" for x in _FIGURES),
    )
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
    within = Window(moment(cut.begin_us), moment(cut.end_us))
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
        begin=moment(cut.begin_us).isoformat(),
        end=moment(cut.end_us).isoformat(),
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
    rows = events(lake, cut).repartition(tasks, "slot").groupBy("slot").applyInArrow(_player(cut, rules), _PLAYED)
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
    begin = moment(cut.begin_us + row["window"] * cut.width_us).isoformat()
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


_SCHEMA = pyarrow.schema(
    [("window", pyarrow.int32()), ("candidate", pyarrow.int32()), ("missing", pyarrow.string())]
    + [("broke", pyarrow.string()), ("bound", pyarrow.float64()), ("ruled", pyarrow.bool_())]
    + [(name, pyarrow.float64()) for name in _FIGURES]
)
