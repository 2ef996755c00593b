"""Checks whether a job's log and Spark server can be reached, before anything starts."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from loadmanager_api.cli.client import NotNow
from loadmanager_api.cli.stores import check_there, opened_log, working

if TYPE_CHECKING:
    from loadmanager.settings import Settings


CONNECT_PORT = 15_002
MASTER, MASTER_PORT = "spark://", 7077
CONNECT_TIMEOUT_S = 10.0


def check_server(remote: str) -> None:
    """Raises NotNow if nothing listens at a Spark Connect address: its client would try for ten minutes."""
    try:
        place = _place(remote, CONNECT_PORT)
    except ValueError as error:
        raise click.UsageError(f"--remote {remote}: {error}; write sc://host:port") from None
    if why := _silent(place):
        raise NotNow(f"no Spark Connect server answers at {remote}: {why}")


def check_master(master: str) -> None:
    """Raises NotNow if none of the masters in spark://host:port[,host:port…] listens: Spark would try for a minute.

    Raises UsageError for yarn without its configuration.
    """
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & set(os.environ):
        raise click.UsageError("--master yarn: set HADOOP_CONF_DIR or YARN_CONF_DIR")
    if not master.startswith(MASTER):
        return
    try:
        places = [_place(MASTER + each, MASTER_PORT) for each in master.removeprefix(MASTER).split(",")]
    except ValueError as error:
        raise click.UsageError(f"--master {master}: {error}; write spark://host:port") from None
    why = [_silent(place) for place in places]
    if all(why):
        raise NotNow(f"no Spark master answers at {master}: {why[0]}")


def _place(url: str, port: int) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or port


def _silent(place: tuple[str, int]) -> str:
    """Why nobody answers there; empty if somebody does."""
    try:
        socket.create_connection(place, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_answers(settings: Settings) -> None:
    """Raises Failed for an invalid address or a missing file, and NotNow if Kafka does not answer."""
    check_there(settings.log, "--log")
    if not settings.log.startswith("sqlite:"):
        working(_answer(settings))


async def _answer(settings: Settings) -> None:
    async with opened_log(settings):
        pass
