"""Generated load histories: silver and gold rows at any size, from the playground's workloads.

`world.py` says what is made and who holds what, `loads.py` what that costs, `reports.py` and `moving.py` how it looks
in the tables; `generated.py` makes DataFrames of it on the executors, or a lake without Spark. The same world gives the
same rows, on any machine.
"""

from __future__ import annotations

from bench.generating.generated import generated, write
from bench.generating.world import World

__all__ = ["World", "generated", "write"]
