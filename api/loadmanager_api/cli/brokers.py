"""`loadmanager brokers`: members of the cluster, the leader, drains."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from loadmanager_api.cli.bundle_policies import keep_drained
from loadmanager_api.cli.client import NotNow, ask, run
from loadmanager_api.cli.config import PULSAR_COMMANDS
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.names import BROKER, segment
from loadmanager_api.cli.options import Remote, asks_a_broker
from loadmanager_api.cli.printing import age, done, show, show_pairs

POLL_S = 0.2


@click.group()
def brokers() -> None:
    """List brokers, show the leader, drain brokers."""


@brokers.command("list", short_help="List every broker, also gone ones that hold bundles.")
@click.argument("cluster", required=False)
@asks_a_broker
def list_(remote: Remote, cluster: str | None) -> None:
    """List every registered broker, and brokers that are gone but still hold bundles.

    CLUSTER is there for pulsar-admin: if it is not the cluster of the asked broker, the list is empty.
    """
    if cluster is not None:
        run(ask(remote, "GET", f"/admin/v2/brokers/{segment(cluster)}"))
    found = run(ask(remote, "GET", "/v1/brokers"))
    columns = ("broker", "incarnation", "state", "bundles", "cpu %", "memory %", "msg/s", "up", "admin")
    rows = [_row(broker) for broker in found]
    shown = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    show(remote, found, columns[:shown], [row[:shown] for row in rows])
    for broker in found if remote.output == "table" else ():
        if broker["suspected"]:
            echo(broker["suspected"], err=True)


def _row(broker: dict[str, Any]) -> tuple[object, ...]:
    load = broker["load"] or {}
    rate_msg_s = load.get("in_rate_msg_s", 0.0) + load.get("out_rate_msg_s", 0.0)
    return (
        broker["broker"],
        broker["incarnation"],
        _state(broker),
        broker["bundles"],
        round(load["cpu_percent"], 1) if "cpu_percent" in load else None,
        round(load["memory_percent"], 1) if "memory_percent" in load else None,
        rate_msg_s if load else None,
        age(broker["started_ms"]) if broker["started_ms"] else None,
        broker["admin_url"] if broker["admin_url"] != f"http://{broker['broker']}" else None,  # mostly the same
    )


def _state(broker: dict[str, Any]) -> str:
    if broker["suspected"] or not broker["live"]:
        return "dead"
    if not broker["registered"]:
        return "gone"
    words = [word for word in ("leader", "draining") if broker[word]]
    return ", ".join(words) or "ok"


@brokers.command()
@asks_a_broker
def leader(remote: Remote) -> None:
    """Show the leader."""
    found = run(ask(remote, "GET", "/admin/v2/brokers/leaderBroker"))
    show_pairs(remote, found, [("broker", found["brokerId"]), ("admin", found["serviceUrl"])])


@brokers.command(short_help="Check whether the asked broker could serve at this moment.")
@asks_a_broker
def health(remote: Remote) -> None:
    """Check whether the asked broker is registered and could serve at this moment."""
    found = run(ask(remote, "GET", "/admin/v2/brokers/health"))
    done(remote, found, health=found)


@brokers.command(short_help="Move all bundles of a broker away.")
@click.argument("broker", metavar="HOST:PORT", type=BROKER)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Seconds until the drain gives up.  [default: the setting drain_timeout_s]",
)
@click.option("--force", is_flag=True, help="Drain even if no other broker takes bundles.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the drain has started.")
@click.option("--cancel", is_flag=True, help="End the drain: the broker takes bundles again.")
@click.option("--status", is_flag=True, help="Only show the progress of the drain.")
@click.option(
    "--keep",
    is_flag=True,
    help="Drain by a policy: it outlives restarts of the broker, and the leader moves the bundles.",
)
@asks_a_broker
def drain(
    remote: Remote,
    broker: str,
    timeout_s: float | None,
    force: bool,
    no_wait: bool,
    cancel: bool,
    status: bool,
    keep: bool,
) -> None:
    """Move all bundles of a broker away; the broker takes no more until --cancel."""
    path = f"/v1/brokers/{segment(broker)}/drain"
    if keep:
        found = run(keep_drained(remote, broker, drain=not cancel, force=force))
        then = "takes bundles again" if cancel else f"is drained, until you run: brokers drain {broker} --keep --cancel"
        done(remote, f"{broker} {then}", **found)
    elif cancel:
        run(ask(remote, "DELETE", path))
        done(remote, f"{broker} takes bundles again", broker=broker, draining=False)
    elif status:
        _show(remote, run(ask(remote, "GET", path)))
    else:
        query = {"timeout_s": None if timeout_s is None else str(timeout_s), "force": "true" if force else None}
        _show(remote, run(_drain(remote, path, query, wait=not no_wait)))


async def _drain(remote: Remote, path: str, query: dict[str, str | None], *, wait: bool) -> dict[str, Any]:
    progress = await ask(remote, "PUT", path, query=query)
    left = None
    while wait and progress["running"]:
        if remote.output == "table" and progress["left"] != left:
            left = progress["left"]
            echo(f"{left} of {progress['total']} bundles left", err=True)
        await asyncio.sleep(POLL_S)
        progress = await ask(remote, "GET", path)
    return progress


def _show(remote: Remote, progress: dict[str, Any]) -> None:
    draining, left, total = progress["draining"], progress["left"], progress["total"]
    if not draining:
        text = f"{progress['broker']} is not draining"
    elif left:
        text = f"{progress['broker']} is draining: {left} of {total} bundles left"
    else:
        text = (
            f"{progress['broker']} is drained; it takes no bundles until you run: "
            f"brokers drain {progress['broker']} --cancel"
        )
    done(remote, text, **progress)
    if draining and left and not progress["running"]:
        raise NotNow(f"{left} bundles could not be moved away in time; try again")


for command in PULSAR_COMMANDS:
    brokers.add_command(command)
