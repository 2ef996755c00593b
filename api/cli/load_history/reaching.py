"""Whether the log that a job reads, and the Spark server that shall run it, are there: told before anything starts."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from api.cli.client import NotNow
from api.cli.stores import check_there, opened_log, working

if TYPE_CHECKING:
    from loadmanager.settings import Settings


CONNECT_PORT = 15_002
CONNECT_TIMEOUT_S = 10.0


def check_server(remote: str) -> None:
    """Raises NotNow if nothing listens at a Spark Connect address: its client would try for ten minutes."""
    try:
        parts = urlsplit(remote)
        place = parts.hostname or "", parts.port or CONNECT_PORT
    except ValueError as error:
        raise click.UsageError(f"--remote {remote}: {error}; write sc://host:port") from None
    try:
        socket.create_connection(place, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise NotNow(f"no Spark Connect server answers at {remote}: {error.strerror or error}") from None


def check_answers(settings: Settings) -> None:
    """Raises Failed for a file that is not there, and NotNow if Kafka does not answer."""
    check_there(settings.log, "--log")
    if settings.log.startswith("kafka:"):
        working(_answer(settings))


async def _answer(settings: Settings) -> None:
    async with opened_log(settings):
        pass
