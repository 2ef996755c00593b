"""The group `loadmanager history` and its commands, each a module that is imported when it is used."""

from __future__ import annotations

import click

from loadmanager_api.cli.lazy import LazyGroup

JOBS = "loadmanager_api.cli.load_history."

COMMANDS = {
    "jars": (JOBS + "jars", "jars", "Bring what Spark needs; once, and the only download there is."),
    "ingest": (JOBS + "ingest", "ingest", "Take what is new in the log into the lake, once or for ever."),
    "analyse": (JOBS + "analyse", "analyse", "Imbalance, hot bundles, forecasts, transfers, outages, capacity …"),
    "audit": (JOBS + "audit", "audit", "Judge every record of the channel again, and check every invariant."),
    "replay": (JOBS + "replay", "replay", "What other strategies and settings would have made of the recorded load."),
    "advise": (JOBS + "advise", "advise", "Which settings and moves would do better, for the leader."),
    "report": (JOBS + "report", "report", "One page with pictures, that needs no network."),
    "maintain": (JOBS + "maintain", "maintain", "Compact small files, drop what is too old."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def history() -> None:
    """Every load report, state change and decision, kept in a lakehouse and asked about. Needs the extra `history`.

    Begin with `jars`, then `ingest`. Each job works on the lake that --lake names, and publishes what it found below it
    for brokers to show.
    """
