"""A host whose broker can be killed: after that none of its hooks is called, as if the process had ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadmanager.broker.hooks import at_once
from loadmanager.model.host import BundleHost


class MortalHost:
    """Passes every hook on unchanged (coroutine function, plain function or `at_once`) while it lives."""

    def __init__(self, host: BundleHost) -> None:
        self._host = host
        self.killed = False

    @property
    def prepare(self) -> Callable[..., Any]:
        """As `BundleHost.prepare`."""
        return self._alive_or(_nothing, self._host.prepare)

    @property
    def acquire(self) -> Callable[..., Any]:
        """As `BundleHost.acquire`."""
        return self._alive_or(_nothing, self._host.acquire)

    @property
    def release(self) -> Callable[..., Any]:
        """As `BundleHost.release`."""
        return self._alive_or(_nothing, self._host.release)

    @property
    def abandon(self) -> Callable[..., Any]:
        """As `BundleHost.abandon`."""
        return self._alive_or(_nothing, self._host.abandon)

    @property
    def load(self) -> Callable[..., Any]:
        """As `BundleHost.load`."""
        return self._alive_or(_no_load, self._host.load)

    def __getattr__(self, name: str) -> Any:
        """Everything else that the host has."""
        return getattr(self._host, name)

    def _alive_or(self, dead: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        return dead if self.killed else hook


@at_once
def _nothing(*_: object) -> None:
    """The process is gone."""


@at_once
def _no_load() -> dict[Any, Any]:
    return {}
