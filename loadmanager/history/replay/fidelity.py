"""Compares a replay of the cluster's own settings with what the cluster had: can this replay be believed? Pure.

A replay that is right about other settings must first be right about the present ones. Two figures are compared: the
objective J, and the spread, by which the fullest broker is above the mean. Both are means over the windows that the
cluster's own settings played to the end. J alone is not enough, as moves may cost as much as the imbalance that they
end. Figures agree if they are within a factor of each other, or so near that the difference would not change advice.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.history.replay.result import Fidelity, WindowRow

FACTOR = 1.5
"""A replay is kinder than life (moves take no time), and its rounds are not at the same seconds. In windows of ten
rounds of a demo's record these made a quarter; more than a half was a fault of the game each time."""
NEAR = 0.02
"""Brokers: a fiftieth of a broker too much on the fullest one."""
NEAR_SPREAD = 0.1
"""Of the mean broker: as much as the default tolerance."""


def compared(recorded: Sequence[WindowRow], own: Sequence[WindowRow], candidate: str) -> Fidelity:
    """The check; `own` are the rows of the candidate that equals the cluster's settings."""
    had = {row.begin: row for row in recorded}
    pairs = [(had[row.begin], row) for row in own if row.objective is not None and row.begin in had]
    costs = [(then.objective or 0.0, now.objective or 0.0) for then, now in pairs]
    spreads = [(then.max_over_mean or 1.0, now.max_over_mean or 1.0) for then, now in pairs]
    broke = len(own) - len(pairs)
    cost, spread = _means(costs), _means(spreads)
    against = _against(cost, spread, broke, len(own), candidate)
    return Fidelity(candidate, len(pairs), *cost, *spread, agrees=not against, against=against)


def unknown(strategy: str) -> Fidelity:
    """Of a cluster whose strategy this program does not have."""
    why = f"the cluster's strategy {strategy} is not installed here, so its own settings cannot be replayed"
    return Fidelity(strategy, 0, 0.0, 0.0, 1.0, 1.0, agrees=False, against=why)


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    count = max(1, len(pairs))
    return sum(then for then, _ in pairs) / count, sum(now for _, now in pairs) / count


def _against(cost: tuple[float, float], spread: tuple[float, float], broke: int, windows: int, candidate: str) -> str:
    """What speaks against the replay; empty if nothing does."""
    if 2 * broke > windows or broke == windows:
        return f"the cluster's own settings ({candidate}) broke a rule in {broke} of {windows} windows of the replay"
    if not _agree(*cost, NEAR):
        told = f"cost {cost[1]:.3g} in it, and the cluster had {cost[0]:.3g}"
    elif not _agree(spread[0] - 1, spread[1] - 1, NEAR_SPREAD):
        told = f"have a max/mean of {spread[1]:.3g} in it, and the cluster had {spread[0]:.3g}"
    else:
        return ""
    return (
        f"this replay is not what happened: the cluster's own settings ({candidate}) {told}. Balancing was off or "
        "paused for a time, moves were made by hand, settings changed, or windows are too short: take another --from "
        "and --to, or a longer --window-s"
    )


def _agree(had: float, has: float, near: float) -> bool:
    return abs(has - had) <= near or had <= FACTOR * has <= FACTOR**2 * had
