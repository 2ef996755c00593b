"""Generated load histories: silver and gold rows at any size, from the playground's workloads.

`world.py` says what is made, `spells.py` who holds what, `loads.py` what that costs, `minutes.py`, `reports.py` and
`moving.py` how it looks in the tables; `generated.py` makes DataFrames of it on the executors. The same world gives the
same rows, on any machine.
"""

from __future__ import annotations

from loadmanager.history.generating.generated import generated
from loadmanager.history.generating.world import World

__all__ = ["World", "generated"]
