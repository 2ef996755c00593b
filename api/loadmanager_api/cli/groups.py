"""`loadmanager groups`: consumer groups, their members, backlog and rebalances."""

from __future__ import annotations

import json
from typing import Any

import click

from loadmanager.consumers.coordinator.messages import group_key
from loadmanager_api.cli.client import ask, ask_all, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import NameType, segment
from loadmanager_api.cli.options import confirm, disrupts, shows
from loadmanager_api.cli.printing import age, echo, show, show_answer, show_pairs
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Given, Request, commands

STRATEGIES = (
    "STICKY", "WEIGHTED_STICKY", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM_NEARBY-AVG",
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE", "MACHINE_ROOM_NEARBY-CONSISTENT_HASH", "CONFIG",
)  # fmt: skip


def _name(given: str) -> str:
    """Its `group.id`."""
    return group_key(given).full_name.partition("://")[2]


def _path(group: str) -> str:
    tenant, namespace, rest = group.split("/", 2)
    return f"{tenant}/{namespace}/{segment(rest)}"


GROUP = NameType("group", _name, "groups", _path)
_COORDINATED = click.argument("group", metavar="TENANT/NAMESPACE/GROUP", type=GROUP)


def _without_scheme(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    return given.partition("://")[2] or given


_OF_ANY = click.argument("group", callback=_without_scheme)
_AT = "/v1/groups/{group}"
_DIVIDERS = {"server": "coordinator", "client": "members"}


def _with_offsets(given: Given) -> str:
    return " with its offsets" if given["offsets"] else ""


def _strategy(given: Given) -> dict[str, Any]:
    body, file = {"strategy": given["strategy"]}, given["config_file"]
    if file is not None:
        try:
            body["config"] = json.load(file)
        except ValueError as error:
            raise click.UsageError(f"--config {file.name} is not JSON: {error}") from None
    return body


def _show_filtered(remote: Remote, found: dict[str, Any]) -> None:
    if not remote.for_people:
        show_answer(remote, found)
        return
    about = "" if found["exact"] else f"about ({found['low']} to {found['high']}) "
    echo(f"{about}{found['messages']} records pass: {found['matched']} of {found['scanned']} looked at")


ROWS = (
    Request("list", "GET /v1/groups", "List consumer groups: those that brokers coordinate, and Kafka's own.",
        (click.option("-c", "--coordinated", is_flag=True,
        help="Only groups that brokers coordinate, not Kafka's own."),), pages=True,
        columns={"group": "group", "coordinated by": lambda each: "broker" if each["coordinated"] else "Kafka"},
        empty="no consumer groups"),
    Request("delete", f"DELETE {_AT}",
        "Forget a group without members, with its settings. Kafka deletes its offsets when they expire.",
        (_COORDINATED, click.option("--offsets", is_flag=True, help="Delete its committed offsets in Kafka too.")),
        confirm=lambda given: f"This forgets {given['group']}{_with_offsets(given)}, and its settings",
        done=lambda given: f"{given['group']} is deleted{_with_offsets(given)}" + ("" if given["offsets"] else
        "; Kafka keeps its offsets until they expire: delete --offsets removes them")),
    Request("rebalance", f"POST {_AT}/rebalance", "Divide the partitions of a group again.", (_COORDINATED,
        click.option("--by-lag", is_flag=True, help="Weight partitions by their current lag; for WEIGHTED_STICKY.")),
        done="{group} is divided again; groups rebalances shows what moves"),
    Request("rebalances", f"GET {_AT}/rebalances",
        "Show the last rebalances of a group: why, what moved, and how long partitions paused.", (_COORDINATED,),
        pages=True, columns={"ago": lambda each: age(each["at_ms"]), **{name: name for name in ("why", "members",
        "moved", "kept")}, "balance": lambda each: f"{each['balance_degree']:.2f}",
        "settled ms": lambda each: "going on" if each["settled_ms"] is None else each["settled_ms"],
        "longest pause ms": "pause_max_ms", "of": "worst"}, empty="no rebalances"),
    Request("set-mode", f"PATCH {_AT}",
        "Set who divides a group's partitions: its coordinator (server), or its members (client).",
        (_COORDINATED, click.argument("mode", type=click.Choice(list(_DIVIDERS)))),
        done=lambda given: f"{given['group']} is divided by its {_DIVIDERS[given['mode']]}"),
    Request("set-strategy", f"PATCH {_AT}", "Set how a group's partitions are divided.\n\n"
        "STICKY, WEIGHTED_STICKY, AVG, AVG_BY_CIRCLE and CONSISTENT_HASH share evenly. MACHINE_ROOM_NEARBY-AVG, "
        "-AVG_BY_CIRCLE and -CONSISTENT_HASH do so in each rack by itself. CONFIG gives each member what --config "
        "says.", (_COORDINATED, click.argument("strategy", metavar="STRATEGY",
        type=click.Choice(STRATEGIES, case_sensitive=False)), click.option("--config", "config_file",
        type=click.File(encoding="utf-8"), metavar="FILE",
        help='For CONFIG: JSON, by name of a member and by topic its partitions: {"reader-0": {"orders": [0, 1]}}.')),
        body=_strategy, done="{group} is divided by {strategy}",
        facts=lambda given: {name: given[name] for name in ("group", "strategy")}),
    Request("filtered-lag", "GET /v1/backlog/filtered?group",
        "Estimate how much of a group's lag in a topic its consumers' filter lets through, from a sample of the "
        "records.\n\nWhat is given of --key, --header and --contains must all hold.", (_OF_ANY,
        click.option("-t", "--topic", metavar="TOPIC", required=True, help="The topic."),
        click.option("--key", metavar="TEXT", help="Records with this key."),
        click.option("--header", metavar="NAME=VALUE", help="Records with this header."),
        click.option("--contains", metavar="TEXT", help="Records with this text in the value."),
        click.option("--scanned", type=click.IntRange(1, 20_000),
        metavar="N", help="Number of records to look at.  [default: 20000]")), view=_show_filtered,
        short="Estimate how much of a lag passes a filter."),
)  # fmt: skip


@click.group(cls=Group, commands=commands(ROWS))
def groups() -> None:
    """Show consumer groups and their backlog; rebalance partitions, reset offsets."""


@groups.command()
@_COORDINATED
@shows
def describe(remote: Remote, group: str) -> None:
    """Show a group that brokers coordinate, with its members."""
    found = run(ask(remote, "GET", f"/v1/groups/{_path(group)}"))
    members = run(ask_all(remote, f"/v1/groups/{_path(group)}/members"))
    if not remote.for_people:
        show_answer(remote, {**found, "members": members})
        return
    place = ("group", "coordinator", "creator")
    shown = (*place, "strategy", "mode", "generation", "topics", "partitions", "moving", "unread")
    show_pairs(remote, found, [(name, found[name]) for name in shown])
    echo("")
    its = ("partitions", "giving up", "capacity", "rack", "name", "session s", "reads")
    columns = ("member", "client id", "host", *its)
    rows = [
        (
            each["member"],
            each["client_id"],
            each["host"],
            _count(each["partitions"]),
            _count(each["giving_up"]),
            each["capacity"],
            each["rack"],
            each["name"],
            each["session_timeout_ms"] / 1000,
            _ranges(each["partitions"]),
        )
        for each in members
    ]
    show(remote, members, columns, rows, empty="no members")


@groups.command(short_help="Show the backlog of a group, of Kafka's own groups too.")
@_OF_ANY
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.  [default: all that the group reads]")
@click.option("-p", "--partitions", is_flag=True, help="A row for each partition, not for each topic.")
@click.option(
    "--ages",
    type=click.IntRange(0, 1_000),
    default=0,
    metavar="N",
    help="Read the age of the oldest records in the N partitions with the largest lags.",
)
@shows
def lag(remote: Remote, group: str, topic: str | None, partitions: bool, ages: int) -> None:
    """Show the backlog of a group (its group.id), and when it will be gone."""
    query = {"group": group, "topic": topic, "ages": str(ages) if ages else None}
    total = run(ask(remote, "GET", "/v1/backlog", query=query))
    rows = run(ask_all(remote, f"/v1/backlog/{'partitions' if partitions else 'topics'}", query))
    if not remote.for_people:
        show_answer(remote, {**total, "partitions" if partitions else "topics": rows})
        return
    place = ("topic", "partition", "consumer", "end") if partitions else ("topic", "queues")
    split = ("in_flight", "available") if any(each["in_flight"] for each in rows) else ()
    counts = ("deleted",) if partitions else ("deleted", "uncommitted", "unknown")
    columns = (*place, "lag", *(name.replace("_", " ") for name in split), "oldest", *counts)
    cells = [
        (
            *(each[name] for name in place),
            *(_messages(each[name]) for name in ("lag", *split)),
            _oldest(each["lag"]),
            *(each[name] for name in counts),
        )
        for each in rows
    ]
    show(remote, rows, columns, cells, empty="the group has no offsets")
    forecast = total["forecast"]
    when = "" if forecast["drain_s"] is None else f" in {forecast['drain_s']:.0f} s"
    outlook = {"drains": f"gone{when}", "never": "never gone", "unknown": "forecast unknown", "empty": "nothing waits"}
    echo(f"\n{total['messages']} records wait; {outlook[forecast['outlook']]}: {forecast['why']}")


@groups.command("reset-offsets", short_help="Move a running group to other offsets.")
@_COORDINATED
@click.option(
    "--to",
    required=True,
    metavar="POSITION",
    help="earliest, latest, an offset (42), records forward or back (+10, -10), or a time (2030-01-31T12:00:00Z).",
)
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.  [default: all that the group reads]")
@click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help="Only this partition of --topic; repeatable.",
)
@click.option(
    "--stop-timeout",
    "stop_s",
    type=click.FloatRange(0.1, 600),
    default=60.0,
    metavar="SECONDS",
    help="How long members may take to stop reading there.  [default: 60]",
)
@disrupts
def reset_offsets(
    remote: Remote, group: str, to: str, topic: str | None, partitions: tuple[int, ...], stop_s: float
) -> None:
    """Move a running group to other offsets. Its members stop reading there, and continue by themselves."""
    if partitions and topic is None:
        raise click.UsageError("--partition is of one topic: name it with --topic")
    confirm(remote, f"This lets {group} skip records, or read them again")
    body = {"to": to, "topic": topic, "partitions": list(partitions) or None, "timeout_s": stop_s}
    found = run(ask(remote, "PUT", f"/v1/groups/{_path(group)}/offsets", body=body, previews=True))
    columns = ("topic", "partition", "before", "after")
    rows = [tuple(each[name] for name in columns) for each in found["steps"]]
    show(remote, found, columns, rows)
    if remote.for_people:
        would = "would " if found["dry_run"] else ""
        left = f"; {found['left']} more have no offset to count from, and stay as they are" if found["left"] else ""
        echo(
            f"\n{found['group']} {would}{'skip' if would else 'skips'} {found['skipped']} records and "
            f"{'read' if would else 'reads'} {found['again']} again, in {found['partitions']} partitions{left}"
        )


def _count(partitions: dict[str, list[int]]) -> int:
    return sum(len(its) for its in partitions.values())


def _ranges(partitions: dict[str, list[int]]) -> str:
    """`orders 0-2,5; carts 1`."""
    return "; ".join(f"{topic} {_runs(numbers)}" for topic, numbers in partitions.items())


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run_)) for run_ in runs)


def _messages(figure: dict[str, Any] | None) -> int | None:
    return None if figure is None else figure["messages"]


def _oldest(figure: dict[str, Any] | None) -> str | None:
    latency_s = None if figure is None else figure["latency_s"]
    return None if latency_s is None else f"{latency_s:.0f}s"
