"""`loadmanager operations`: changes that were sent with a key, or without waiting, with their answers."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import changes, shows
from loadmanager_api.cli.printing import age, show, show_pairs
from loadmanager_api.cli.remote import Remote

STATES = ("running", "cancelling", "done", "failed", "lost")


@click.group(cls=Group)
def operations() -> None:
    """Show changes that were sent with a key, or without waiting; cancel them."""


@operations.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only operations in this state.")
@click.option("--by", metavar="PRINCIPAL", help="Only operations of this principal.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Number at most."
)
@shows
def list_(remote: Remote, state: str | None, by: str | None, limit: int) -> None:
    """List the last operations, newest first: your own, or those of all for viewers of the cluster."""
    found = run(ask(remote, "GET", "/v1/operations", query={"state": state, "by": by, "limit": str(limit)}))
    rows = [
        (each["id"], _state(each), each["action"], each["about"], each["principal"], age(each["begun_ms"]))
        for each in found
    ]
    show(remote, found, ("operation", "state", "action", "about", "by", "age"), rows, empty="no operations")


@operations.command("show")
@click.argument("operation")
@shows
def show_(remote: Remote, operation: str) -> None:
    """Show one operation, with its progress and its answer."""
    found = run(ask(remote, "GET", f"/v1/operations/{segment(operation)}"))
    show_pairs(remote, found, list(found.items()))


@operations.command()
@click.argument("operation")
@changes
def cancel(remote: Remote, operation: str) -> None:
    """Have an operation stopped by its broker. What was done stays; a move under way is completed."""
    found = run(ask(remote, "POST", f"/v1/operations/{segment(operation)}/cancel"))
    if remote.for_people:
        echo(f"operation {found['id']} is {found['state']}")


def _state(each: dict[str, Any]) -> str:
    return each["state"] if each["status"] is None else f"{each['state']} ({each['status']})"
