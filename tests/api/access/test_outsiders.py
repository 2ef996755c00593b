"""Whoever tries to change something and may not is refused, changes nothing, and is in the audit log."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from loadmanager.model.policies.model import AccessRole
from loadmanager_api import audit
from tests.api.access.conftest import Guarded
from tests.api.access.issuing import Issuer
from tests.api.conftest import WAIT_S
from tests.api.raw import Raw, refused_while_pouring
from tests.api.test_browsers import EVIL, NAMESPACE, WRITES, send

Headers = Callable[[Guarded], dict[str, str]]

JSON = {"Content-Type": "application/json"}
ATTEMPTS: dict[str, tuple[int, Headers]] = {
    "no token": (401, lambda _: {}),
    "a token of somebody else's key": (401, lambda _: {"Authorization": f"Bearer {Issuer('k1').token('root')}"}),
    "a token for another service": (401, lambda guarded: guarded.bearer("root", aud="billing")),
    "a token that has expired": (401, lambda guarded: guarded.bearer("root", exp=1)),
    "a token that is not valid yet": (401, lambda guarded: guarded.bearer("root", nbf=1 << 40)),
    "a viewer's token": (403, lambda guarded: guarded.bearer("ann")),
    "a page of another origin": (403, lambda guarded: {**guarded.bearer("root"), "Origin": EVIL}),
    "a page of another site": (403, lambda guarded: {**guarded.bearer("root"), "Sec-Fetch-Site": "cross-site"}),
    "a rebound name": (421, lambda guarded: {**guarded.bearer("root"), "Host": "evil.example"}),
}


async def refusals(guarded: Guarded, count: int) -> list[dict[str, Any]]:
    """The newest so many, oldest first, as soon as they are written."""
    async with asyncio.timeout(WAIT_S):
        while True:
            entries = (await guarded.ask("root", "GET", "/v1/audit?limit=100"))[1]["entries"]
            if len(entries) >= count:
                return entries[::-1]
            await asyncio.sleep(0.02)


async def test_an_attempt_is_refused_changes_nothing_and_is_written_down(
    guarded: Guarded, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REFUSALS_EVERY_S", 0.0)
    guarded.be_root()
    cluster = guarded.cluster
    await cluster.start()
    await cluster.create("t/n")
    await cluster.assign("t/n/a")
    await guarded.grant(AccessRole.VIEWER, "ann", "*")
    before, cluster.credentials = cluster.history(), {}
    for number, (attempt, (wanted, headers)) in enumerate(ATTEMPTS.items()):
        with subtests.test(attempt=attempt):
            for method, path, body in WRITES:
                told = {"Host": "localhost", "Content-Length": str(len(body)), **JSON, **headers(guarded)}
                assert (await send(cluster, method, path, told, body))[0] == wanted, path
            entries = (await refusals(guarded, (number + 1) * len(WRITES)))[number * len(WRITES) :]
            assert [(each["action"], each["about"]) for each in entries] == [(m.lower(), path) for m, path, _ in WRITES]
            assert {(each["result"], each["status"], each["address"]) for each in entries} == {
                ("refused", wanted, "127.0.0.1")
            }
            assert {(each["principal"], each["how"]) for each in entries} == {
                ("ann", "token") if attempt == "a viewer's token" else ("somebody at 127.0.0.1", "unverified")
            }
            await cluster.agree()
            assert cluster.history() == before


async def test_a_form_of_another_page_is_written_down(guarded: Guarded) -> None:
    """Old browsers send it without saying from where."""
    guarded.be_root()
    await guarded.cluster.start()
    form = {"Host": "localhost", "Content-Type": "text/plain", "Content-Length": "2"}
    assert (await send(guarded.cluster, "POST", "/v1/balancing/pause", form, b"{}"))[0] == 415
    (entry,) = await refusals(guarded, 1)
    assert (entry["about"], entry["status"]) == ("/v1/balancing/pause", 415)
    assert not (await guarded.ask("root", "GET", "/v1/balancing"))[1]["paused"]["cluster"]
    _, text, _ = await guarded.ask("root", "GET", "/metrics")
    assert 'loadmanager_http_access_refused_total{why="form"} 1.0' in text


async def test_what_a_foreign_page_reads_is_not_written_down(guarded: Guarded) -> None:
    guarded.be_root()
    await guarded.cluster.start()
    assert (await send(guarded.cluster, "GET", NAMESPACE, {"Host": "evil.example"}))[0] == 421
    assert (await send(guarded.cluster, "DELETE", NAMESPACE, {"Host": "evil.example"}))[0] == 421
    assert [each["action"] for each in await refusals(guarded, 1)] == ["delete"]


async def test_a_body_of_somebody_without_a_token_is_not_read(guarded: Guarded, taken: Counter[int]) -> None:
    guarded.be_root()
    cluster = guarded.cluster
    await cluster.start()
    head = "POST /v1/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for length in ("Content-Length: 100000000", "Transfer-Encoding: chunked"):
        raw = await Raw.to(cluster.brokers[0].url, cluster.tls)
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        answer = await refused_while_pouring(taken, raw, f"{head}{length}\r\n\r\n".encode(), chunk, 100)
        assert answer.split()[1] in (b"401", b"413"), answer


async def test_a_stolen_token_counts_and_the_audit_log_says_from_where(guarded: Guarded) -> None:
    """A bearer token is good for whoever has it: docs/security.md."""
    guarded.be_root()
    await guarded.cluster.start()
    url, stolen = f"{guarded.cluster.brokers[0].url}{NAMESPACE}", guarded.bearer("root")
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0), ssl=guarded.context, family=socket.AF_INET)
    async with aiohttp.ClientSession(connector=elsewhere) as thief, thief.put(url, headers=stolen) as answer:
        assert answer.status == 204
    (entry,) = await refusals(guarded, 1)
    assert (entry["principal"], entry["address"], entry["result"]) == ("root", "127.0.0.2", "done")
