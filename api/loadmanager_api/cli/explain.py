"""`loadmanager explain`: why a bundle is where it is and did not move; why a broker has what it has. Now or at any past
moment, from a broker or, with `--log`, from the log alone.
"""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.explain_showing import show_broker, show_bundle
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import ParamType, SinceType, shows
from loadmanager_api.cli.printing import show_answer
from loadmanager_api.cli.remote import Remote
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle


class SubjectType(ParamType[str]):
    """A bundle or a broker; which of them, its form tells."""

    name = "subject"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:  # noqa: ARG002
        from loadmanager_api.cli.suggesting import brokers, bundles

        return bundles(ctx, incomplete) if "/" in incomplete else brokers(ctx, incomplete)


at_option = click.option(
    "--at",
    "at_ms",
    type=SinceType(),
    metavar="TIME",
    help="A past moment: 15m, 12h (ago), or a date and time.  [default: now]",
)
log_option = click.option(
    "--log", metavar="ADDRESS", help="Read this log instead of asking a broker: sqlite:FILE or kafka://…"
)
more_option = click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE", help="With --log: any other setting; repeatable."
)


@click.command(short_help="Explain why a bundle or broker is as it is.")
@click.argument("subject", metavar="BUNDLE|BROKER", type=SubjectType())
@at_option
@click.option(
    "--no-try",
    "trying",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not try what would move the bundle: faster.",
)
@log_option
@more_option
@shows
def explain(
    remote: Remote, subject: str, at_ms: int | None, trying: bool, log: str | None, more: tuple[str, ...]
) -> None:
    """Explain why a bundle is where it is, why it did not move, what would make it move, and where it would go; or why
    a broker has what it has.

    --at explains any past moment that the logs hold. --log reads the log alone and needs no running broker.
    """
    bundle = bundle_of(subject)
    if log is not None:
        from loadmanager_api.cli.explain_offline import explained

        found = explained(log, more, bundle or subject, at_ms, trying=trying)
    else:
        found = run(ask(remote, "GET", path_of(subject, bundle), query=_query(at_ms, trying=trying)))
    if not remote.for_people:
        show_answer(remote, found)
    elif bundle is not None:
        show_bundle(found)
    else:
        show_broker(found)


def bundle_of(subject: str) -> Bundle | None:
    """The bundle that this names, None if it names a broker. Raises UsageError."""
    if "/" not in subject:
        return None
    try:
        return Bundle.parse(subject)
    except InvalidName as error:
        raise click.UsageError(f"{error}; or a broker: host:port") from None


def path_of(subject: str, bundle: Bundle | None) -> str:
    """Where it is explained."""
    return f"/v1/explain/bundles/{bundle}" if bundle is not None else f"/v1/explain/brokers/{segment(subject)}"


def _query(at_ms: int | None, *, trying: bool) -> dict[str, str | None]:
    return {"at": None if at_ms is None else str(at_ms), "try": None if trying else "false"}
