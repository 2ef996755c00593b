"""Replay: what a cluster's recorded load would have cost under other strategies and settings.

`replay(lake, window, candidates, options)`. How a recorded window is processed:

    silver ─▶ slicing (Spark: what each window needs, side by side) ─▶ on the executors, a window at a time:
        slices ─▶ tiles, walking, presence ─▶ recording (a game, or why there is none)
        ─▶ playing (the production strategies in the simulator's cluster) ─▶ judging, hindsight (costs and their bound)
    ─▶ fidelity (the own settings beside the record), ranking (one row a candidate, with intervals) ─▶ result, pictures

The recorded load does not react: it is what clients asked for while the bundles were where they really were.
docs/replay.md has the method and its limits.
"""

from __future__ import annotations

from loadmanager.history.replay.candidates import DEFAULTS, RECORDED, Candidate, parsed, spelled
from loadmanager.history.replay.job import Options, replay
from loadmanager.history.replay.judging import Objective
from loadmanager.history.replay.result import Fidelity, Ranked, ReplayResult, WindowRow

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
