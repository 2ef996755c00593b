"""What a command knows of the brokers that it asks: what was typed, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence

import msgspec

DEFAULT_URL = "http://127.0.0.1:8080"
ADMIN_URL = "LOADMANAGER_ADMIN_URL"
CONTEXT = "LOADMANAGER_CONTEXT"
TIMEOUT_S = 65.0
"""Longer than an operation may take at the broker (`in_flight_timeout_s`), so that its own answer arrives."""


class Pinned:
    """The cluster that commands keep to, as `Loadmanager-Cluster`; "" until a broker has said its own.

    The copies of a `Remote` share it. `context` is the name of the context that keeps it, "" if none does; `keep` does
    so, and gets the cluster before and now.
    """

    def __init__(
        self, cluster: str = "", context: str = "", keep: Callable[[str, str], None] = lambda _before, _now: None
    ) -> None:
        self.cluster = cluster
        self.context = context
        self.keep = keep


class Remote(msgspec.Struct, frozen=True):
    """Which brokers to ask, how, as whom; how to show what they say; what may be changed.

    `admin_urls` is shared by copies: the client moves a URL that answered to the front. `variables` has the credentials
    as environment variables would have them; None: those of the environment.
    """

    admin_urls: MutableSequence[str] = msgspec.field(default_factory=lambda: [DEFAULT_URL])
    output: str = "table"
    timeout_s: float = TIMEOUT_S
    variables: Mapping[str, str] | None = None
    pinned: Pinned = msgspec.field(default_factory=Pinned)
    dry_run: bool = False
    yes: bool = False

    @property
    def admin_url(self) -> str:
        """The URL that is asked first."""
        return self.admin_urls[0]

    @property
    def for_people(self) -> bool:
        """Whether a table is wanted, with hints beside it."""
        return self.output in ("table", "wide")

    def at(self, admin_url: str) -> Remote:
        """The same, asking this broker alone."""
        return msgspec.structs.replace(self, admin_urls=[admin_url])


class Typed(msgspec.Struct, frozen=True):
    """What the command line says; None: nothing."""

    admin_url: str | None = None
    context: str | None = None
    request_timeout_s: float | None = None
    output: str | None = None

    def over(self, before: Typed) -> Typed:
        """The same, completed with what stood before the command's name."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(before, **given)
