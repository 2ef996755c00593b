"""Replay: what a cluster's recorded load would have cost under other strategies and settings.

`replay(lake, window, candidates, options)`. How a recorded window is processed:

    silver ─▶ job (Spark: what each window needs, side by side) ─▶ on the executors, a window at a time:
        game (or why there is none) ─▶ play (the production strategies in the simulator's cluster, under the policies of
        ruling) ─▶ cost (and its lower bound)
    ─▶ ranking (one row a candidate, with intervals, beside what the own settings cost in the record) ─▶ pictures

The recorded load does not react: it is what clients asked for while the bundles were where they really were.
docs/replay.md has the method and its limits.
"""

from __future__ import annotations

from loadmanager.history.replay.candidates import DEFAULTS, RECORDED, Candidate, parsed, spelled
from loadmanager.history.replay.cost import Objective
from loadmanager.history.replay.job import Options, replay
from loadmanager.history.replay.ranking import Fidelity, Ranked, ReplayResult, WindowRow

__all__ = [
    "DEFAULTS",
    "RECORDED",
    "Candidate",
    "Fidelity",
    "Objective",
    "Options",
    "Ranked",
    "ReplayResult",
    "WindowRow",
    "parsed",
    "replay",
    "spelled",
]
