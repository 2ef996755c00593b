"""How a client shows brokers who it is: a token, a certificate, and the authorities that it trusts.

A token is sent over TLS, or to this machine; never in plain text to another one, unless `insecure` is on.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from loadmanager.errors import Forbidden, Invalid

PREFIX = "LOADMANAGER_"
LOOK_S = 1.0
"""The shortest time between two looks for a newer token in its file."""


class Credentials:
    """Credentials of one client. Without any it is anonymous, and trusts the authorities of this machine."""

    def __init__(
        self,
        *,
        token: str = "",
        token_file: str = "",
        ca: str = "",
        certificate: str = "",
        key: str = "",
        insecure: bool = False,
    ) -> None:
        """`token_file` is read again when it changes. `ca`, `certificate` and `key` are PEM files. Raises Invalid."""
        if token and token_file:
            raise Invalid("give a token or a token file, not both")
        if key and not certificate:
            raise Invalid("a client's key needs its certificate")
        self._token = _checked(token)
        self._token_file = token_file
        self._ca, self._certificate, self._key = ca, certificate, key
        self._insecure = insecure
        self._looked_s = float("-inf")
        self._read: tuple[int, int, int] | None = None
        self._context: ssl.SSLContext | None = None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """`LOADMANAGER_TOKEN` or `_TOKEN_FILE`, `_CA`, `_CLIENT_CERTIFICATE`, `_CLIENT_KEY`. Raises Invalid.

        `LOADMANAGER_INSECURE=true` permits sending a token without TLS.
        """

        def given(name: str) -> str:
            return environment.get(PREFIX + name, "")

        return cls(
            token=given("TOKEN"),
            token_file=given("TOKEN_FILE"),
            ca=given("CA"),
            certificate=given("CLIENT_CERTIFICATE"),
            key=given("CLIENT_KEY"),
            insecure=given("INSECURE").lower() in ("1", "true", "yes", "on"),
        )

    def headers(self, url: str) -> dict[str, str]:
        """The headers for a request to this URL. Raises Forbidden instead of sending a token that others could read."""
        token = self._present_token()
        if not token:
            return {}
        parts = urlsplit(url)
        if parts.scheme != "https" and not self._insecure and not _is_this_machine(parts.hostname or ""):
            raise Forbidden(
                f"the token is not sent to {parts.scheme}://{parts.hostname}: others could read it. Use https, or say "
                f"{PREFIX}INSECURE=true"
            )
        return {"Authorization": f"Bearer {token}"}

    def context(self) -> ssl.SSLContext:
        """TLS for connections to brokers. Raises Invalid if the files are unusable."""
        if self._context is None:
            try:
                context = ssl.create_default_context(cafile=self._ca or None)
                if self._certificate:
                    context.load_cert_chain(self._certificate, self._key or None, password=_no_password)
            except (OSError, ValueError) as error:
                files = ", ".join(file for file in (self._ca, self._certificate, self._key) if file)
                raise Invalid(f"{files}: not usable as PEM files: {_why(error)}") from None
            self._context = context
        return self._context

    def session(self, *, limit: int = 100, **options: Any) -> aiohttp.ClientSession:
        """A session whose connections use `context`; each request still needs `headers`."""
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit, ssl=self.context()), **options)

    def _present_token(self) -> str:
        if self._token_file and time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            path = Path(self._token_file)
            try:
                found = path.stat()
                check_private(path, found.st_mode)
                state = (found.st_mtime_ns, found.st_size, found.st_ino)
                if state != self._read:
                    self._token, self._read = _checked(path.read_text()), state
            except (OSError, UnicodeDecodeError) as error:
                raise Invalid(f"{path}: this token file cannot be read: {_why(error)}") from None
        return self._token


def check_private(path: Path, mode: int) -> None:
    """Raises Invalid for a secret's file that every user of the machine may read or write."""
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise Invalid(
            f"{path}: every user of this machine may read or write it: chmod 600 {path} (a secret that Kubernetes "
            "mounts: defaultMode: 0440, and fsGroup)"
        )


def _checked(token: str) -> str:
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Invalid("the token is not one line of printable ASCII without blanks")
    return token


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _no_password() -> str:
    raise ValueError("the key is encrypted; give a key without a password")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
