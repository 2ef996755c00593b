"""`loadmanager audit`: who changed what, from where, and what was refused."""

from __future__ import annotations

import time

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.names import NAMESPACE
from loadmanager_api.cli.options import cursor_option, shows, since_option, since_query
from loadmanager_api.cli.printing import show
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
