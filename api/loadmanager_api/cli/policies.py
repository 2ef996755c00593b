"""`loadmanager policies`: every policy document, with its versions; and what a change would move."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import IO, Any

import click

from loadmanager.model.policies.model import Kind
from loadmanager_api.cli.client import ask, ask_all, run
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import changes, confirm, disrupts, shows, since_option, since_query
from loadmanager_api.cli.printing import done, show, show_pairs
from loadmanager_api.cli.remote import Remote

_KIND = click.argument("kind", type=click.Choice([kind.value for kind in Kind]))
_NAME = click.argument("name", metavar="NAME")
_SEEN = click.option(
    "--seen", metavar="N", type=click.IntRange(0), help="Only if the policy has this version; 0: only if there is none."
)
_REASON = click.option("--reason", metavar="TEXT", help="Reason, for the history.")


@click.group(cls=Group)
def policies() -> None:
    """Show, set and delete policies of every kind."""


@policies.command("list")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="Only policies of this kind.")
@click.option("--prefix", metavar="TEXT", help="Only policies whose name begins so, such as shop/.")
@click.option("--by", metavar="AUTHOR", help="Only policies that this author wrote last.")
@since_option
@shows
def list_(remote: Remote, kind: str | None, prefix: str | None, by: str | None, since: int | None) -> None:
    """List the policies that hold now, by kind and name."""
    query = {"kind": kind, "prefix": prefix, "by": by, **since_query(since)}
    found = run(ask_all(remote, "/v1/policies", query))
    rows = [(p["kind"], p["name"], p["version"], _worded(p), p["author"]) for p in found["policies"]]
    show(remote, found, ("kind", "name", "version", "policy", "author"), rows, empty="no policies")


@policies.command("show")
@_KIND
@_NAME
@shows
def show_(remote: Remote, kind: str, name: str) -> None:
    """Show one policy."""
    found = run(ask(remote, "GET", _path(kind, name)))
    pairs = [(field, found[field]) for field in ("version", "author", "reason")]
    if found["defect"]:
        pairs.append(("not in force", f"{found['defect']}; the version before holds, if there is one"))
    values = [(field, json.dumps(value)) for field, value in (found["policy"] or {}).items()]
    show_pairs(remote, found, [*pairs, ("changed", _when(found["at_ms"])), *values])


@policies.command("set", short_help="Create or replace a policy.")
@_KIND
@_NAME
@click.argument("policy", metavar="[JSON]", required=False)
@click.option("-f", "--file", "file", type=click.File(), help="File with the JSON; - is standard input.")
@_SEEN
@click.option("--force", is_flag=True, help="Write the policy even if no broker satisfies it now.")
@_REASON
@changes
def set_(
    remote: Remote,
    kind: str,
    name: str,
    policy: str | None,
    file: IO[str] | None,
    seen: int | None,
    force: bool,
    reason: str | None,
) -> None:
    """Create or replace a policy: `policies set namespace shop/x '{"weight": 2}'`."""
    if (policy is None) == (file is None):
        raise click.UsageError("give either the policy as JSON or --file")
    try:
        body = json.loads(policy if policy is not None else file.read() if file is not None else "")
    except ValueError as error:
        raise click.UsageError(f"that is not valid JSON: {error}") from None
    query = _query(seen, reason, force=force)
    found = run(ask(remote, "PUT", _path(kind, name), query=query, body=body, previews=True))
    show_written(remote, f"{kind} {name}: version {found['version']}", found)


@policies.command("delete")
@_KIND
@_NAME
@_SEEN
@click.option("--force", is_flag=True, help="Delete even if a bundle is left without any broker.")
@_REASON
@disrupts
def delete(remote: Remote, kind: str, name: str, seen: int | None, force: bool, reason: str | None) -> None:
    """Delete a policy."""
    confirm(remote, f"This deletes the policy {kind} {name}")
    found = run(ask(remote, "DELETE", _path(kind, name), query=_query(seen, reason, force=force), previews=True))
    show_written(remote, f"{kind} {name}: deleted, which is version {found['version']}", found)


@policies.command("history")
@_KIND
@_NAME
@since_option
@shows
def history(remote: Remote, kind: str, name: str, since: int | None) -> None:
    """List every version of one policy, oldest first."""
    found = run(ask_all(remote, _path(kind, name) + "/history", since_query(since)))
    rows = [(each["version"], _when(each["at_ms"]), each["author"], _worded(each), each["reason"]) for each in found]
    show(remote, found, ("version", "when", "author", "policy", "reason"), rows, empty="no versions")


def show_preview(remote: Remote, method: str, kind: str, name: str, body: Any = None) -> None:
    """Show what a change of a policy would move: the dry run of commands that write policies as Pulsar does."""
    show_written(remote, "", run(ask(remote, method, _path(kind, name), body=body, previews=True)))


def delete_as_pulsar(remote: Remote, path: str, kind: str, name: str, what: str, **facts: object) -> None:
    """Delete a policy at Pulsar's `path`; a dry run shows our preview, where it is."""
    if remote.dry_run:
        run(ask(remote, "GET", path))
        show_preview(remote, "DELETE", kind, name)
        return
    run(ask(remote, "DELETE", path))
    done(remote, f"deleted {what} {name}", **facts)


def show_written(remote: Remote, text: str, found: dict[str, Any]) -> None:
    """Report a change of a policy; of a dry run, what would move."""
    if not remote.for_people:
        done(remote, "", **found)
        return
    for note in (*found["notes"], *(f"overridden: {rule}" for rule in found["forced"])):
        echo(f"note: {note}", err=True)
    preview = found["preview"]
    if preview is None:
        done(remote, text)
        return
    total = preview["misplaced_total"]
    echo(f"nothing was changed; {total} bundles would have to move, {len(preview['moves'])} in the next round")
    rows = [(move["bundle"], move["source"], move["destination"], move["reason"]) for move in preview["moves"]]
    planned = {move["bundle"] for move in preview["moves"]}
    rows += [(m["bundle"], m["broker"], None, "later") for m in preview["misplaced"] if m["bundle"] not in planned]
    show(remote, found, ("bundle", "from", "to", "why"), rows, empty="")


def _worded(version: dict[str, Any]) -> str:
    """What the document says, or why it is not in force."""
    return f"not in force: {version['defect']}" if version["defect"] else json.dumps(version["policy"])


def _query(seen: int | None, reason: str | None, *, force: bool) -> dict[str, str | None]:
    return {"seen": None if seen is None else str(seen), "reason": reason, "force": "true" if force else None}


def _path(kind: str, name: str) -> str:
    return f"/v1/policies/{kind}/{'/'.join(segment(part) for part in name.split('/'))}"


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
