"""`loadmanager splitting`: what brokers decided about splits and merges, and why a bundle is not split."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import BUNDLE
from loadmanager_api.cli.options import shows
from loadmanager_api.cli.printing import age, show, show_pairs
from loadmanager_api.cli.remote import Remote
from statechannel.law.bundle import Bundle


@click.group(cls=Group)
def splitting() -> None:
    """Show splits, merges and quarantines, and why others did not happen."""


@splitting.command("show")
@shows
def show_(remote: Remote) -> None:
    """Show the asked broker's last look at its own bundles, and recent events."""
    found = run(ask(remote, "GET", "/v1/splitting"))
    if not remote.for_people:
        show(remote, found, (), ())
        return
    looked = found["idle"] or f"{found['looks']} looks, the last one {age(found['looked_ms'])} ago"
    pairs: list[tuple[str, object]] = [("broker", found["broker"]), ("looked", looked)]
    pairs += [("not split", _counted(found["not_split"])), ("not merged", _counted(found["not_merged"]))]
    show_pairs(remote, found, pairs)
    for title, rows in (("above its limits, not split", found["above_limits"]), ("suspects", found["suspects"])):
        if rows:
            echo(f"\n{title}:")
            show(remote, rows, ("bundle", "why"), [line for row in rows for line in _lines(row)])
    echo("\nevents, newest first:")
    events = [(age(e["at_ms"]), e["what"], e["bundle"], e["why"]) for e in found["events"]]
    show(remote, found["events"], ("ago", "what", "bundle", "why"), events, empty="nothing yet")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items(), key=lambda each: -each[1])) or "-"


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    if "rule" in row:
        return [(row["bundle"], f"{row['rule']}: {row['detail']}")]
    return [(row["bundle"], row["why"]), *(("", each) for each in row["evidence"])]


@splitting.command("why")
@click.argument("bundle", type=BUNDLE)
@shows
def why(remote: Remote, bundle: Bundle) -> None:
    """Show why a bundle is not split, and not merged. Ask its owner, with --admin-url."""
    found = run(ask(remote, "GET", f"/v1/splitting/{bundle}"))
    show_pairs(remote, found, [("bundle", found["bundle"]), ("split", found["split"]), ("merge", found["merge"])])
