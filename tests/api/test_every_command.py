"""All commands, one by one: what changes something has `--dry-run`, and every help fits into 80 columns."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click
from click.testing import CliRunner

from loadmanager_api.cli.main import main
from loadmanager_api.cli.names import NameType
from loadmanager_api.cli.pulsar import ROWS as PULSARS
from loadmanager_api.cli.requests import Request
from loadmanager_api.cli.requests import commands as declared
from tests.api.declared import operation_of

COLUMNS = 80
CHANGE_NOTHING = {
    "channel export": "reads; writes a new file, or with --replace that one",
    "channel verify": "reads",
    "channel watch": "reads",
    "check": "looks before a start",
    "completion": "prints",
    "context list": "reads",
    "context show": "reads",
    "decisions show": "reads",
    "doctor": "reads; writes a new file",
    "history serve": "keeps a session",
    "history sql": "reads a lake",
    "playground": "simulates in memory",
    "what-if": "is a dry run by itself",
}
CHANGE = {
    "broker": "runs a broker; `check` says beforehand what would stop it",
    "conformance": "runs the user's service, and asks nobody else",
    "context delete": "the user's own file",
    "context set": "the user's own file",
    "context use": "the user's own file",
    "demo": "a cluster of its own, in a folder of its own",
    "history jars": "fills a cache",
    "sidecar": "runs a broker, as `broker`",
    "top": "asks on its screen before each change",
}
"""Commands without `--dry-run`, and why."""


def commands(command: click.Command, names: tuple[str, ...], ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(names), command
        return
    yield " ".join(names), command
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from commands(found, (*names, name), click.Context(found, parent=ctx, info_name=name))


def every() -> dict[str, click.Command]:
    return dict(commands(main, (), click.Context(main)))


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_command_that_changes_something_has_a_dry_run() -> None:
    without = {
        name
        for name, command in every().items()
        if not isinstance(command, click.Group) and not options(command) & {"--dry-run", "--watch"}
    }
    assert without == CHANGE_NOTHING.keys() | CHANGE.keys(), "give it --dry-run, or say here why it has none"


def test_what_only_shows_has_no_dry_run() -> None:
    assert not [name for name, command in every().items() if {"--dry-run", "--watch"} <= options(command)]


def test_the_help_of_every_command_fits_into_a_terminal() -> None:
    bad = list[str]()
    for name in sorted(every()):
        shown = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=COLUMNS)
        wide = [line for line in shown.stdout.splitlines() if len(line) > COLUMNS]
        if shown.exit_code != 0 or wide:
            bad.append(f"loadmanager {name} --help: exit code {shown.exit_code}, too wide: {wide}")
    assert not bad, "\n".join(bad)


SAMPLES = {"bundle": "t/n/0x00000000_0x40000000", "broker": "a:1", "group": "t/n/g", "topic": "t/n/a"}
"""By the name of a parameter's type; others are `t/n`."""


def rows() -> Iterator[Request]:
    every()  # which imports all modules
    for name, module in sorted(sys.modules.items()):
        for value in vars(module).values() if name.startswith("loadmanager_api.cli.") else ():
            for each in value if isinstance(value, tuple) else ():
                if isinstance(each, Request):
                    yield each
    for its in PULSARS.values():
        yield from its


def sample(parameter: click.Parameter) -> str:
    """How a parameter may stand in a path."""
    kind = parameter.type
    return kind.in_path(kind.convert(SAMPLES.get(kind.name, "t/n"), None, None)) if isinstance(kind, NameType) else "x"


def test_each_row_asks_a_route_that_exists_and_takes_its_query() -> None:
    shared = {each.name for each in declared([Request("", "DELETE /", "", confirm="x")])[0].params}
    shared |= {each.name for each in declared([Request("", "GET /", "")])[0].params}
    bad, count = list[str](), 0
    for count, row in enumerate(rows(), 1):  # noqa: B007 - it is asked for below
        (command,) = declared([row])
        own = {each.name or "": each for each in command.params if each.expose_value and each.name not in shared}
        path, _, query = row.request.partition(" ")[2].partition("?")
        asked = {item.partition("=")[0] for item in query.split("&") if item}
        if row.method in ("GET", "DELETE"):
            asked |= own.keys() - set(re.findall(r"\{(\w+)\}", row.request))

        def at(path: str, own: dict[str, click.Parameter] = own) -> str:
            return re.sub(r"\{(\w+)\}", lambda name: sample(own[name[1]]), path)

        found = operation_of(row.method, at(path))
        for method, _, other in (each.partition(" ") for each in (row.instead, row.needs and f"GET {row.needs}")):
            if method and operation_of(method, at(other)) is None:
                bad.append(f"{row.request}: no route {method} {other} for its dry run")
        unknown = asked if found is None else asked - {each["name"] for each in found.parameters}
        if found is None or unknown:
            bad.append(f"{row.request}: {'no such route' if found is None else f'it takes no {sorted(unknown)}'}")
    assert count > 40
    assert not bad, "\n".join(bad)
