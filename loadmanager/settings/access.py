"""Who reaches a broker's admin port, and how a client shows who it is; all fixed while the broker runs.

The files themselves are read again when they change: a renewed certificate or key needs no restart.
"""

from __future__ import annotations

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import fixed


class Access(BaseSettings):
    """TLS, tokens, superusers."""

    tls_certificate: str = fixed("", "PEM file with the certificate of the admin port, and its chain", "plain HTTP")
    tls_key: str = fixed("", "PEM file with the private key of `tls_certificate`")
    tls_client_ca: str = fixed(
        "", "PEM file with the authorities whose client certificates are accepted", "no certificates, tokens only"
    )
    tls_client_required: bool = fixed(
        False,
        "refuse connections without a client certificate",
        "a token is enough",
        pulsar="tlsRequireTrustedClientCert",
    )
    token_keys: str = fixed(
        "",
        "file with the public keys of tokens (PEM, or a JWKS), or the https URL of a JWKS; "
        "empty with an https `token_issuer`: that issuer's OpenID Connect discovery",
        "no tokens",
    )
    token_issuer: str = fixed("", "required `iss` of a token", "whoever has one of the keys")
    token_audience: str = fixed(
        "loadmanager", "required `aud` of a token", "a token for another service is no use here"
    )
    token_subject_claim: str = fixed(
        "sub",
        "the claim that names the principal",
        "the one that all issuers set",
        pulsar="tokenAuthClaim",
        min_length=1,
    )
    token_leeway_s: float = fixed(30.0, "by which an issuer's clock may differ", "clocks that NTP lost", ge=0, le=600)
    superusers: str = fixed(
        "",
        "principals, separated by commas, that may do everything",
        "somebody must write the first access policy",
        pulsar="superUserRoles",
    )

    @property
    def takes_tokens(self) -> bool:
        """Whether clients can authenticate with a token."""
        return bool(self.token_keys or self.token_issuer)

    @property
    def authentication(self) -> bool:
        """Whether clients must say who they are."""
        return self.takes_tokens or bool(self.tls_client_ca)

    @property
    def superuser_names(self) -> frozenset[str]:
        """The principals among `superusers`."""
        return frozenset(each.strip() for each in self.superusers.split(",") if each.strip())

    @property
    def admin_scheme(self) -> str:
        """The scheme of the admin URL."""
        return "https" if self.tls_certificate else "http"
