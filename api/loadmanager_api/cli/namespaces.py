"""`loadmanager namespaces`: create, list, delete, unload, split, merge; groups of namespaces that are kept apart.

`loadmanager topics`: where topics are served, and moving them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click

from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.settings.choices import Algorithm
from loadmanager_api.cli.client import EXIT_REFUSED, EXIT_UNAVAILABLE, Failed, ask, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import BROKER, NAMESPACE, NEW_NAMESPACE, TOPIC, bundle_of, segment, topic_path
from loadmanager_api.cli.options import changes, confirm, disrupts, shows
from loadmanager_api.cli.printing import done, echo, show
from loadmanager_api.cli.pulsar import NAMESPACE_ARGUMENT, NO_EFFECT, ignored
from loadmanager_api.cli.pulsar import ROWS as PULSARS
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Given, Request, commands
from statechannel.law.bundle import FULL_UPPER, Key

_AT = "/admin/v2/namespaces"
_MOST_AT_ONCE = 1_000
_DOMAINS = {"persistent": "persistent", "non_persistent": "non-persistent"}


_TOPIC = click.argument("topic", metavar="TOPIC", type=TOPIC)
_FORCE = click.option("--force", is_flag=True, help="Move even if a policy forbids it; the record says so.")


def _told_unload(given: Given) -> str:
    to = given["destination"]
    return f"the bundle of {given['topic']} was {f'moved to {to}' if to else 'unloaded; the next lookup assigns it'}"


TOPIC_ROWS = (
    Request("unload", "PUT /admin/v2/{topic}/unload?destinationBroker={destination}&force",
        "Take the topic's bundle from its owner, or move it to --dest.", (_TOPIC, click.option("-d", "--dest",
        "destination", metavar="HOST:PORT", type=BROKER, help="New owner of the bundle."), _FORCE), done=_told_unload),
    Request("bundle-range", "GET /lookup/v2/topic/{topic}/bundle", "Show the hash range of the topic's bundle.",
        (_TOPIC,), columns="range"),
)  # fmt: skip


@click.group(cls=Group, commands=commands((*PULSARS["topics"], *TOPIC_ROWS)))
def topics() -> None:
    """Show where topics are served, and move them."""


@topics.command("list", short_help="List topics of a namespace, as far as they are known.")
@click.argument("namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-b", "--bundle", metavar="RANGE", help="Only this bundle: 0x00000000_0x40000000.")
@click.option(
    "-td",
    "--topic-domain",
    "-m",
    "--mode",
    "domain",
    type=click.Choice(["persistent", "non_persistent", "all"]),
    default="all",
    help="Only this domain.",
)
@click.option("-ist", "--include-system-topic", is_flag=True, help=NO_EFFECT, expose_value=False)
@shows
def list_topics(remote: Remote, namespace: str, bundle: str | None, domain: str) -> None:
    """List the topics of a namespace that were created, and the hottest keys of the asked broker's bundles.

    A topic needs no creation, so a service may serve others as well.
    """
    chosen = bundle_of(namespace, bundle) if bundle else None

    names = run(_known(remote, namespace, tuple(_DOMAINS.values()) if domain == "all" else (_DOMAINS[domain],)))
    _show_names(remote, [name for name in names if chosen is None or Key.parse(name).position in chosen])


@topics.command("list-partitioned-topics")
@click.argument("namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-ist", "--include-system-topic", is_flag=True, help=NO_EFFECT, expose_value=False)
@shows
def list_partitioned(remote: Remote, namespace: str) -> None:
    """List the topics of a namespace that were created with partitions."""

    async def names() -> list[str]:
        first = "-partition-0"
        known = await _known(remote, namespace, tuple(_DOMAINS.values()))
        whole = [name.removesuffix(first) for name in known if name.endswith(first)]
        return [name for name in whole if await _partitions(remote, Key.parse(name))]

    _show_names(remote, run(names()))


async def _known(remote: Remote, namespace: str, domains: Sequence[str]) -> list[str]:
    return [name for domain in domains for name in await ask(remote, "GET", f"/admin/v2/{domain}/{namespace}")]


async def _partitions(remote: Remote, topic: Key) -> int:
    return (await ask(remote, "GET", f"/admin/v2/{topic_path(topic)}/partitions"))["partitions"]


def _show_names(remote: Remote, names: list[str]) -> None:
    show(remote, names, ("topic",), [(name,) for name in names], empty="no topics are known")


@topics.command(short_help="Show which broker serves each topic.")
@click.argument("names", metavar="TOPIC…", type=TOPIC, nargs=-1, required=True)
@shows
def lookup(remote: Remote, names: tuple[Key, ...]) -> None:
    """Show which broker serves each topic. A bundle without an owner is assigned."""
    _show_places(remote, run(_looked_up(remote, [str(name) for name in names])))


@topics.command("partitioned-lookup", short_help="Show which broker serves each partition of a topic.")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("-s", "--sort-by-broker", "by_broker", is_flag=True, help="Sort by broker, not by partition.")
@shows
def partitioned_lookup(remote: Remote, name: Key, by_broker: bool) -> None:
    """Show which broker serves each partition of a topic that was created with partitions."""

    async def places() -> list[dict[str, Any]]:
        count = await _partitions(remote, name)
        if count == 0:
            raise Failed(f"{name} was not created with partitions: topics create-partitioned-topic")
        return await _looked_up(remote, [f"{name.full_name}-partition-{number}" for number in range(count)])

    answers = run(places())
    _show_places(remote, sorted(answers, key=lambda answer: answer["broker"] or "") if by_broker else answers)


async def _looked_up(remote: Remote, names: Sequence[str]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for first in range(0, len(names), _MOST_AT_ONCE):
        body = {"topics": names[first : first + _MOST_AT_ONCE]}
        answers += (await ask(remote, "POST", "/v1/lookup", body=body))["answers"]
    return answers


def _show_places(remote: Remote, answers: list[dict[str, Any]]) -> None:
    rows = [
        (a["topic"], a["bundle"], a["broker"], ", ".join((a["urls"] or {}).values()) or a["admin_url"])
        for a in answers
        if a["error"] is None
    ]
    show(remote, answers, ("topic", "bundle", "broker", "urls"), rows, empty="")
    failed = [a for a in answers if a["error"] is not None]
    for answer in failed:
        echo(f"Error: {answer['topic']}: {answer['error']['detail']}", err=True)
    if failed:
        unavailable = all(answer["error"]["status"] == 503 for answer in failed)
        raise SystemExit(EXIT_UNAVAILABLE if unavailable else EXIT_REFUSED)


def _layout(given: Given) -> dict[str, Any]:
    if given["bundles"] is not None and given["boundaries"]:
        raise click.UsageError("give --bundles or --boundary, not both")
    edges = ["0x00000000", *given["boundaries"], "0xffffffff"] if given["boundaries"] else None
    return {"bundles": {"boundaries": edges, "numBundles": given["bundles"]}}


def _show_ranges(remote: Remote, found: dict[str, Any]) -> None:
    show(remote, found, ("bundle",), [(f"{low}_{high}",) for low, high in pairwise(found["boundaries"])])


def _neighbours(given: Given) -> dict[str, list[str]]:
    parts = [str(bundle_of(given["namespace"], text.strip())) for text in ",".join(given["ranges"]).split(",")]
    if len(parts) < FEWEST_PARTS:
        raise click.UsageError("name two or more bundles: -b 0x00000000_0x40000000,0x40000000_0x80000000")
    return {"bundles": parts}


def _told_merge(known: Given) -> str:
    return f"{len(_neighbours(known)['bundles'])} bundles of {known['namespace']} are now {known['bundle']}"


_GROUP = f"{_AT}/{{namespace}}/antiAffinity"
_JOINS = "Put a namespace into a group; it leaves its former group."
_ALONE = "PATCH /v1/policies/namespace/{namespace}"

ROWS = (
    Request("create", f"PUT {_AT}/{{namespace}}", "Create a namespace.", (click.argument("namespace",
        metavar="TENANT/NAMESPACE", type=NEW_NAMESPACE), click.option("-b", "--bundles", metavar="N",
        type=click.IntRange(1, 65_536), help="Number of bundles, of equal ranges.  [default: as configured]"),
        ignored("-c", "--clusters", multiple=True, metavar="CLUSTER[,…]"), click.option("--boundary", "boundaries",
        multiple=True, metavar="0x40000000", help="Position to cut at; repeatable.")), body=_layout,
        done="created {namespace}"),
    Request("delete", f"DELETE {_AT}/{{namespace}}", "Unload all bundles of a namespace, then delete it.",
        (NAMESPACE_ARGUMENT, ignored("-f", "--force")), confirm="This deletes {namespace} with all its bundles",
        done="deleted {namespace}"),
    Request("bundles", f"GET {_AT}/{{namespace}}/bundles",
        "List the bundles of a namespace. `bundles list --namespace` also shows states and owners.",
        (NAMESPACE_ARGUMENT,), view=_show_ranges),
    Request("merge-bundles", "POST /v1/bundles/merge", "Merge neighbouring bundles that one broker owns.",
        (NAMESPACE_ARGUMENT, click.option("-b", "--bundles", "ranges", required=True, multiple=True,
        metavar="RANGE,RANGE[,…]", help="Neighbours of one owner; repeatable.")), body=_neighbours, done=_told_merge),
    Request("set-anti-affinity-group", f"POST {_GROUP}", _JOINS, (NAMESPACE_ARGUMENT,
        click.option("-g", "--group", required=True,
        help="Name of the group; its namespaces are spread over failure domains and brokers.")),
        short=_JOINS, body=lambda given: given["group"], instead=_ALONE,
        document=lambda given: {"anti_affinity_group": given["group"]}, done="{namespace} is in group {group}"),
    Request("delete-anti-affinity-group", f"DELETE {_GROUP}", "Take a namespace out of its group.",
        (NAMESPACE_ARGUMENT,), instead=_ALONE, document=lambda _given: {"anti_affinity_group": None},
        done="{namespace} is in no group", facts=lambda given: {**given, "group": None}),
    Request("get-anti-affinity-group", f"GET {_GROUP}", "Show the group of a namespace.", (NAMESPACE_ARGUMENT,),
        columns="group", empty="{namespace} is in no group"),
    Request("get-anti-affinity-namespaces", f"GET {_AT}/{{cluster}}/antiAffinity/{{group}}",
        "List the namespaces of a group.", (click.option("-c", "--cluster", required=True, metavar="CLUSTER",
        help="Name of the cluster."), click.option("-g", "--group", required=True, help="Name of the group."),
        click.option("-p", "--tenant", help="Accepted for pulsar-admin; has no effect.")), columns="namespace",
        empty="no namespaces"),
)  # fmt: skip


@click.group(cls=Group, commands=commands((*PULSARS["namespaces"], *ROWS)))
def namespaces() -> None:
    """Create, list and unload namespaces; split and merge their bundles."""


namespaces.add_command(list_topics, "topics")


@namespaces.command("list")
@click.argument("tenant", required=False)
@shows
def list_(remote: Remote, tenant: str | None) -> None:
    """List namespaces, of one tenant or of all."""

    async def names() -> list[str]:
        tenants = [tenant] if tenant else await ask(remote, "GET", "/admin/v2/tenants")
        return [name for t in tenants for name in await ask(remote, "GET", f"{_AT}/{segment(t)}")]

    found = run(names())
    show(remote, found, ("namespace",), [(name,) for name in found], empty="no namespaces")


@namespaces.command(short_help="Take bundles from their owners, or move one.")
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-b", "--bundle", metavar="RANGE", help="Only this bundle: 0x00000000_0x40000000.")
@click.option(
    "-d",
    "--destinationBroker",
    "--dest",
    "destination",
    metavar="HOST:PORT",
    type=BROKER,
    help="New owner of the bundle.",
)
@_FORCE
@disrupts
def unload(remote: Remote, name: str, bundle: str | None, destination: str | None, force: bool) -> None:
    """Take all bundles of a namespace, or one, from their owners; or transfer one to another broker."""
    if destination and not bundle:
        raise click.UsageError("--destinationBroker is for one bundle: name it with --bundle")
    chosen = bundle_of(name, bundle) if bundle else None
    path = f"{_AT}/{name}/{chosen.range}/unload" if chosen else f"{_AT}/{name}/unload"
    if chosen is None:
        confirm(remote, f"This takes all bundles of {name} from their owners")
    run(ask(remote, "PUT", path, query={"destinationBroker": destination, "force": force}))
    moved = f"moved to {destination}" if destination else "unloaded; lookups assign again"
    done(remote, f"{chosen or name} was {moved}", namespace=name, bundle=bundle, destination=destination)


@namespaces.command("split-bundle", short_help="Split a bundle: in two, into parts, or at positions.")
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-b", "--bundle", metavar="RANGE", help="Bundle to split: 0x00000000_0x40000000.")
@click.option(
    "-bt",
    "--bundle-type",
    "extreme",
    type=click.Choice(["LARGEST", "HOT"], case_sensitive=False),
    help="Instead of --bundle: the bundle with the most keys, or with the most load.",
)
@click.option(
    "-san",
    "--split-algorithm-name",
    "algorithm",
    metavar="ALGORITHM",
    type=click.Choice([a.value for a in Algorithm]),
    help=f"How to cut: {', '.join(Algorithm)}.  [default: {Algorithm.RANGE}; with positions {Algorithm.SPECIFIED}]",
)
@click.option(
    "-p", "--parts", metavar="N", type=click.IntRange(FEWEST_PARTS, MOST_PARTS), help="Number of parts.  [default: 2]"
)
@click.option(
    "-sb",
    "--positions",
    "--split-boundaries",
    "positions",
    multiple=True,
    metavar="P[,P…]",
    help="Positions to cut at: 0x20000000, or 536870912; repeatable.",
)
@click.option("-u", "--unload", is_flag=True, help="Take the parts from their owner; lookups assign them again.")
@changes
def split_bundle(
    remote: Remote,
    name: str,
    bundle: str | None,
    extreme: str | None,
    algorithm: str | None,
    parts: int | None,
    positions: tuple[str, ...],
    unload: bool,
) -> None:
    """Split a bundle: in two, into parts, or at positions."""
    if (bundle is None) == (extreme is None):
        raise click.UsageError("say which bundle: either --bundle or --bundle-type")
    whole = f"{name}/{extreme.upper()}" if extreme else bundle_of(name, bundle or "")
    cuts = [_position(text.strip()) for text in ",".join(positions).split(",")] if positions else None
    body = {"parts": parts, "positions": cuts, "algorithm": algorithm, "unload": unload}
    found = run(ask(remote, "POST", f"/v1/bundles/{whole}/split", body=body))
    ranges = ", ".join(child.rpartition("/")[2] for child in found["children"])
    done(remote, f"{whole} was split into {ranges}", **found)


_POSITION = re.compile(r"0[xX][0-9a-fA-F]{1,8}|[0-9]{1,10}", re.ASCII)


def _position(text: str) -> int:
    if _POSITION.fullmatch(text) is None:
        raise click.UsageError(f"{text!r} is not a position; write 0x20000000 or 536870912")
    position = int(text, 16 if text.lower().startswith("0x") else 10)
    if position > FULL_UPPER:
        raise click.UsageError(f"{text} is beyond the hash space, which ends at 0x{FULL_UPPER:08x}")
    return position
