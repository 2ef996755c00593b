"""`loadmanager brokers`: members of the cluster, the leader, drains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from loadmanager_api.cli.bundles import keep_drained
from loadmanager_api.cli.client import NotNow, Query, ask, ask_all, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.config import PULSAR_ROWS
from loadmanager_api.cli.names import BROKER, segment
from loadmanager_api.cli.options import confirm, disrupts, drains, shows
from loadmanager_api.cli.printing import age, done, echo, show, show_pairs
from loadmanager_api.cli.pulsar import NO_EFFECT, ignored
from loadmanager_api.cli.pulsar import ROWS as PULSARS
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Request, commands, show_written

POLL_S = 0.2


ROWS = (
    Request("leader", "GET /admin/v2/brokers/leaderBroker", "Show the leader.", view=lambda remote,
        found: show_pairs(remote, found, [("broker", found["brokerId"]), ("admin", found["serviceUrl"])])),
    Request("health", "GET /admin/v2/brokers/health",
        "Check whether the asked broker is registered and could serve at this moment.",
        (ignored("-tv", "--topic-version", metavar="V1|V2"),), columns="health"),
)  # fmt: skip


@click.group(cls=Group, commands=commands((*ROWS, *PULSAR_ROWS, *PULSARS["brokers"])))
def brokers() -> None:
    """List brokers, show the leader, drain brokers."""


for name, alias in (("leader", "leader-broker"), ("health", "healthcheck")):
    brokers.add_command(brokers.commands[name], alias)


@brokers.command("list", short_help="List every broker, also gone ones that hold bundles.")
@click.argument("cluster", required=False)
@shows
def list_(remote: Remote, cluster: str | None) -> None:
    """List every registered broker, and brokers that are gone but still hold bundles.

    CLUSTER is there for pulsar-admin: if it is not the cluster of the asked broker, the list is empty.
    """
    if cluster is not None:
        run(ask(remote, "GET", f"/admin/v2/brokers/{segment(cluster)}"))
    found = run(ask_all(remote, "/v1/brokers"))
    columns = ("broker", "incarnation", "state", "bundles", "cpu %", "memory %", "msg/s", "up", "admin", "urls")
    more = ("domain", "version")
    usual = all(broker["admin_url"] in ("", f"http://{broker['broker']}") for broker in found)
    show(remote, found, (*columns, *more), [_row(broker) for broker in found], wide=len(more) + 1 + usual)
    for broker in found if remote.for_people else ():
        if broker["suspected"]:
            echo(broker["suspected"], err=True)
        elif broker.get("unfit"):
            echo(f"{broker['broker']} is unfit: {broker['unfit']}", err=True)


def _row(broker: dict[str, Any]) -> tuple[object, ...]:
    load = broker["load"] or {}
    rate_msg_s = load.get("in_rate_msg_s", 0.0) + load.get("out_rate_msg_s", 0.0)
    return (
        broker["broker"],
        broker["incarnation"],
        state_of(broker),
        broker["bundles"],
        round(load["cpu_percent"], 1) if "cpu_percent" in load else None,
        round(load["memory_percent"], 1) if "memory_percent" in load else None,
        rate_msg_s if load else None,
        age(broker["started_ms"]) if broker["started_ms"] else None,
        broker["admin_url"],
        ", ".join(broker["urls"].values()),
        broker["failure_domain"],
        broker["version"],
    )


def state_of(broker: Mapping[str, Any]) -> str:
    """What it is or does, in a word or two."""
    if broker["suspected"] or not broker["live"]:
        return f"dead for {age(broker['gone_ms'])}" if broker.get("gone_ms") else "dead"
    if not broker["registered"]:
        return "gone"
    words = [word for word in ("leader", "draining", "behind", "unfit") if broker.get(word)]
    return ", ".join(words) or "ok"


def is_ailing(broker: Mapping[str, Any]) -> bool:
    """Returns True if it needs attention: it is dead, suspected, behind or unfit."""
    registered = broker["registered"] and broker["live"] and not broker["suspected"]
    return not registered or bool(broker.get("behind") or broker.get("unfit"))


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
@drains
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
    if not (cancel or status):
        confirm(remote, f"This moves all bundles of {broker} away")
    if keep:
        found = run(keep_drained(remote, broker, drain=not cancel, force=force))
        then = "takes bundles again" if cancel else f"is drained, until you run: brokers drain {broker} --keep --cancel"
        show_written(remote, f"{broker} {then}", found)
    elif cancel:
        run(ask(remote, "DELETE", path))
        done(remote, f"{broker} takes bundles again", broker=broker, draining=False)
    elif status:
        _show(remote, run(ask(remote, "GET", path)))
    else:
        query = {"timeout_s": timeout_s, "force": force}
        _show(remote, run(_drain(remote, path, query, wait=not no_wait)))


async def _drain(remote: Remote, path: str, query: Query, *, wait: bool) -> dict[str, Any]:
    progress = await ask(remote, "PUT", path, query=query)
    left = None
    while wait and progress["running"]:
        if remote.for_people and progress["left"] != left:
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


@brokers.command(short_help="Move all bundles of the asked broker away.")
@click.option("-m", "--max-concurrent-unload-per-sec", type=int, metavar="N", help=NO_EFFECT, expose_value=False)
@click.option("-f", "--forced-terminate-topic", is_flag=True, help=NO_EFFECT, expose_value=False)
@disrupts
def shutdown(remote: Remote) -> None:
    """Move all bundles of the asked broker away; the broker takes no more. Its process ends where it was started.

    `brokers drain HOST:PORT` does the same, whichever broker is asked.
    """
    if len(remote.admin_urls) > 1:
        raise click.UsageError("say which broker: name it alone with --admin-url, or use `brokers drain HOST:PORT`")
    confirm(remote, f"This moves all bundles of the broker at {remote.admin_url} away")
    run(ask(remote, "POST", "/admin/v2/brokers/shutdown"))
    done(remote, f"the broker at {remote.admin_url} moves its bundles away", admin_url=remote.admin_url)
