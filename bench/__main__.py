"""`python -m bench [NAME …] [--log sqlite|kafka]`: runs the named benches, all by default, one after another."""

from __future__ import annotations

import argparse
import importlib

NAMES = (
    *(
        "channel",
        "start",
        "snapshot",
        "soak",
        "lookup",
        "secured",
        "broker",
        "attacks",
        "assign",
        "transfer",
        "split",
        "failover",
        "calm",
    ),
    *("rolling", "recover", "turns", "watches", "subscribers", "dashboard", "balance", "plan_speed", "plan_exact"),
    *("old_new", "load_data", "history_audit", "lake_format", "ingest", "analyse", "first_answers", "replay"),
    *("batch", "batch_rows", "batch_pipeline", "allocate", "rebalance", "chaos", "heartbeats", "lag"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--log", choices=("sqlite", "kafka"), default="sqlite", help="what carries the cluster")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        importlib.import_module(f"bench.{name}").run(arguments.log)


if __name__ == "__main__":
    main()
