"""`loadmanager bundles`: lists bundles with state and owner; cancels moves."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.bundle_policies import POLICY_COMMANDS
from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.history import history
from loadmanager_api.cli.names import BROKER, BUNDLE, NAMESPACE
from loadmanager_api.cli.options import Remote, asks_a_broker
from loadmanager_api.cli.printing import done, show, show_pairs
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State

PAGE = 1_000


@click.group()
def bundles() -> None:
    """List, pin, exclude and quarantine bundles; cancel moves and splits."""


@bundles.command("list")
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only this namespace.")
@click.option("-s", "--state", type=click.Choice([state.value for state in State]), help="Only this state.")
@click.option("--owner", metavar="HOST:PORT", type=BROKER, help="Only bundles of this broker.")
@click.option("--limit", type=click.IntRange(1), default=PAGE, show_default=True, help="Number of bundles at most.")
@asks_a_broker
def list_(remote: Remote, namespace: str | None, state: str | None, owner: str | None, limit: int) -> None:
    """List bundles in the order of their names."""
    found, more = run(_collect(remote, {"namespace": namespace, "state": state, "owner": owner}, limit))
    rows = [(b["bundle"], b["state"], _owner(b), b["token"]) for b in found]
    show(remote, found, ("bundle", "state", "owner", "token"), rows, empty="no bundles")
    if more:
        echo(f"these are the first {limit}; there are more: give a greater --limit", err=True)


def _owner(bundle: dict[str, Any]) -> str | None:
    if bundle["owner"] is None:
        return None
    dead = "" if bundle["owner_live"] else " (dead)"
    target = f" → {bundle['target']}" if bundle["target"] else ""
    return f"{bundle['owner']}{dead}{target}"


async def _collect(remote: Remote, query: dict[str, str | None], limit: int) -> tuple[list[dict[str, Any]], bool]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while len(found) < limit:
        page = await ask(
            remote, "GET", "/v1/bundles", query={**query, "limit": str(min(PAGE, limit - len(found))), "after": after}
        )
        found += page["bundles"]
        after = page["next"]
        if after is None:
            break
    return found, after is not None


@bundles.command("show")
@click.argument("bundle", type=BUNDLE)
@asks_a_broker
def show_(remote: Remote, bundle: Bundle) -> None:
    """Show everything that the asked broker knows of one bundle."""
    found = run(ask(remote, "GET", f"/v1/bundles/{bundle}"))
    names = ("bundle", "state", "owner", "incarnation", "owner_live", "target", "token", "revision", "partition")
    pairs: list[tuple[str, object]] = [(name.replace("_", " "), found[name]) for name in names]
    pairs.append(("last record", f"{found['last_action']} by {found['last_actor']}"))
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
@asks_a_broker
def cancel(remote: Remote, bundle: Bundle) -> None:
    """Cancel the transfer or split of a bundle: it stays where it is, whole."""
    run(ask(remote, "POST", f"/v1/bundles/{bundle}/cancel"))
    done(remote, f"the transfer or split of {bundle} is cancelled", bundle=str(bundle))


bundles.add_command(history)
