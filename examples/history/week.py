"""Makes a lake of a week that never was: `python -m examples.history.week LAKE`, in a clone, in some seconds.

Six brokers and sixty bundles, whose load follows the day: half of the namespaces are regions around the clock, the
others tenants with opposite hours. At the weekend it is lower. Bundles move by the clock; each day at 12:30 one broker
dies for ten minutes. The same week comes each time, so that what the pages say of it can be tried.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.generating import World, write

WEEK = World(brokers=6, bundles=60, days=7)


def main(arguments: list[str]) -> None:
    """Make the lake in the folder that is named; it must not be there yet."""
    if len(arguments) != 1:
        sys.exit("usage: python -m examples.history.week LAKE")
    lake = Path(arguments[0])
    if lake.exists():
        sys.exit(f"{lake} is there already: name another folder")
    for table, rows in write(lake, WEEK):
        print(f"{table:<13} {rows:>9,} rows")


if __name__ == "__main__":
    main(sys.argv[1:])
