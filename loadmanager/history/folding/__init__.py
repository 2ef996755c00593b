"""What became of each record of the channel: the fold of the log, per partition in offset order, as DataFrames.

    known(state, …) ─▶ where each partition's fold stands, and whether it is held before a record of a newer format
    seed(snapshots, …) ─▶ a state for partitions whose beginning was trimmed before anybody kept it
    fold(raw, known, …) ─▶ verdicts, transitions, unreadable records, and the state after them

Verdicts are those of production: `ChannelCore.apply`, one record after the other (`verdicts.py`). A log partition is
sequential by nature; partitions run side by side. Which batch a record comes in makes no difference to any row.
"""

from loadmanager.history.folding.job import Folded, fold
from loadmanager.history.folding.seeding import seed
from loadmanager.history.folding.states import SEEDED, Known, Position, kept, known, positions

__all__ = ["SEEDED", "Folded", "Known", "Position", "fold", "kept", "known", "positions", "seed"]
