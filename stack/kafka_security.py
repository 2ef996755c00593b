"""Listeners on which Kafka asks who is there: a password (SASL, PLAIN or SCRAM) in the clear, and one under TLS.

For tests only.

Each server gets a new key; its certificate is self-signed, and valid for the loopback address.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.programs import StackError, program

SASL = "SASL"
TLS = "TLS"
PROTOCOLS = {SASL: "SASL_PLAINTEXT", TLS: "SASL_SSL"}
SCRAM = "SCRAM-SHA-512"
KEYTOOL_TIMEOUT_S = 60
KEY_PASSWORD = "only-for-tests"


@dataclass(frozen=True)
class Security:
    """The users (name to password) of one server, those of them who may do nothing, and where its key stands."""

    users: Mapping[str, str]
    directory: Path
    powerless: Collection[str] = ()

    @property
    def certificate(self) -> Path:
        """What a client has to trust, as PEM."""
        return self.directory / "certificate.pem"

    @property
    def settings(self) -> dict[str, str]:
        """What the server's properties need."""
        users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        powerful = ["ANONYMOUS", *(name for name in self.users if name not in self.powerless)]
        found = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in powerful),
            "ssl.keystore.location": str(self._keystore),
            "ssl.keystore.password": KEY_PASSWORD,
            "ssl.key.password": KEY_PASSWORD,
        }
        for listener in PROTOCOLS:
            prefix = f"listener.name.{listener.lower()}"
            found[f"{prefix}.sasl.enabled.mechanisms"] = f"PLAIN,{SCRAM}"
            found[f"{prefix}.{SCRAM.lower()}.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
            found[f"{prefix}.plain.sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            )
        return found

    @property
    def scram(self) -> list[str]:
        """Arguments of the tool that formats the storage: SCRAM's passwords are in Kafka's own log."""
        return [
            word
            for name, password in self.users.items()
            for word in ("--add-scram", f'{SCRAM}=[name="{name}",password="{password}"]')
        ]

    def make_key(self) -> None:
        """Make key and certificate, unless they are there. Raises StackError."""
        if self.certificate.exists():
            return
        names = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-validity", "30"]
        self._keytool("-genkeypair", "-keyalg", "RSA", "-keysize", "2048", *names)
        self._keytool("-exportcert", "-rfc", "-file", str(self.certificate))

    @property
    def _keystore(self) -> Path:
        return self.directory / "keystore.p12"

    def _keytool(self, *arguments: str) -> None:
        store = ["-keystore", str(self._keystore), "-storetype", "PKCS12", "-storepass", KEY_PASSWORD, "-alias", "key"]
        run = subprocess.run(
            [program("keytool"), *arguments, *store],
            capture_output=True,
            text=True,
            check=False,
            timeout=KEYTOOL_TIMEOUT_S,
        )
        if run.returncode != 0:
            raise StackError(f"keytool made no key in {self.directory}:\n{(run.stdout + run.stderr)[-2000:]}")
