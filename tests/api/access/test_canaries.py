"""No secret comes out: they are planted wherever there are some, and looked for in all that a broker says."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadmanager.client import Credentials
from loadmanager.diagnostics.support_bundle import collect
from loadmanager_api.access.rules import RULES, Scope
from tests.api.access.conftest import Guarded
from tests.api.access.test_roles import samples

CANARY = "canary-7f3a9c"
SHARED = base64.urlsafe_b64encode(f"{CANARY}-shared-secret-of-tokens-{CANARY}".encode()).rstrip(b"=").decode()
SETTINGS: dict[str, Any] = {
    "kafka": {"sasl.password": f"{CANARY}-kafka", "sasl.jaas.config": f'password="{CANARY}-jaas"'},
    "zookeeper": {"auth_data": f"{CANARY}-zookeeper"},
    "properties": {"note": f"{CANARY}-property"},
}


@pytest.mark.slow
async def test_no_secret_is_in_answers_logs_the_audit_log_or_a_support_bundle(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "loadmanager")
    keys = {"keys": [guarded.issuer.jwk, {"kty": "oct", "k": SHARED, "kid": "shared"}]}
    guarded.keys.write_bytes(msgspec.json.encode(keys))
    await guarded.start_with_tls(**SETTINGS)
    cluster = guarded.cluster
    await cluster.create("t/n")
    token = guarded.issuer.token("root", jti=CANARY)
    tokens = {token, guarded.issuer.token("root", aud=CANARY)}
    said: list[str] = []

    async def ask(method: str, path: str, bearer: str, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {bearer}"}
        _, answer, told = await cluster.ask(method, path, headers=headers, ssl=guarded.context, **options)
        said.append(f"{method} {path.partition('?')[0]}: {answer} {dict(told)}")

    for sample in samples():
        if sample.path.startswith("/v1/watch"):
            continue
        for bearer in tokens:
            options = {} if sample.body is None else {"json": sample.body}
            await ask(sample.method, sample.path, bearer, **options)
    wrong = {"value": 1, "password": f"{CANARY}-body"}
    await ask("PUT", "/v1/config/balancing_interval_s", token, json=wrong)
    await ask("PUT", "/v1/policies/cluster/cluster", token, json={"reason": f"password={CANARY}-reason"})
    await ask("GET", f"/v1/bundles?password={CANARY}-query", token)
    await ask("GET", "/v1/audit?limit=1000", token)
    for template, rules in RULES.items():
        if "GET" in rules and rules["GET"].scope is not Scope.OPEN and "watch" not in template:
            await ask("GET", re.sub(r"{[^}]*}", "x", template), token)
    collected = await collect(cluster.brokers[0].url, (), Credentials(token=token, ca=guarded.certificates.ca))
    assert len(collected.files) > 8, collected.missing
    said += [f"{name}: {content.decode()}" for name, content in collected.files.items()]
    said += [f"missing {lack.name}: {lack.reason}" for lack in collected.missing]
    said.append(caplog.text)
    private = Path(cluster.brokers[0].node.settings.tls_key).read_text().splitlines()[1]  # noqa: ASYNC240
    secrets = [SHARED, private, *(part for each in tokens for part in each.split(".")[1:])]
    for text in said:
        kept = text.replace(f"password={CANARY}-reason", "")  # what operators write into a reason is their own
        for secret in secrets:
            assert secret not in kept, text[:300]
        for where in ("kafka", "jaas", "zookeeper", "property", "body", "query"):
            assert f"{CANARY}-{where}" not in kept, text[:300]
    assert any("sasl.password" in text for text in said), "names are shown, so the places were looked at"
