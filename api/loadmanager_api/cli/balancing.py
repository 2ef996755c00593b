"""`loadmanager balancing`, `pause`, `resume`: shows the state of balancing, and pauses it."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import BROKER, NAMESPACE
from loadmanager_api.cli.options import changes, shows
from loadmanager_api.cli.plans import author_option, reason_option
from loadmanager_api.cli.printing import age, done, hanging, show, show_pairs
from loadmanager_api.cli.remote import Remote


@click.group(cls=Group)
def balancing() -> None:
    """Show the state of balancing."""


@balancing.command(short_help="Show the last round, moves under way, limits, pauses, spread.")
@shows
def status(remote: Remote) -> None:
    """Show what the last round decided, what is under way, paused or held back, and how uneven the usage is."""
    found = run(ask(remote, "GET", "/v1/balancing"))
    limits, last = found["limits"], found["last"]
    pairs: list[tuple[str, object]] = [
        ("balancing", _mode(found)),
        ("strategy", found["strategy"]),
        ("spread", f"{100 * found['spread']:.1f} % above the mean, tolerance {100 * found['tolerance']:.1f} %"),
        ("paused", _paused(found["paused"])),
        ("under way", f"{found['in_flight']['total']} of {limits['total']}{_by_broker(found)}"),
        ("open plans", ", ".join(f"{p['id']} ({p['state']})" for p in found["open_plans"])),
    ]
    if last:
        pairs.append(("last round", f"{last['id']}, {age(last['at_ms'])} ago, by {last['leader']}: {last['reason']}"))
        if last["certificate"]:
            pairs.append(("certificate", last["certificate"]["text"]))
    show_pairs(remote, found, pairs)
    if not remote.for_people or not last:
        return
    rows = [
        (m["bundle"], m["source"], m["destination"], m["stage"], m["outcome"], m["detail"] or m["reason"])
        for m in last["moves"]
    ]
    if rows:
        echo()
        show(remote, found, ("bundle", "from", "to", "stage", "", "why"), rows)
    for line in found["held"]:
        echo(hanging("  held back: ", "    ", line))


def _mode(found: dict[str, Any]) -> str:
    if not found["balancing"]:
        return "off"
    return "on, each move is reviewed" if found["review"] else "on"


def _paused(paused: dict[str, Any]) -> str:
    words = [*([f"the cluster ({paused['reason'] or 'no reason given'})"] if paused["cluster"] else [])]
    return ", ".join([*words, *paused["namespaces"], *paused["brokers"]]) or "nothing"


def _by_broker(found: dict[str, Any]) -> str:
    by_broker = found["in_flight"]["by_broker"]
    return f" ({', '.join(f'{name} {count}' for name, count in sorted(by_broker.items()))})" if by_broker else ""


namespace_option = click.option(
    "-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only this namespace."
)
broker_option = click.option("--broker", metavar="HOST:PORT", type=BROKER, help="Only moves from and to this broker.")


@click.command(short_help="Pause automatic moves.")
@namespace_option
@broker_option
@author_option
@reason_option
@changes
def pause(remote: Remote, namespace: str | None, broker: str | None, author: str, reason: str) -> None:
    """Start no more automatic moves, nor moves of plans: of a namespace, from and to a broker, or of the cluster."""
    _set(remote, "pause", namespace, broker, author, reason)


@click.command(short_help="End a pause.")
@namespace_option
@broker_option
@author_option
@reason_option
@changes
def resume(remote: Remote, namespace: str | None, broker: str | None, author: str, reason: str) -> None:
    """End the pause of a namespace, a broker, or the cluster."""
    _set(remote, "resume", namespace, broker, author, reason)


def _set(remote: Remote, what: str, namespace: str | None, broker: str | None, author: str, reason: str) -> None:
    if namespace is not None and broker is not None:
        raise click.UsageError("give --namespace or --broker, not both")
    body = {"namespace": namespace, "broker": broker, "author": author, "reason": reason}
    found = run(ask(remote, "POST", f"/v1/balancing/{what}", body=body))
    subject = namespace or broker or "the cluster"
    verb = "is paused" if what == "pause" else "is no longer paused" if found["changed"] else "was not paused"
    done(remote, f"{subject} {verb}; paused now: {_paused(found)}", **found)
