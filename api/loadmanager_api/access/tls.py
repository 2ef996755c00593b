"""TLS of the admin port: the context for new connections, read again when its files change; names in certificates."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager_api.access.files import Watched
from loadmanager_api.access.sender import Principal

_log = logging.getLogger("loadmanager")

_NAMES = ("URI", "DNS", "email")
"""Kinds of alternative names, in the order in which they name a principal that has no common name."""


class Tls:
    """The server side of TLS. `context` is that of the next connection."""

    def __init__(self, settings: Settings) -> None:
        """Raises Invalid if the files are no certificate, key and authorities."""
        self._settings = settings
        self._files = Watched((settings.tls_certificate, settings.tls_key, settings.tls_client_ca))
        self.context = _load(settings)
        self.until_s = _expires_s(settings)
        """When the certificate expires, in seconds since 1970."""

    def look(self) -> None:
        """Read the files again if they changed. Files that cannot be used are logged; the earlier ones stay in use."""
        if not self._files.changed():
            return
        try:
            self.context = _load(self._settings)
            self.until_s = _expires_s(self._settings)
        except Invalid as error:
            _log.error("TLS goes on with its earlier files: %s", error)
        else:
            _log.info("read the files of TLS again")


def _load(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = f"tls_certificate={settings.tls_certificate}, tls_key={settings.tls_key}"
        raise Invalid(f"{files}: no certificate with its key, both as PEM: {_why(error)}") from None
    if settings.tls_client_ca:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ValueError) as error:
            what = "no certificates of authorities as PEM"
            raise Invalid(f"tls_client_ca={settings.tls_client_ca}: {what}: {_why(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED if settings.tls_client_required else ssl.CERT_OPTIONAL
    return context


def _expires_s(settings: Settings) -> float:
    """When the first certificate of the file expires; the file is known to have one."""
    from cryptography.x509 import load_pem_x509_certificate  # takes longer to import than the rest of the endpoints

    return load_pem_x509_certificate(Path(settings.tls_certificate).read_bytes()).not_valid_after_utc.timestamp()


def _no_password() -> str:
    raise ValueError("the key is encrypted; give a key without a password, in a file that only the broker may read")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def certified(transport: Any) -> Principal | None:
    """The principal of a connection's client certificate, None if it showed none that names a principal."""
    tls = transport.get_extra_info("ssl_object")
    certificate: dict[str, Any] | None = tls.getpeercert() if tls is not None else None
    if not certificate:
        return None
    name = name_in(certificate)
    return Principal(name, "certificate", ssl.cert_time_to_seconds(certificate["notAfter"])) if name else None


def name_in(certificate: dict[str, Any]) -> str:
    """The name of a verified certificate: its common name, else its first alternative name; empty if it has none.

    `certificate` is in the form of `ssl.SSLSocket.getpeercert`.
    """
    for parts in certificate.get("subject", ()):
        for kind, value in parts:
            if kind == "commonName" and value:
                return str(value)
    others: list[tuple[str, str]] = list(certificate.get("subjectAltName", ()))
    return next((value for wanted in _NAMES for kind, value in others if kind == wanted), "")
