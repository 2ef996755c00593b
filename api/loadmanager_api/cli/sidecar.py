"""`loadmanager sidecar`: a broker beside a service in any language, until SIGTERM or SIGINT (`docs/sidecar.md`)."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import click

from loadmanager_api.cli.broker import ADDRESS, GC_THRESHOLDS, failure_line
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import pairs, settings_of, settings_options
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.logs import log_to_stderr

CONTROL = "127.0.0.1:7070"
SESSION_TIMEOUT_S = 5.0


@click.command()
@settings_options
@click.option("--listen", metavar="[HOST]:PORT", help="As of `loadmanager broker`.  [default: --advertised]")
@click.option(
    "--url", "urls", multiple=True, metavar="PROTOCOL=URL",
    help="URL where clients reach the service, if it names none itself; repeatable.",
)  # fmt: skip
@click.option(
    "--control", metavar="HOST:PORT", default=CONTROL, show_default=True,
    help="Loopback address where the service asks this sidecar.",
)  # fmt: skip
@click.option(
    "--secret-file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), required=True,
    help="File with the secret of sidecar and service; it is made if there is none.",
)  # fmt: skip
@click.option(
    "--session-timeout-s", type=click.FloatRange(min=0.5, max=600), default=SESSION_TIMEOUT_S, show_default=True,
    help="A service that has not polled for so long is taken for gone.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Write debug messages to the log, too.")
def sidecar(
    listen: str | None,
    urls: tuple[str, ...],
    control: str,
    secret_file: Path,
    session_timeout_s: float,
    more: tuple[str, ...],
    verbose: bool,
    **given: Any,
) -> None:
    """Run a broker beside a service in another language.

    The service attaches over HTTP, and gets hooks and leases; see docs/sidecar.md. Settings also come from the
    environment (LOADMANAGER_…).
    """
    log_to_stderr("console", verbose=verbose)
    settings = settings_of(given, more)
    log_to_stderr(settings.log_format, verbose=verbose)
    if "advertised" not in settings.model_fields_set:  # nor in the environment
        settings = settings.model_copy(update={"advertised": listen or ADDRESS})
    _run(settings, listen, pairs(urls, "--url"), control, secret_file, session_timeout_s)


def _run(
    settings: Any, listen: str | None, urls: dict[str, str], control: str, secret_file: Path, session_timeout_s: float
) -> None:
    from loadmanager.embedding.endpoints import parse_address
    from loadmanager.errors import needs_extra
    from loadmanager.sidecar.sidecar import Sidecar
    from loadmanager.sidecar.wire import Secret
    from statechannel.errors import Error

    with needs_extra("api", "a sidecar"):
        from loadmanager_api.server import attach, check_reach
        from loadmanager_api.sidecar.app import application
        from loadmanager_api.sidecar.serving import absent, listen_on_loopback, served

    async def live() -> None:
        secret = Secret.of(secret_file)
        listening = listen_on_loopback(control)
        address = listen or settings.advertised
        running = Sidecar(
            settings, secret, session_timeout_s=session_timeout_s, urls=urls, bind=listen, endpoint=attach,
            absent=lambda: absent(address, settings),
        )  # fmt: skip
        with leaving_on_signal(running.stop, asyncio.get_running_loop()):
            async with served(application(running, secret), listening):
                echo(f"a service may attach at http://{_address(listening)}", err=True)
                await running.run()

    from loadmanager.embedding.broker import leaving_on_signal

    gc.set_threshold(*GC_THRESHOLDS)
    try:
        parse_address(settings.advertised)
        check_reach(listen or settings.advertised, settings)
        gc.freeze()
        asyncio.run(live())
    except (Error, OSError, ValueError) as error:
        raise Failed(failure_line(error)) from None


def _address(listening: Any) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
