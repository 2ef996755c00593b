"""`loadmanager bundles pin|unpin|exclude|quarantine|release-quarantine`: policies of single bundles."""

from __future__ import annotations

from typing import Any

import click

from loadmanager.model.policies.effective import intersects
from loadmanager_api.cli.client import ask, ask_all, run
from loadmanager_api.cli.names import BROKER, BUNDLE, segment
from loadmanager_api.cli.options import changes, confirm, disrupts
from loadmanager_api.cli.policies import show_written
from loadmanager_api.cli.remote import Remote
from statechannel.law.bundle import Bundle

_BUNDLE = click.argument("bundle", type=BUNDLE)
_FORCE = click.option("--force", is_flag=True, help="Write the policy even if no broker satisfies it now.")
_REASON = click.option("--reason", metavar="TEXT", help="Reason, for the history.")


@click.command(short_help="Keep a bundle on a broker.")
@_BUNDLE
@click.argument("broker", metavar="[HOST:PORT]", type=BROKER, required=False)
@_FORCE
@_REASON
@changes
def pin(remote: Remote, bundle: Bundle, broker: str | None, force: bool, reason: str | None) -> None:
    """Move a bundle to a broker and keep it there while that broker lives; without HOST:PORT, keep it where it is."""
    found = _patch(remote, bundle, {"pin": broker or "*"}, force=force, reason=reason)
    show_written(remote, f"{bundle} is pinned to {broker or 'where it is'}", found)


@click.command()
@_BUNDLE
@_REASON
@changes
def unpin(remote: Remote, bundle: Bundle, reason: str | None) -> None:
    """Remove the pin of a bundle."""
    show_written(remote, f"{bundle} is no longer pinned", _patch(remote, bundle, {"pin": None}, reason=reason))


@click.command(short_help="Keep a bundle off brokers.")
@_BUNDLE
@click.argument("brokers", metavar="[HOST:PORT…]", type=BROKER, nargs=-1)
@_FORCE
@_REASON
@changes
def exclude(remote: Remote, bundle: Bundle, brokers: tuple[str, ...], force: bool, reason: str | None) -> None:
    """Keep a bundle off these brokers. The list replaces the former one; without brokers, nothing is excluded."""
    found = _patch(remote, bundle, {"exclude": list(brokers) or None}, force=force, reason=reason)
    show_written(remote, f"{bundle} is kept off {', '.join(brokers) or 'no broker'}", found)


@click.command(short_help="Assign a bundle to no broker any more.")
@_BUNDLE
@click.option("--reason", metavar="TEXT", required=True, help="Reason; lookups of the bundle answer with it.")
@disrupts
def quarantine(remote: Remote, bundle: Bundle, reason: str) -> None:
    """Assign a bundle to no broker any more. Its present owner keeps it: unload the bundle to take it away."""
    confirm(remote, f"This quarantines {bundle}: nobody can look it up once its owner has left it")
    found = _patch(remote, bundle, {"quarantined": reason}, reason=reason)
    show_written(remote, f"{bundle} is quarantined: {reason}", found)


@click.command("release-quarantine")
@_BUNDLE
@_REASON
@changes
def release_quarantine(remote: Remote, bundle: Bundle, reason: str | None) -> None:
    """Let a bundle be assigned again, and all ranges that were quarantined with it."""
    written = [each for each in _quarantined(remote) if intersects(each, bundle)] or [bundle]
    found = [_patch(remote, each, {"quarantined": None}, reason=reason) for each in written]
    whole = "" if written == [bundle] else f"; this ends the quarantine of {', '.join(map(str, written))}"
    show_written(remote, f"{bundle} may be assigned again{whole}", found[0])


POLICY_COMMANDS = (pin, unpin, exclude, quarantine, release_quarantine)


async def keep_drained(remote: Remote, broker: str, *, drain: bool, force: bool) -> dict[str, Any]:
    """Set or end a drain that outlives the broker's restarts."""
    query = {"force": "true" if force else None}
    path = f"/v1/policies/broker/{segment(broker)}"
    found: dict[str, Any] = await ask(remote, "PATCH", path, query=query, body={"drain": drain or None}, previews=True)
    return found


def _quarantined(remote: Remote) -> list[Bundle]:
    """The bundles of quarantine documents: they may have been split or merged since."""
    policies = run(ask_all(remote, "/v1/policies", {"kind": "bundle"}))["policies"]
    return [Bundle.parse(each["name"]) for each in policies if each["policy"].get("quarantined")]


def _patch(
    remote: Remote, bundle: Bundle, fields: dict[str, Any], *, force: bool = False, reason: str | None = None
) -> dict[str, Any]:
    query = {"force": "true" if force else None, "reason": reason}
    found: dict[str, Any] = run(
        ask(remote, "PATCH", f"/v1/policies/bundle/{bundle}", query=query, body=fields, previews=True)
    )
    return found
