"""`loadmanager channel`: the channel as one broker has read it."""

from __future__ import annotations

from urllib.parse import quote

import click

from loadmanager_api.cli.agreeing import agree
from loadmanager_api.cli.channel_status import status
from loadmanager_api.cli.client import ask, ask_all, run
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.moving import export_command, import_command
from loadmanager_api.cli.options import changes, confirm, disrupts, shows, since_option, since_query
from loadmanager_api.cli.printing import age, done, show
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.verifying import verify
from loadmanager_api.cli.watching import watch


@click.group(cls=Group)
def channel() -> None:
    """Inspect the channel as one broker has read it; back it up, restore it."""


channel.add_command(agree)
channel.add_command(export_command)
channel.add_command(import_command)


@channel.group(cls=Group)
def readers() -> None:
    """Manage readers of the channel's log; brokers trim nothing that a reader still needs."""


@readers.command("list")
@click.option("--prefix", metavar="TEXT", help="Only readers whose name begins so.")
@since_option
@shows
def list_readers(remote: Remote, prefix: str | None, since: int | None) -> None:
    """List readers, and how far each has read."""
    found = run(ask_all(remote, "/v1/channel/readers", {"prefix": prefix, **since_query(since)}))
    rows = [(r["name"], " ".join(map(str, r["positions"])), age(r["registered_ms"])) for r in found["readers"]]
    show(remote, found, ("reader", "positions", "registered"), rows, "no readers")


@readers.command("add")
@click.argument("name")
@click.argument("positions", type=click.IntRange(0), nargs=-1)
@changes
def add_reader(remote: Remote, name: str, positions: tuple[int, ...]) -> None:
    """Register a reader, or renew its registration and move it forward.

    POSITIONS are the offsets that the reader needs next, one for each partition.  [default: the begin of the log]
    """
    path = f"/v1/channel/readers/{quote(name, safe='')}"
    added = run(ask(remote, "PUT", path, body={"positions": list(positions) or None}))
    shown = " ".join(map(str, added["positions"]))
    done(remote, f"{name} is registered at {shown}", **added)


@readers.command("remove")
@click.argument("name")
@disrupts
def remove_reader(remote: Remote, name: str) -> None:
    """Remove a reader."""
    confirm(remote, f"This removes the reader {name}: what it has not read may be trimmed")
    run(ask(remote, "DELETE", f"/v1/channel/readers/{quote(name, safe='')}"))
    done(remote, f"{name} is removed", reader=name)


channel.add_command(status)
channel.add_command(verify)
channel.add_command(watch)
