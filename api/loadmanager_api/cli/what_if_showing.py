"""Asks what a round would decide under other conditions, and shows it beside what it decides now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.printing import hanging, show_answer
from loadmanager_api.cli.projecting import columns, heading, percent, show_brokers, show_moves
from loadmanager_api.cli.remote import Remote


def show_wish(remote: Remote, wish: Mapping[str, Any], query: Mapping[str, str | None] | None = None) -> None:
    """Show what a round would decide under these conditions. It changes nothing, so a dry run asks it, too."""
    asking = msgspec.structs.replace(remote, dry_run=False)
    show_projections(remote, run(ask(asking, "POST", "/v1/what-if", query=query, body=wish)))


def show_projections(remote: Remote, found: dict[str, Any]) -> None:
    """Show both."""
    if not remote.for_people:
        show_answer(remote, found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    now, then = found["as_it_is"], found["changed"]
    changes = "; ".join(found["changes"]) or "nothing is different"
    echo(hanging("What if: ", "         ", changes), bold=True)
    echo(hanging("", "  ", then["decision"]["reason"]))
    heading("compared")
    columns(
        ("", "as it is", "with the change"),
        [
            ("moves", str(len(now["decision"]["moves"])), str(len(then["decision"]["moves"]))),
            ("load moved", percent(now["load_moved"]), percent(then["load_moved"])),
            ("spread before", percent(now["spread_before"]), percent(then["spread_before"])),
            ("spread after", percent(now["spread_after"]), percent(then["spread_after"])),
            ("mean usage", percent(now["mean"]), percent(then["mean"])),
            ("had to move", _bound(now), _bound(then)),
        ],
    )
    show_brokers(now, then)
    show_moves(then["decision"])
    for note in found["notes"]:
        echo(hanging("\nnote: ", "      ", note))


def _bound(projected: dict[str, Any]) -> str:
    certificate = projected["decision"]["certificate"]
    return "-" if certificate is None else f"{percent(certificate['bound'])} ({certificate['resource']})"
