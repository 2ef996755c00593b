"""`loadmanager context`: names clusters, and chooses which one commands ask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.contexts import FILES, Context, check, chosen, load, save
from loadmanager_api.cli.options import known_contexts, prints
from loadmanager_api.cli.printing import done, show, show_pairs
from loadmanager_api.cli.remote import CONTEXT, Remote, Typed

_NAME = click.argument("name", shell_complete=known_contexts)


@click.group(cls=Group)
def context() -> None:
    """Name clusters, and choose which one commands ask.

    A context has the URLs of a cluster's brokers and the credentials for it. What the command line says counts before
    the environment, and the environment before the context. A context that --context names counts before the
    environment, too.
    """


@context.command("list")
@prints
def list_(remote: Remote) -> None:
    """List contexts; * marks the one that commands use now."""
    contexts = load()
    now = chosen(_typed(), contexts)
    rows = [("*" if name == now else "", name, each.admin_url) for name, each in contexts.contexts.items()]
    answer = [{"name": name, "current": name == now, **_shown(each)} for name, each in contexts.contexts.items()]
    show(remote, answer, ("", "context", "brokers"), rows, empty="no contexts; `loadmanager context set` makes one")


@context.command("show")
@click.argument("name", required=False, shell_complete=known_contexts)
@prints
def show_(remote: Remote, name: str | None) -> None:
    """Show a context; without NAME, the one that commands use now."""
    contexts = load()
    name = name or chosen(_typed(), contexts)
    if name is None:
        raise Failed("no context is in use; `loadmanager context use NAME` chooses one")
    shown = {"name": name, **_shown(contexts.get(name))}
    show_pairs(remote, shown, [(field.replace("_", " "), value) for field, value in shown.items()])


@context.command()
@_NAME
@prints
def use(remote: Remote, name: str) -> None:
    """Make a context the one that commands use."""
    contexts = load()
    contexts.get(name)
    contexts.current = name
    save(contexts)
    overruled = os.environ.get(CONTEXT)
    note = f"; but {CONTEXT}={overruled} overrules it in this shell" if overruled and overruled != name else ""
    done(remote, f"commands use {name} now{note}", name=name)


@context.command("set", short_help="Create a context, or change some of its values.")
@_NAME
@click.option("--admin-url", metavar="URL[,…]", help="Brokers of the cluster: URL or host:port.")
@click.option("--cluster", metavar="CLUSTER", help="Which cluster it is; without it, that of the first answer.")
@click.option("--ca", metavar="FILE", help="PEM file of the authorities that signed the brokers' certificates.")
@click.option("--client-certificate", metavar="FILE", help="PEM file of the certificate that you show.")
@click.option("--client-key", metavar="FILE", help="PEM file of its key.")
@click.option("--token-file", metavar="FILE", help="File that has your token.")
@click.option("--token-env", metavar="NAME", help="Environment variable that has your token.")
@click.option("--insecure/--secure", default=None, help="Whether the token may be sent without TLS.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="As in commands."
)
@prints
def set_(remote: Remote, name: str, **given: Any) -> None:
    """Create a context, or change the values that are given. An empty value removes what there was.

    CLUSTER is the name of the cluster, or a whole value of the header Loadmanager-Cluster, NAME/IDENTITY/GENERATION.
    Brokers of another cluster are refused. An empty CLUSTER takes that of the next answer.

    Secrets are not kept here: name a file or an environment variable that has the token.
    """
    contexts = load()
    values = {field: _whole(field, value) for field, value in given.items() if value is not None}
    before = contexts.contexts.get(name)
    if before is None and not values.get("admin_url"):
        raise click.UsageError(f"the new context {name} needs --admin-url")
    made = msgspec.structs.replace(before, **values) if before is not None else Context(**values)
    if not made.admin_url:
        raise click.UsageError("a context needs --admin-url; `context delete` deletes it")
    check(name, made)
    contexts.contexts = {**contexts.contexts, name: made}
    contexts.current = contexts.current or name
    save(contexts)
    done(remote, f"context {name} is set{'; commands use it now' if contexts.current == name else ''}", name=name)


@context.command()
@_NAME
@prints
def delete(remote: Remote, name: str) -> None:
    """Delete a context. The files that it names stay."""
    contexts = load()
    contexts.get(name)
    contexts.contexts = {other: each for other, each in contexts.contexts.items() if other != name}
    contexts.current = None if contexts.current == name else contexts.current
    save(contexts)
    done(remote, f"deleted context {name}", name=name)


def _typed() -> Typed:
    return click.get_current_context().find_object(Typed) or Typed()


def _whole(field: str, value: Any) -> Any:
    """A file is one wherever the command runs that uses it."""
    return str(Path(value).expanduser().absolute()) if field in FILES and value else value


def _shown(each: Context) -> dict[str, Any]:
    return msgspec.to_builtins(each)
