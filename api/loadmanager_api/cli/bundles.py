"""`loadmanager bundles`: lists bundles with state and owner; cancels moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from loadmanager_api.cli.bundle_policies import POLICY_COMMANDS
from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.history import history
from loadmanager_api.cli.names import BROKER, BUNDLE, NAMESPACE
from loadmanager_api.cli.options import changes, shows
from loadmanager_api.cli.printing import done, show, show_pairs
from loadmanager_api.cli.remote import Remote
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State

PAGE = 1_000


@click.group(cls=Group)
def bundles() -> None:
    """List, pin, exclude and quarantine bundles; cancel moves and splits."""


@bundles.command("list")
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only this namespace.")
@click.option(
    "-s",
    "--state",
    metavar="STATE",
    type=click.Choice([state.value for state in State]),
    help=f"Only this state: {', '.join(State)}.",
)
@click.option("--owner", metavar="HOST:PORT", type=BROKER, help="Only bundles of this broker.")
@click.option(
    "--order",
    type=click.Choice(["name", "load"]),
    default="name",
    help="load: only bundles of known load, those with the most messages first.  [default: name]",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=PAGE, show_default=True, help="Number of bundles at most."
)
@shows
def list_(remote: Remote, limit: int, **query: str | None) -> None:
    """List bundles. The rate of messages is known of each broker's hottest ones."""
    found, more = run(_collect(remote, query, limit))
    rows = [
        (b["bundle"], b["state"], owner_of(b), b["rate_msg_s"], b["token"], b["incarnation"], b["revision"], _last(b))
        for b in found
    ]
    columns = ("bundle", "state", "owner", "msg/s", "token", "incarnation", "revision", "last record")
    show(remote, found, columns, rows, empty="no bundles", wide=4)
    for bundle in found if remote.for_people else ():
        if bundle["waits"]:
            echo(f"{bundle['bundle']} waits: {bundle['waits']}", err=True)
    if more:
        echo(f"these are the first {limit}; there are more: give a greater --limit", err=True)


def owner_of(bundle: Mapping[str, Any]) -> str | None:
    """Its owner, whether that is dead, and where it is going; why it has none, if that is a quarantine."""
    if bundle["owner"] is None:
        return "none (quarantined)" if bundle.get("waits") else None
    dead = "" if bundle["owner_live"] else " (dead)"
    target = f" → {bundle['target']}" if bundle["target"] else ""
    return f"{bundle['owner']}{dead}{target}"


def _last(bundle: dict[str, Any]) -> str:
    return f"{bundle['last_action']} by {bundle['last_actor']}"


async def _collect(remote: Remote, query: dict[str, str | None], limit: int) -> tuple[list[dict[str, Any]], bool]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while len(found) < limit:
        page, after = await page_of(remote, query, after, min(PAGE, limit - len(found)))
        found += page
        if after is None:
            break
    return found, after is not None


async def page_of(
    remote: Remote, query: Mapping[str, str | None], after: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """The bundles of the query behind `after`, and what the next page is behind; None: this is the last one."""
    page = await ask(remote, "GET", "/v1/bundles", query={**query, "limit": str(limit), "cursor": after})
    return page["bundles"], page["next"]


@bundles.command("show")
@click.argument("bundle", type=BUNDLE)
@shows
def show_(remote: Remote, bundle: Bundle) -> None:
    """Show everything that the asked broker knows of one bundle."""
    found = run(ask(remote, "GET", f"/v1/bundles/{bundle}"))
    names = ("bundle", "state", "owner", "incarnation", "owner_live", "target", "token", "revision", "partition")
    pairs: list[tuple[str, object]] = [(name.replace("_", " "), found[name]) for name in names]
    pairs.append(("last record", _last(found)))
    if found["cuts"]:
        pairs.append(("cuts", ", ".join(found["cuts"])))
    for name, value in (found["load"] or {}).items():
        if name != "sampled_ms":
            pairs.append((f"load {name}", value))
    show_pairs(remote, found, pairs)


for command in POLICY_COMMANDS:
    bundles.add_command(command)


@bundles.command(short_help="Cancel the transfer or split of a bundle.")
@click.argument("bundle", type=BUNDLE)
@changes
def cancel(remote: Remote, bundle: Bundle) -> None:
    """Cancel the transfer or split of a bundle: it stays where it is, whole."""
    run(ask(remote, "POST", f"/v1/bundles/{bundle}/cancel"))
    done(remote, f"the transfer or split of {bundle} is cancelled", bundle=str(bundle))


bundles.add_command(history)
