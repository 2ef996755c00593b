"""Opens the log and the coordination service that settings name, for commands that work without a broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from loadmanager_api.cli.check import quiet_clients
from loadmanager_api.cli.client import Failed, NotNow, run

if TYPE_CHECKING:
    from loadmanager.channel.migration.move import Place
    from loadmanager.settings import Settings
    from statechannel.ports import Coordination, Log

T = TypeVar("T")
S = TypeVar("S", bound="Log | Coordination")


def working(work: Coroutine[Any, Any, T]) -> T:
    """Run it, and turn errors into a message and an exit code. Raises Failed, NotNow."""
    from loadmanager.errors import LoadManagerError, Unavailable
    from statechannel.errors import CoordinationUnavailable, LogUnavailable, StateChannelError

    try:
        with quiet_clients():
            return run(work)
    except (Unavailable, LogUnavailable, CoordinationUnavailable) as error:
        raise NotNow(str(error)) from None
    except (LoadManagerError, StateChannelError, ValueError) as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from None


def check_there(address: str, option: str) -> None:
    """Raises Failed if this is a SQLite file that does not exist: reading must not create it."""
    from loadmanager.broker.wiring import file_of

    if address.startswith("sqlite:") and not (file := file_of(address)).is_file():
        raise Failed(
            f"{file} is no file: correct {option}" if file.exists() else f"there is no file {file}: correct {option}"
        )


def opened_log(settings: Settings) -> AbstractAsyncContextManager[Log]:
    """The log, started. Raises LogUnavailable, ValueError."""
    from loadmanager.broker.wiring import open_log

    return _started(open_log(settings), settings)


def opened_coordination(settings: Settings) -> AbstractAsyncContextManager[Coordination]:
    """The coordination service, started. Raises CoordinationUnavailable, ValueError."""
    from loadmanager.broker.wiring import open_coordination

    return _started(open_coordination(settings), settings)


@asynccontextmanager
async def _started(service: S, settings: Settings) -> AsyncGenerator[S]:
    try:
        await service.start(settings.start_timeout_s)
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Place]:
    """The log and the coordination service, started."""
    from loadmanager.channel.migration.move import Place

    async with opened_log(settings) as log, opened_coordination(settings) as coordination:
        yield Place(log, coordination, log_of(settings), coordination_of(settings))


def log_of(settings: Settings) -> str:
    """The log's address in the form of `--log`, including a topic prefix that is not the default."""
    usual = type(settings).model_fields["topic_prefix"].default
    if settings.log.startswith("kafka:") and settings.topic_prefix != usual:
        return f"{settings.log} --set topic_prefix={settings.topic_prefix}"
    return settings.log


def coordination_of(settings: Settings) -> str:
    """The address of the coordination service, also where it follows from the log's. Raises Failed."""
    from loadmanager.broker.wiring import coordination_address

    try:
        return coordination_address(settings)
    except ValueError as error:
        raise Failed(str(error)) from None
