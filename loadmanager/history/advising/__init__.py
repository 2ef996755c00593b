"""Advice from the load history: what the leader might change, the expected improvement, and how sure that is.

`consider(lake, window, options)` makes the advice (`loadmanager.leader.plans.advice.Advice`), and says why a kind has
none: too little data, or no sure improvement. `publish` turns advice into plans that wait for approval. One file per
kind:

    from_replay.py     strategy, tolerance: the best candidate one step away, if it surely beats what happened
    from_bundles.py    more bundles where one is too large for its broker to be within tolerance
    from_weights.py    weights of resources, where the capacity model says that they hide what brokers really run out of
    from_forecast.py   moves ahead of tomorrow's peak

Each gives its numbers, and advises nothing where the interval of the improvement includes zero. The cluster decides
whether to follow advice, not the job: see docs/advice.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from loadmanager.errors import Invalid
from loadmanager.history.advising import from_bundles, from_forecast, from_replay, from_weights
from loadmanager.history.advising.origin import Origin, origin_of
from loadmanager.history.advising.publishing import publish
from loadmanager.history.analyses.analysis import Options as Analysing
from loadmanager.history.lake import ALWAYS, Lake, Window, pinned
from loadmanager.history.replay import Options as Replaying
from loadmanager.history.replay import ReplayResult, replay
from loadmanager.history.replay.job import recorded_settings
from loadmanager.leader.plans.advice import Advice
from loadmanager.settings import Settings

__all__ = ["Considered", "Options", "consider", "publish"]


KINDS = ("replay", "bundles", "weights", "forecast")


class Options(msgspec.Struct, frozen=True):
    """How to advise.

    `cluster` is whose data it is, as in the setting `cluster`: brokers refuse another cluster's advice.
    """

    cluster: str = "standalone"
    settings: Settings | None = None
    """The cluster's settings; None: those of its last recorded decision, over the defaults."""
    kinds: tuple[str, ...] = KINDS
    life_s: float = 86_400.0
    """How long advice is of use, counted from the end of the data."""
    replaying: Replaying = Replaying()
    result: ReplayResult | None = None
    """The result of an earlier replay with `recorded` among its candidates; None: the job replays its own candidates.
    """


class Considered(msgspec.Struct, frozen=True):
    """The advice; and for each kind without advice, why."""

    advice: tuple[Advice, ...]
    left_out: Mapping[str, str]


def consider(
    lake: Lake,
    window: Window = ALWAYS,
    options: Options = Options(),  # noqa: B008
    begin: Callable[[str], None] = lambda _kind: None,
) -> Considered:
    """The advice from the record of the window, and why a kind has none. Nothing here changes anything.

    Calls `begin(kind)` before each kind. Raises Invalid for unknown kinds.
    """
    unknown = set(options.kinds) - set(KINDS)
    if unknown:
        raise Invalid(f"there is no kind of advice {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    lake = pinned(lake)
    tables = {*from_replay.TABLES, *from_bundles.TABLES, *from_weights.TABLES, *from_forecast.TABLES}
    origin = origin_of(lake, window, options.cluster, options.life_s, sorted(tables))
    if origin is None:
        why = "no broker's load is recorded in this window: run `loadmanager history ingest` first"
        return Considered((), dict.fromkeys(options.kinds, why))
    settings = options.settings or recorded_settings(lake, window)
    advice: list[Advice] = []
    left_out: dict[str, str] = {}
    for kind, found in _by_kind(lake, window, options, settings, origin, begin):
        if isinstance(found, str):
            left_out[kind] = found
        else:
            advice += found
    return Considered(tuple(advice), left_out)


def _by_kind(
    lake: Lake, window: Window, options: Options, settings: Settings, origin: Origin, begin: Callable[[str], None]
) -> Iterator[tuple[str, list[Advice] | str]]:
    analysing = Analysing.of(settings)
    for kind in options.kinds:
        begin(kind)
        found: Advice | list[Advice] | str
        match kind:
            case "replay":
                found = _replayed(lake, window, options, settings, origin)
            case "bundles":
                found = from_bundles.advised(lake.table, window, analysing, settings, origin)
            case "weights":
                found = from_weights.advised(lake.table, window, analysing, settings, origin)
            case _:
                found = from_forecast.advised(lake.table, window, analysing, settings, origin)
        yield kind, [found] if isinstance(found, Advice) else found


def _replayed(lake: Lake, window: Window, options: Options, settings: Settings, origin: Origin) -> Advice | str:
    result = options.result
    if result is None:
        replaying = msgspec.structs.replace(options.replaying, settings=settings)
        try:
            result = replay(lake, window, from_replay.candidates(settings), replaying)
        except Invalid as error:
            return str(error)
    return from_replay.advised(result, settings, origin)
