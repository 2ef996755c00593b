"""The options that commands share: which brokers to ask, as whom, how to print, and whether to change anything.

Those of `Typed` may stand before a command's name or behind it; behind it counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from loadmanager_api.cli.remote import ADMIN_URL, CONTEXT, DEFAULT_URL, TIMEOUT_S, Remote, Typed

FORMS = ("table", "wide", "json", "yaml")

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        """Click's own, which is generic since its release 8.4 only."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


_AGO = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class SinceType(ParamType[int]):
    """`90s`, `15m`, `12h`, `7d` (ago), or a time such as 2030-01-31T12:00; milliseconds since 1970."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        ago = _AGO.fullmatch(str(value))
        if ago is not None:
            return max(0, int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1000))
        try:
            return max(0, int(datetime.fromisoformat(str(value)).timestamp() * 1000))
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time; write 15m, 12h, 7d (ago), or 2030-01-31T12:00", param, ctx)


cursor_option = click.option("--cursor", metavar="CURSOR", help="Show the page that this cursor of another page names.")
since_option = click.option(
    "--since",
    "since_ms",
    type=SinceType(),
    metavar="TIME",
    help="Only since then: 15m, 12h, 7d (ago), or 2030-01-31T12:00.",
)


def known_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from loadmanager_api.cli.contexts import known_names

    return [name for name in known_names() if name.startswith(incomplete)]


_TYPED: dict[str, Callable[[Any], Any]] = {
    "admin_url": click.option(
        "--admin-url",
        metavar="URL[,…]",
        help="Brokers of the cluster: URL or host:port; the next one is asked if one is dead.  "
        f"[default: {DEFAULT_URL}; env {ADMIN_URL}]",
    ),
    "context": click.option(
        "--context",
        metavar="NAME",
        shell_complete=known_contexts,
        help=f"Cluster and credentials of this context; see `loadmanager context`.  [env {CONTEXT}]",
    ),
    "request_timeout_s": click.option(
        "--timeout",
        "request_timeout_s",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help=f"How long one request may take.  [default: {TIMEOUT_S:g}]",
    ),
    "output": click.option(
        "-o", "--output", type=click.Choice(FORMS), help="Print a table, a wider one, JSON or YAML.  [default: table]"
    ),
}
"""Options of `Typed`, by its fields."""

_WATCH: dict[str, Callable[[Any], Any]] = {
    "watching": click.option(
        "-w", "--watch", "watching", is_flag=True, help="Show it again and again, until you interrupt."
    ),
    "watch_every_s": click.option(
        "--interval",
        "watch_every_s",
        type=click.FloatRange(0.1, 3_600),
        default=2.0,
        metavar="SECONDS",
        help="With --watch: how often.  [default: 2]",
    ),
}
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing: check, and show what would be done.")
_DRY_RUN: dict[str, Callable[[Any], Any]] = {"dry_run": dry_run_option}
_YES: dict[str, Callable[[Any], Any]] = {
    "yes": click.option("-y", "--yes", is_flag=True, help="Do not ask whether you are sure.")
}
_SURE = {**_DRY_RUN, **_YES}


def remote_options(command: F) -> F:
    """Add the options of `Typed`."""
    return with_options(command, *_TYPED.values())


def with_options(command: F, *options: Callable[[Any], Any]) -> F:
    """The command with these options and arguments, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def _giving_remote(*fields: str, more: Mapping[str, Callable[[Any], Any]] = {}) -> Callable[..., Any]:
    """A decorator that adds these options of `Typed` and more, and gives the command a `Remote` as its first argument.

    Without `admin_url` among the fields, the command asks no broker.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.pass_context
        @wraps(command)
        def asking(ctx: click.Context, /, **given: Any) -> Any:
            typed = Typed(**{field: given.pop(field) for field in fields}).over(ctx.find_object(Typed) or Typed())
            if "admin_url" in fields:
                from loadmanager_api.cli.contexts import resolved

                remote = resolved(typed)
            else:
                remote = Remote(output=typed.output or "table")
            own = {name: given.pop(name) for name in more}
            every_s = own.pop("watch_every_s", 0.0) if own.pop("watching", False) else None
            own.pop("watch_every_s", None)
            remote = msgspec.structs.replace(remote, **own)
            return _run(remote, lambda: ctx.invoke(command, remote, **given), every_s)

        return with_options(asking, *(_TYPED[field] for field in fields), *more.values())

    return decorated


def _run(remote: Remote, work: Callable[[], Any], every_s: float | None) -> None:
    from loadmanager_api.cli.client import Failed

    try:
        if every_s is not None:
            from loadmanager_api.cli.repainting import repaint

            repaint(work, every_s)
        elif remote.dry_run:
            from loadmanager_api.cli.rehearsing import rehearsed

            with rehearsed(remote):
                work()
        else:
            work()
    except Failed as error:
        from loadmanager_api.cli.suggesting import with_near_names

        raise with_near_names(remote, error) from None


asks_a_broker = _giving_remote(*_TYPED)
"""For a command that asks brokers."""

shows = _giving_remote(*_TYPED, more=_WATCH)
"""For one that shows what may change: also `--watch`."""

screen = _giving_remote(*(field for field in _TYPED if field != "output"), more=_YES)
"""For one that takes the whole screen, and asks there before it changes something."""

changes = _giving_remote(*_TYPED, more=_DRY_RUN)
"""For one that changes something: also `--dry-run`."""

disrupts = _giving_remote(*_TYPED, more=_SURE)
"""For one that takes something away from clients, or cannot be undone: it also calls `confirm`."""

drains = _giving_remote("admin_url", "context", "output", more=_SURE)
"""For one whose own `--timeout` has another meaning."""

reaches = _giving_remote("admin_url", "context")
"""For one whose own `-o` has another meaning."""

prints = _giving_remote("output")
"""For one that asks no broker."""

rewrites = _giving_remote("output", more=_SURE)
"""For one that asks no broker and changes a log: it also calls `confirm`."""


def confirm(remote: Remote, what: str) -> None:
    """Ask at a terminal whether to do `what`; without one, or with `--yes`, go on. Raises Abort."""
    import sys

    if remote.yes or remote.dry_run or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    from loadmanager_api.cli.printing import one_line

    click.confirm(f"{one_line(what)}. Are you sure?", abort=True, err=True)
