"""The options that every command about a running cluster has, before or behind its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

DEFAULT_URL = "http://127.0.0.1:8080"
ADMIN_URL = "LOADMANAGER_ADMIN_URL"
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):\d+")

F = TypeVar("F", bound=Callable[..., Any])


if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        """Click's own, which is generic since its release 8.4 only."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


class Remote(msgspec.Struct, frozen=True):
    """Which broker to ask, and how to show what it says."""

    admin_url: str = DEFAULT_URL
    output: str = "table"

    def with_options(self, admin_url: str | None, output: str | None) -> Remote:
        """The same with what was given; `host:port` means HTTP."""
        url = (admin_url or self.admin_url).rstrip("/")
        return Remote(f"http://{url}" if _HOST_PORT.fullmatch(url) else url, output or self.output)


def remote_options(command: F, envvar: str | None = None) -> F:
    """Add `--admin-url` and `-o`. Only one level reads the environment: else that overrules what another was given."""
    url = click.option(
        "--admin-url",
        envvar=envvar,
        metavar="URL",
        help=f"Any broker of the cluster.  [default: {DEFAULT_URL}; env {ADMIN_URL}]",
    )
    form = click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), help="Print a table, or JSON.  [default: table]"
    )
    return url(form(command))


def asks_a_broker(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and give the command a `Remote` as its first argument."""

    @click.pass_context
    @wraps(command)
    def asking(ctx: click.Context, admin_url: str | None, output: str | None, **given: Any) -> Any:
        remote = ctx.find_object(Remote) or Remote()
        return ctx.invoke(command, remote.with_options(admin_url, output), **given)

    return remote_options(asking)
