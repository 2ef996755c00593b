"""`loadmanager topics`: where topics are served, and moving them."""

from __future__ import annotations

import click

from loadmanager_api.cli.client import EXIT_REFUSED, EXIT_UNAVAILABLE, ask, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.names import BROKER, TOPIC, topic_path
from loadmanager_api.cli.options import Remote, asks_a_broker
from loadmanager_api.cli.printing import done, show
from statechannel.law.bundle import Key

_MOST_AT_ONCE = 1_000


@click.group()
def topics() -> None:
    """Show where topics are served, and move them."""


@topics.command(short_help="Show which broker serves each topic.")
@click.argument("names", metavar="TOPIC…", type=TOPIC, nargs=-1, required=True)
@asks_a_broker
def lookup(remote: Remote, names: tuple[Key, ...]) -> None:
    """Show which broker serves each topic. A bundle without an owner is assigned."""
    if len(names) > _MOST_AT_ONCE:
        raise click.UsageError(f"ask for at most {_MOST_AT_ONCE} topics at once")
    body = {"topics": [str(name) for name in names]}
    answers = run(ask(remote, "POST", "/v1/lookup", body=body))["answers"]
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
@asks_a_broker
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
