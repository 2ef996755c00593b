"""`loadmanager namespaces`: create, list, delete, unload, split, merge."""

from __future__ import annotations

import re
from itertools import pairwise

import click

from loadmanager.model.boundaries import FEWEST_PARTS, MOST_PARTS
from loadmanager.settings.algorithms import Algorithm
from loadmanager_api.cli.anti_affinity import ANTI_AFFINITY_COMMANDS
from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import BROKER, NAMESPACE, NEW_NAMESPACE, bundle_of, segment
from loadmanager_api.cli.options import changes, confirm, disrupts, shows
from loadmanager_api.cli.printing import done, show
from loadmanager_api.cli.pulsar import NO_EFFECT, thin_commands
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.topics import list_ as topics
from statechannel.law.bundle import FULL_UPPER

_AT = "/admin/v2/namespaces"


@click.group(cls=Group)
def namespaces() -> None:
    """Create, list and unload namespaces; split and merge their bundles."""


for command in (*ANTI_AFFINITY_COMMANDS, *thin_commands("namespaces")):
    namespaces.add_command(command)
namespaces.add_command(topics, "topics")


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NEW_NAMESPACE)
@click.option(
    "-b",
    "--bundles",
    metavar="N",
    type=click.IntRange(1, 65_536),
    help="Number of bundles, of equal ranges.  [default: as configured]",
)
@click.option("-c", "--clusters", multiple=True, metavar="CLUSTER[,…]", help=NO_EFFECT, expose_value=False)
@click.option("--boundary", "boundaries", multiple=True, metavar="0x40000000", help="Position to cut at; repeatable.")
@changes
def create(remote: Remote, name: str, bundles: int | None, boundaries: tuple[str, ...]) -> None:
    """Create a namespace."""
    if bundles is not None and boundaries:
        raise click.UsageError("give --bundles or --boundary, not both")
    edges = ["0x00000000", *boundaries, "0xffffffff"] if boundaries else None
    body = {"bundles": {"boundaries": edges, "numBundles": bundles}}
    run(ask(remote, "PUT", f"{_AT}/{name}", body=body))
    done(remote, f"created {name}", namespace=name)


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


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-f", "--force", is_flag=True, help=NO_EFFECT, expose_value=False)
@disrupts
def delete(remote: Remote, name: str) -> None:
    """Unload all bundles of a namespace, then delete it."""
    confirm(remote, f"This deletes {name} with all its bundles")
    run(ask(remote, "DELETE", f"{_AT}/{name}"))
    done(remote, f"deleted {name}", namespace=name)


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@shows
def bundles(remote: Remote, name: str) -> None:
    """List the bundles of a namespace. `bundles list --namespace` also shows states and owners."""
    found = run(ask(remote, "GET", f"{_AT}/{name}/bundles"))
    edges = found["boundaries"]
    rows = [(f"{low}_{high}",) for low, high in pairwise(edges)]
    show(remote, found, ("bundle",), rows)


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
@click.option("--force", is_flag=True, help="Move even if a policy forbids it; the record says so.")
@disrupts
def unload(remote: Remote, name: str, bundle: str | None, destination: str | None, force: bool) -> None:
    """Take all bundles of a namespace, or one, from their owners; or transfer one to another broker."""
    if destination and not bundle:
        raise click.UsageError("--destinationBroker is for one bundle: name it with --bundle")
    chosen = bundle_of(name, bundle) if bundle else None
    path = f"{_AT}/{name}/{chosen.range}/unload" if chosen else f"{_AT}/{name}/unload"
    if chosen is None:
        confirm(remote, f"This takes all bundles of {name} from their owners")
    run(ask(remote, "PUT", path, query={"destinationBroker": destination, "force": "true" if force else None}))
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


@namespaces.command("merge-bundles")
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option(
    "-b",
    "--bundles",
    "ranges",
    required=True,
    multiple=True,
    metavar="RANGE,RANGE[,…]",
    help="Neighbours of one owner; repeatable.",
)
@changes
def merge_bundles(remote: Remote, name: str, ranges: tuple[str, ...]) -> None:
    """Merge neighbouring bundles that one broker owns."""
    parts = [str(bundle_of(name, text.strip())) for text in ",".join(ranges).split(",")]
    if len(parts) < FEWEST_PARTS:
        raise click.UsageError("name two or more bundles: -b 0x00000000_0x40000000,0x40000000_0x80000000")
    found = run(ask(remote, "POST", "/v1/bundles/merge", body={"bundles": parts}))
    done(remote, f"{len(parts)} bundles of {name} are now {found['bundle']}", **found)


_POSITION = re.compile(r"0[xX][0-9a-fA-F]{1,8}|[0-9]{1,10}", re.ASCII)


def _position(text: str) -> int:
    if _POSITION.fullmatch(text) is None:
        raise click.UsageError(f"{text!r} is not a position; write 0x20000000 or 536870912")
    position = int(text, 16 if text.lower().startswith("0x") else 10)
    if position > FULL_UPPER:
        raise click.UsageError(f"{text} is beyond the hash space, which ends at 0x{FULL_UPPER:08x}")
    return position
