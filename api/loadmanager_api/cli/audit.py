"""`loadmanager audit`: who changed what, from where, and what was refused.

`loadmanager operations`: changes that were sent with a key, or without waiting, with their answers.
"""

from __future__ import annotations

import time
from typing import Any

import click

from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import NAMESPACE
from loadmanager_api.cli.options import cursor_option, since_option
from loadmanager_api.cli.printing import age, echo, show
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Request, commands


def _show_audit(remote: Remote, found: dict[str, Any]) -> None:
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


(audit,) = commands([
    Request("audit", "GET /v1/audit",
        "Show who asked for which change, from where, and what became of it; newest first.",
        (click.option("--by", metavar="PRINCIPAL", help="Only requests of this principal."),
        click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE,
        help="Only about this namespace."), click.option("--action", help="Only this action, such as unload_bundle."),
        click.option("--result", type=click.Choice(["done", "refused", "failed"]), help="Only with this result."),
        since_option, click.option("--limit", metavar="N", type=click.IntRange(1, 1_000), default=100,
        help="Number of entries at most.  [default: 100]"), cursor_option), view=_show_audit),
])  # fmt: skip


def _state(each: dict[str, Any]) -> str:
    return each["state"] if each["status"] is None else f"{each['state']} ({each['status']})"


STATES = ("running", "cancelling", "done", "failed", "lost")
_OPERATION = click.argument("operation")
_AT = "/v1/operations"

ROWS = (
    Request("list", f"GET {_AT}",
        "List the last operations, newest first: your own, or those of all for viewers of the cluster.",
        (click.option("--state", type=click.Choice(STATES), help="Only operations in this state."),
        click.option("--by", metavar="PRINCIPAL", help="Only operations of this principal."), click.option("--limit",
        metavar="N", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Number at most.")),
        columns={"operation": "id", "state": _state, "action": "action", "about": "about", "by": "principal",
        "age": lambda each: age(each["begun_ms"])}, empty="no operations"),
    Request("show", f"GET {_AT}/{{operation}}", "Show one operation, with its progress and its answer.", (_OPERATION,)),
    Request("cancel", f"POST {_AT}/{{operation}}/cancel",
        "Have an operation stopped by its broker. What was done stays; a move under way is completed.", (_OPERATION,),
        done="operation {id} is {state}"),
)  # fmt: skip


@click.group(cls=Group, commands=commands(ROWS))
def operations() -> None:
    """Show changes that were sent with a key, or without waiting; cancel them."""
