"""`loadmanager channel`: the channel as one broker has read it."""

from __future__ import annotations

from urllib.parse import quote

import click

from loadmanager_api.cli.agreeing import agree
from loadmanager_api.cli.channel_status import status
from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.moving import export_command, import_command
from loadmanager_api.cli.options import Remote, asks_a_broker
from loadmanager_api.cli.printing import age, done, show
from loadmanager_api.cli.verifying import verify
from loadmanager_api.cli.watching import watch


@click.group()
def channel() -> None:
    """The bundle-state channel of one broker."""


channel.add_command(agree)
channel.add_command(export_command)
channel.add_command(import_command)


@channel.group()
def readers() -> None:
    """Readers of the channel's log, for whom it is not trimmed."""


@readers.command("list")
@asks_a_broker
def list_readers(remote: Remote) -> None:
    """Who has registered, and how far each has come."""
    found = run(ask(remote, "GET", "/v1/channel/readers"))
    rows = [(r["name"], " ".join(map(str, r["positions"])), age(r["registered_ms"])) for r in found["readers"]]
    show(remote, found, ("reader", "positions", "registered"), rows, "no readers")


@readers.command("add")
@click.argument("name")
@click.argument("positions", type=click.IntRange(0), nargs=-1)
@asks_a_broker
def add_reader(remote: Remote, name: str, positions: tuple[int, ...]) -> None:
    """Register a reader, or renew and move it on.

    POSITIONS are the offsets that it wants next, one for each partition; without them: where the log begins.
    """
    path = f"/v1/channel/readers/{quote(name, safe='')}"
    added = run(ask(remote, "PUT", path, body={"positions": list(positions) or None}))
    shown = " ".join(map(str, added["positions"]))
    done(remote, f"{name} is registered at {shown}", **added)


@readers.command("remove")
@click.argument("name")
@asks_a_broker
def remove_reader(remote: Remote, name: str) -> None:
    """Forget a reader."""
    run(ask(remote, "DELETE", f"/v1/channel/readers/{quote(name, safe='')}"))
    done(remote, f"{name} is forgotten", reader=name)


channel.add_command(status)
channel.add_command(verify)
channel.add_command(watch)
