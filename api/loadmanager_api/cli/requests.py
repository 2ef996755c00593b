"""Commands that are one request to a broker each: a `Request` declares the command, and `commands` makes it.

The rows of a group are in the group's module. What needs several requests, or pages of its own, is a function there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from loadmanager_api.cli.client import ask, ask_all, run
from loadmanager_api.cli.names import NameType, segment
from loadmanager_api.cli.options import changes, confirm, disrupts, shows, with_options
from loadmanager_api.cli.printing import done, echo, show, show_pairs
from loadmanager_api.cli.remote import Remote

Given = Mapping[str, Any]
"""Parameters of a command, by name."""
Column = str | Callable[[Any], object]

_NAME = re.compile(r"\{(\w+)\}")


class Request(msgspec.Struct, frozen=True):
    """A command that is one request.

    `request` is its method and path, such as `PUT /v1/brokers/{broker}/drain?force&wait_s={timeout}`: parameters of
    the command stand in braces, or alone in the query. The others are the query of GET and DELETE, and the body of
    the rest, unless `body` makes that of all parameters. With `pages`, all pages are asked for.

    People see the answer by `view`, or as a table of its `part` (a list, or a mapping's items): `columns` has the
    cells of an entry by title, each a field's name or a function; the last `wide` columns are for `-o wide`, and
    `empty` is for an empty table. A single string titles a list of names. Without these the answer is shown as
    pairs.

    After a change `done` is said, of the parameters and the answer; programs are told the `facts` if there is no
    answer, by default the parameters in path and query, and others with values. If the broker `previews` a change of a
    policy, a dry run shows what would move; a route of Pulsar has no preview, and a dry run sends `instead` to ours,
    after a GET of `needs`. `confirm` is what people are asked before. Texts have names in braces.

    `short` is the line in the list of a group, by default the help up to its first full stop, semicolon or colon.
    """

    name: str
    request: str
    help: str
    params: tuple[Callable[[Any], Any], ...] = ()
    body: Callable[[Given], Any] | None = None
    pages: bool = False
    view: Callable[[Remote, Any], None] | None = None
    part: str = ""
    columns: str | Mapping[str, Column] = ""
    wide: int = 0
    empty: str = "none"
    done: str | Callable[[Given], str] = ""
    facts: Callable[[Given], Mapping[str, Any]] | None = None
    confirm: str | Callable[[Given], str] = ""
    previews: bool = False
    instead: str = ""
    document: Callable[[Given], Any] | None = None
    needs: str = ""
    short: str = ""

    @property
    def method(self) -> str:
        """GET, PUT, …"""
        return self.request.partition(" ")[0]


def first(entry: tuple[object, object]) -> object:
    """The column of the names in an answer by name."""
    return entry[0]


def second(entry: tuple[object, object]) -> object:
    """The column of the values."""
    return entry[1]


def commands(rows: Iterable[Request]) -> list[click.Command]:
    """The commands that the rows declare."""
    return [_command(row) for row in rows]


def _command(row: Request) -> click.Command:
    def work(remote: Remote, **given: Any) -> None:
        """The command, which has its options from the row."""
        if row.confirm:
            confirm(remote, _text(row.confirm, given))
        _show(remote, row, given, _answer(remote, row, given))

    decorated = (shows if row.method == "GET" else disrupts if row.confirm else changes)(work)
    short = row.short or re.split(r"[.;:]\s", row.help, maxsplit=1)[0].rstrip(".") + "."
    return click.command(row.name, help=row.help, short_help=short)(with_options(decorated, *row.params))


def _answer(remote: Remote, row: Request, given: Given) -> Any:
    if remote.dry_run and row.instead:
        document = row.document(given) if row.document else None
        if row.needs:
            run(ask(remote, "GET", _path(row.needs, given)))
        method, _, path = row.instead.partition(" ")
        return run(ask(remote, method, _path(path, given), body=document, previews=True))
    path, _, asked = row.request.partition(" ")[2].partition("?")
    items = [item.partition("=") for item in asked.split("&")] if asked else []
    query = {name: given[value.strip("{}") or name] for name, _, value in items}
    named = {*_NAME.findall(row.request), *query}
    others = {name: value for name, value in given.items() if name not in named}
    path = _path(path, given)
    if row.method in ("GET", "DELETE"):
        query, others = {**query, **others}, {}
    if row.pages:
        return run(ask_all(remote, path, query))
    body = row.body(given) if row.body else others or None
    return run(ask(remote, row.method, path, query=query, body=body, previews=row.previews))


def _path(path: str, given: Given) -> str:
    """The path with the parameters that it names, each quoted by its type."""
    types = {each.name: each.type for each in click.get_current_context().command.params}

    def quoted(found: re.Match[str]) -> str:
        kind, value = types.get(found[1]), given[found[1]]
        return kind.in_path(value) if isinstance(kind, NameType) else segment(str(value))

    return _NAME.sub(quoted, path)


def _text(row: str | Callable[[Given], str], given: Given) -> str:
    return row(given) if callable(row) else row.format_map(given)


def _show(remote: Remote, row: Request, given: Given, answer: Any) -> None:
    if row.view:
        row.view(remote, answer)
    elif row.done:
        known = {**given, **answer} if isinstance(answer, dict) else given
        text = _text(row.done, known)
        if row.previews or (remote.dry_run and row.instead):
            show_written(remote, text, answer)
        else:
            done(remote, text, **(answer if isinstance(answer, dict) else _facts(row, given)))
    elif row.columns:
        _show_table(remote, row, given, answer)
    else:
        show_pairs(remote, answer, list(answer.items()))


def _facts(row: Request, given: Given) -> dict[str, Any]:
    if row.facts:
        return dict(row.facts(given))
    known = _NAME.findall(row.request)
    return {
        name: [str(each) for each in value]
        if isinstance(value, tuple)
        else value
        if isinstance(value, int | float | None)
        else str(value)
        for name, value in given.items()
        if value is not False and (name in known or value not in (None, ()))
    }


def _show_table(remote: Remote, row: Request, given: Given, answer: Any) -> None:
    empty = row.empty.format_map(given)
    found = answer[row.part] if row.part else answer
    entries: Sequence[Any] = list(found.items()) if isinstance(found, dict) else found
    if isinstance(row.columns, str):
        if isinstance(found, str | None):
            done(remote, found or empty, **_facts(row, given), **{row.columns: found})
        else:
            show(remote, answer, (row.columns,), [(name,) for name in found], empty)
        return
    cells = row.columns.values()
    rows = [tuple(cell(entry) if callable(cell) else entry[cell] for cell in cells) for entry in entries]
    show(remote, answer, tuple(row.columns), rows, empty, wide=row.wide)


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
