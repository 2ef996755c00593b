"""The verdict on each record of the channel: a replay of the log, per partition in offset order, as DataFrames.

    known(state, …) ─▶ where each partition's replay stands, and whether it waits before a record of a newer format
    seed(snapshots, …) ─▶ a state for partitions whose beginning was trimmed before the lake had it
    fold(raw, known, …) ─▶ verdicts, transitions, unreadable records, and the state after them

Verdicts are those of production: `ChannelCore.apply`, one record after the other (`verdicts.py`). A log partition is
sequential by nature; partitions run in parallel. How records are cut into batches changes no row.
"""

from loadmanager.history.folding.job import Folded, fold
from loadmanager.history.folding.seeding import seed
from loadmanager.history.folding.states import SEEDED, Known, Position, known, of_rows, positions

__all__ = ["SEEDED", "Folded", "Known", "Position", "fold", "known", "of_rows", "positions", "seed"]
