"""A cluster that wants tokens, over plain HTTP on loopback or over TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loadmanager.model.policies.model import AccessPolicy, AccessRole, Kind
from tests.api.access.issuing import Certificates, Issuer, jwks
from tests.api.conftest import Broker, Cluster


class Guarded:
    """A cluster whose brokers want tokens of `issuer`; `root` is superuser."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.issuer = Issuer("k1")
        self.keys = folder / "keys.json"
        self.keys.write_bytes(jwks(self.issuer))
        self.certificates = Certificates(folder / "tls")
        self.context = ssl.create_default_context(cafile=self.certificates.ca)

    @property
    def settings(self) -> dict[str, Any]:
        """Of brokers that want tokens."""
        return {"token_keys": str(self.keys), "superusers": "root"}

    @property
    def settings_with_tls(self) -> dict[str, Any]:
        """The same over TLS, where client certificates count too."""
        certificate, key = self.certificates.issue("broker", "127.0.0.1")
        tls = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": self.certificates.ca}
        return {**self.settings, **tls}

    async def start(self, count: int = 1, **settings: Any) -> None:
        """Brokers that want tokens; `settings` may say more."""
        await self.cluster.start(count, **{**self.settings, **settings})

    async def start_with_tls(self, count: int = 1, **settings: Any) -> None:
        """The same over TLS."""
        await self.cluster.start(count, **{**self.settings_with_tls, **settings})

    def be_root(self) -> None:
        """Have all brokers want tokens over TLS, and all clients that do not say otherwise show that of `root`."""
        self.cluster.settings = self.settings_with_tls
        self.cluster.tls = self.context
        self.cluster.credentials = self.bearer("root")

    def bearer(self, principal: str, **claims: Any) -> dict[str, str]:
        """The headers with a token of this principal."""
        return {"Authorization": f"Bearer {self.issuer.token(principal, **claims)}"}

    async def ask(self, principal: str | None, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
        """As `Cluster.ask`, by this principal; None: without credentials."""
        said = self.bearer(principal) if principal is not None else {}
        headers = {**said, **options.pop("headers", {})}
        options.setdefault("ssl", self.context)
        return await self.cluster.ask(method, path, headers=headers, **options)

    async def grant(self, role: AccessRole, principal: str, *namespaces: str) -> None:
        """Give a role; every broker goes by it on return."""
        name = f"{principal}-{role}".replace("*", "all")
        policy = AccessPolicy(role, (principal,), namespaces)
        await self.cluster.brokers[0].node.policies.put(Kind.ACCESS, name, policy, author="test")
        await self.cluster.until(lambda: all(name in known(each) for each in self.cluster.brokers))


def known(broker: Broker) -> set[str]:
    return set(broker.node.policies.current().access)


@pytest_asyncio.fixture(params=["open", "guarded"])
async def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster where nobody is asked who they are, and one that wants tokens over TLS and whose clients are `root`."""
    cluster = Cluster(tmp_path, AsyncExitStack())
    if request.param == "guarded":
        Guarded(cluster, tmp_path).be_root()
    try:
        yield cluster
    finally:
        await cluster.close()


without_access = pytest.mark.parametrize("cluster", ["open"], indirect=True)
"""For tests with `attacked` as `cluster`, where it makes no difference who asks: they run in the open one alone."""


@pytest.fixture
def guarded(cluster: Cluster, tmp_path: Path) -> Guarded:
    """No broker yet: `await guarded.start()`."""
    return Guarded(cluster, tmp_path)
