"""Issues tokens and certificates for tests: with proper keys, and in every wrong way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jwt
import msgspec
import trustme
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt import algorithms

AUDIENCE = "loadmanager"


class Issuer:
    """Has one key, and issues tokens with it."""

    def __init__(self, kid: str = "") -> None:
        self.kid = kid
        self.key: EllipticCurvePrivateKey = generate_private_key(SECP256R1())

    @property
    def pem(self) -> bytes:
        """The public key."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def private_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key as an entry of a JWKS."""
        found = algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**found, "kid": self.kid, "use": "sig"}

    def claims(self, subject: str, **changed: Any) -> dict[str, Any]:
        """Good claims for an hour, with changes; None removes a claim."""
        claims: dict[str, Any] = {"sub": subject, "aud": AUDIENCE, "exp": int(time.time()) + 3_600, **changed}
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, subject: str = "ann", headers: Mapping[str, Any] | None = None, **changed: Any) -> str:
        kid = {"kid": self.kid} if self.kid else {}
        return jwt.encode(self.claims(subject, **changed), self.key, "ES256", {**kid, **(headers or {})})


def jwks(*issuers: Issuer) -> bytes:
    """The public keys of these as one JWKS."""
    return msgspec.json.encode({"keys": [each.jwk for each in issuers]})


class Certificates:
    """An authority of its own, and files with what it issues."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self, file: str, *names: str, common_name: str | None = None, until: datetime | None = None
    ) -> tuple[str, str]:
        """Paths of a certificate with its chain, and of its key; an earlier one of this name is replaced."""
        found = self._authority.issue_cert(*names, common_name=common_name, not_after=until)
        certificate, key = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        key.write_bytes(found.private_key_pem.bytes())
        certificate.write_bytes(b"".join(blob.bytes() for blob in found.cert_chain_pems))
        return str(certificate), str(key)

    def spoil(self, file: str) -> None:
        """Leave half a certificate, as a full disk does."""
        (self._folder / f"{file}.pem").write_text("-----BEGIN CERT")
