"""`loadmanager topics`: where topics are served, and moving them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from loadmanager_api.cli.client import EXIT_REFUSED, EXIT_UNAVAILABLE, Failed, ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import BROKER, NAMESPACE, TOPIC, bundle_of, topic_path
from loadmanager_api.cli.options import asks_a_broker, changes, shows
from loadmanager_api.cli.printing import done, show
from loadmanager_api.cli.pulsar import NO_EFFECT, thin_commands
from loadmanager_api.cli.remote import Remote
from statechannel.law.bundle import Key

_MOST_AT_ONCE = 1_000
_DOMAINS = {"persistent": "persistent", "non_persistent": "non-persistent"}


@click.group(cls=Group)
def topics() -> None:
    """Show where topics are served, and move them."""


for command in thin_commands("topics"):
    topics.add_command(command)


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
def list_(remote: Remote, namespace: str, bundle: str | None, domain: str) -> None:
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


@topics.command(short_help="Take the topic's bundle from its owner, or move it.")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("-d", "--dest", "destination", metavar="HOST:PORT", type=BROKER, help="New owner of the bundle.")
@click.option("--force", is_flag=True, help="Move even if a policy forbids it; the record says so.")
@changes
def unload(remote: Remote, name: Key, destination: str | None, force: bool) -> None:
    """Move the topic's bundle to --dest, or take it from its owner."""
    path = f"/admin/v2/{topic_path(name)}/unload"
    run(ask(remote, "PUT", path, query={"destinationBroker": destination, "force": "true" if force else None}))
    moved = f"moved to {destination}" if destination else "unloaded; the next lookup assigns it"
    done(remote, f"the bundle of {name} was {moved}", topic=str(name), destination=destination)


@topics.command("bundle-range")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@asks_a_broker
def bundle_range(remote: Remote, name: Key) -> None:
    """Show the hash range of the topic's bundle."""
    found = run(ask(remote, "GET", f"/lookup/v2/topic/{topic_path(name)}/bundle"))
    done(remote, found, topic=str(name), range=found)
