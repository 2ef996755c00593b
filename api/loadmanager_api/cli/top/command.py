"""The command `loadmanager top`: checks that it can run, before it takes the screen."""

from __future__ import annotations

import sys

import click

from loadmanager.errors import needs_extra
from loadmanager_api.cli.client import Failed, ask, run
from loadmanager_api.cli.names import BROKER, NAMESPACE
from loadmanager_api.cli.options import screen
from loadmanager_api.cli.remote import Remote


@click.command()
@click.option("-n", "--namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE, help="Only bundles of this namespace.")
@click.option("--owner", metavar="HOST:PORT", type=BROKER, help="Only bundles of this broker.")
@click.option(
    "--interval",
    "every_s",
    type=click.FloatRange(0.5, 3_600),
    default=2.0,
    metavar="SECONDS",
    help="How often to ask the brokers.  [default: 2]",
)
@screen
def top(remote: Remote, namespace: str | None, owner: str | None, every_s: float) -> None:
    """Show brokers, bundles and moves on the whole screen, live, and change them with keys.

    The keys are at the bottom of the screen; `?` explains them. What changes something asks first.
    """
    with needs_extra("top", "loadmanager top"):
        from loadmanager_api.cli.top.app import Top
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failed("`loadmanager top` needs a terminal; `brokers list --watch` and `bundles list --watch` do not")
    run(ask(remote, "GET", "/v1/brokers"))  # no screen is taken if no broker answers, or one refuses us
    Top(remote, namespace=namespace, owner=owner, every_s=every_s).run()
