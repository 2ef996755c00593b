"""`loadmanager audit`: who changed what, from where, and what was refused.

`loadmanager operations`: changes that were sent with a key, or without waiting, with their answers.
"""

from __future__ import annotations

import time
from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import NAMESPACE, segment
from loadmanager_api.cli.options import changes, cursor_option, shows, since_option, since_query
from loadmanager_api.cli.printing import age, echo, show, show_pairs
from loadmanager_api.cli.remote import Remote


@click.command()
@click.option("--by", metavar="PRINCIPAL", help="Only requests of this principal.")
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only about this namespace.")
@click.option("--action", help="Only this action, such as unload_bundle.")
@click.option("--result", type=click.Choice(["done", "refused", "failed"]), help="Only with this result.")
@since_option
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=100,
    help="Number of entries at most.  [default: 100]",
)
@cursor_option
@shows
def audit(remote: Remote, since: int | None, limit: int, cursor: str | None, **filters: str | None) -> None:
    """Show who asked for which change, from where, and what became of it; newest first."""
    query = {**filters, **since_query(since), "limit": str(limit), "cursor": cursor}
    found = run(ask(remote, "GET", "/v1/audit", query=query))
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["at_ms"] / 1000)),
            each["principal"] if each["how"] != "unverified" else f"{each['principal']}?",
            each["address"],
            each["action"],
            each["about"],
            each["result"] if each["result"] == "done" else f"{each['result']} {each['status']}",
            each["detail"],
        )
        for each in found["entries"]
    ]
    columns = ("when", "by", "from", "action", "about", "result", "detail")
    show(remote, found, columns, rows, empty="nothing was asked for, as far as these filters say")
    if found["next"] is not None and remote.for_people:
        echo(f"older entries: --cursor {found['next']}", err=True)


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
