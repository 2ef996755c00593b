"""Explore a world of the size given, and print what was visited."""

from __future__ import annotations

import argparse
import time

from tests.explorer.explorer import Budget, begin, explore

parser = argparse.ArgumentParser(description=__doc__)
for name, value in (("records", 3), ("ticks", 3), ("elections", 1), ("suspicions", 1), ("losses", 0), ("copies", 0)):
    parser.add_argument(f"--{name}", type=int, default=value)
parser.add_argument("--most", type=int, default=10_000_000, help="states at most")
parser.add_argument("--settled-each", type=int, default=100, help="check each n-th state for being served again")
options = parser.parse_args()
names = ("records", "ticks", "elections", "suspicions", "losses", "copies")
budget = Budget(**{name: getattr(options, name) for name in names})
began = time.perf_counter()
found = explore(begin(budget), most=options.most, settled_each=options.settled_each)
took_s = time.perf_counter() - began
print(f"{found.states:,} states, {found.depth} events deep, {'all' if found.complete else 'not all'}, {took_s:.0f} s")
if found.violation:
    raise SystemExit(found.scenario())
