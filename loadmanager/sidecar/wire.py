"""What service and sidecar send each other: shapes, and the signature of hooks (Standard Webhooks)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from loadmanager.errors import Invalid

PROTOCOL = 1
SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
MIN_SECRET_BYTES = 24

MAX_URLS = 16


class Offer(StrEnum):
    """A hook that a service may lack."""

    PREPARE = "prepare"
    LOAD = "load"
    POSITIONS = "positions"
    RATES = "rates"


class State(StrEnum):
    """The state of a session: its broker starts, is a member of the cluster, or moves its bundles away."""

    JOINING = "joining"
    JOINED = "joined"
    LEAVING = "leaving"


def is_loopback_url(url: str) -> str:
    """The URL itself. Raises ValueError unless only this machine can be reached by it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if parts.scheme != "http" or not loopback or parts.port is None:
        raise ValueError(f"{url!r} must be http://, a loopback address and a port, such as http://127.0.0.1:9000/hooks")
    return url


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Attachment(_Shape):
    """A service says that it runs, where its hooks are, and where clients reach it."""

    protocol: int = Field(description=f"The version of this contract: {PROTOCOL}.")
    hooks: Annotated[str, AfterValidator(is_loopback_url)] = Field(
        description="URL of the hooks, on a loopback address."
    )
    urls: dict[Annotated[str, Field(min_length=1, max_length=32)], Annotated[str, Field(max_length=2_048)]] = Field(
        default_factory=dict, max_length=MAX_URLS, description="Where clients reach the service, by protocol."
    )
    offers: frozenset[Offer] = Field(default=frozenset(), description="The optional hooks that it has.")


class Attached(_Shape):
    """A session has begun."""

    session: str
    broker: str = Field(description="The name of this broker.")


class Order(_Shape):
    """A bundle that must not be served any more."""

    bundle: str
    sequence: int


class Lease(_Shape):
    """For how long the service may serve what it has acquired."""

    state: State
    valid_ms: dict[int, int] = Field(
        description="By partition: milliseconds, counted from before the question was sent. What is missing is over."
    )
    abandon: list[Order] = Field(description="As if the hook `abandon` had come with this sequence.")
    shared: list[str] = Field(description="Namespaces that are not exclusive: they are served without a deadline.")
    cluster: str = Field(
        default="", description="The cluster, as `Loadmanager-Cluster` names it; empty while the broker joins it."
    )


class Claimed(_Shape):
    """The bundle of a key, which this service has acquired."""

    bundle: str
    token: str
    partition: int


class HookData(_Shape):
    """What every hook has: its session, and its place in the order of the session's hooks."""

    session: str
    sequence: int


class BundleHook(HookData):
    """`prepare`, `abandon`, `positions`, `rates`: of this bundle. Its keys have positions `lo` ≤ p < `hi`."""

    bundle: str
    namespace: str
    lo: int
    hi: int


class AcquireHook(BundleHook):
    """`acquire`: raise the token in the storage, load, serve."""

    token: str
    partition: int
    hand_off: str | None = Field(description="Base64 of what the former owner handed over.")


class To(_Shape):
    """The next owner, and where clients reach its service, by protocol."""

    broker: str
    urls: dict[str, str]


class ReleaseHook(BundleHook):
    """`release`: admit no more, let requests in progress end, flush."""

    to: To | None


D = TypeVar("D", bound=HookData)


class Hook(BaseModel, Generic[D]):
    """The body of a hook."""

    type: str
    timestamp: datetime
    data: D


class HandOff(BaseModel):
    """The answer to `release`."""

    hand_off: str | None = Field(default=None, description="Base64 of at most 64 KiB.")


class Loads(BaseModel):
    """The answer to `load`: by bundle the fields of `BundleLoad`, those that are zero left out."""

    loads: list[dict[str, Any]]


class Positions(BaseModel):
    """The answer to `positions`."""

    positions: list[int]


class Rates(BaseModel):
    """The answer to `rates`: position, messages and bytes per second of each busy key."""

    rates: list[tuple[int, float, float]]


class Secret:
    """The secret that a sidecar and its service share."""

    def __init__(self, text: str) -> None:
        """Raises Invalid unless it is `whsec_` and the base64 of at least 24 bytes."""
        self.text = text.strip()
        try:
            self._key = base64.b64decode(self.text.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            self._key = b""
        if not self.text.startswith(SECRET_PREFIX) or len(self._key) < MIN_SECRET_BYTES:
            raise Invalid(
                f"a secret is {SECRET_PREFIX} and the base64 of at least {MIN_SECRET_BYTES} bytes, on one line"
            )

    @classmethod
    def new(cls) -> Secret:
        """A random one."""
        return cls(SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode())

    @classmethod
    def of(cls, file: Path) -> Secret:
        """Read it from a file; if there is none, make it, for its owner and group. Raises Invalid, OSError."""
        if not file.exists():
            made = file.with_name(f".{file.name}.{os.getpid()}")
            made.touch(0o640)
            made.write_text(cls.new().text + "\n")
            with suppress(FileExistsError):
                os.link(made, file)  # whole or not at all: the service may read it at any moment
            made.unlink()
        try:
            return cls(file.read_text())
        except (Invalid, UnicodeError):
            raise Invalid(
                f"{file} has no secret: one line, {SECRET_PREFIX} and the base64 of at least {MIN_SECRET_BYTES} bytes; "
                "delete it, and a new one is made"
            ) from None

    def is_bearer(self, authorization: str) -> bool:
        """Whether a header `Authorization` shows this secret."""
        return hmac.compare_digest(authorization.encode(), f"Bearer {self.text}".encode())

    def signed(self, message_id: str, body: bytes, at: datetime) -> dict[str, str]:
        """The headers that sign a hook."""
        stamp = str(int(at.timestamp()))
        digest = hmac.digest(self._key, b".".join((message_id.encode(), stamp.encode(), body)), hashlib.sha256)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": stamp,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def hook_body(kind: str, data: HookData, at: datetime) -> bytes:
    """The body of a hook."""
    stamp = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return msgspec.json.encode({"type": kind, "timestamp": stamp, "data": data.model_dump()})
