"""A broker that asks who its clients are, over real connections: TLS, certificates, tokens, the lookups' fast path."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from loadmanager.client import Credentials, Router
from loadmanager.errors import Forbidden, Invalid
from loadmanager.model.policies.model import AccessRole, Kind
from loadmanager.settings import Settings
from loadmanager_api.access import access
from loadmanager_api.access.access import Access
from loadmanager_api.access.sender import Principal, Unauthenticated
from loadmanager_api.access.tls import certified, name_in
from loadmanager_api.access.tokens import LEEWAY_S
from loadmanager_api.server import NotLoopback, check_reach
from stack.servers import free_port
from tests.api.access.conftest import Guarded
from tests.api.access.issuing import Certificates, Issuer, jwks
from tests.api.conftest import WAIT_S

LOOKUP = "/lookup/v2/topic/persistent/t/n/x"


async def eventually(done: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await done():
            await asyncio.sleep(0.02)


# --- credentials


async def test_a_token_of_somebody_without_a_role_says_who_that_is(guarded: Guarded) -> None:
    await guarded.start()
    status, answer, _ = await guarded.ask("ann", "GET", "/v1/config")
    assert status == 403
    assert answer["detail"] == "ann is not viewer in the cluster: an access policy would have to say so"


NO_BEARER_TOKENS: list[tuple[str, str]] = [
    ("Basic cm9vdDpyb290", "another method than Bearer"),
    ("Bearer", "another method than Bearer"),
    ("Bearer ", "the token cannot be read"),
    ("Bearer x", "the token cannot be read"),
    ("bearer a.b.c", "the token cannot be read"),
]


async def test_what_is_no_bearer_token_is_401(guarded: Guarded, subtests: pytest.Subtests) -> None:
    await guarded.start()
    for header, says in NO_BEARER_TOKENS:
        with subtests.test(header=header, says=says):
            status, answer, _ = await guarded.cluster.ask("GET", "/v1/config", headers={"Authorization": header})
            assert (status, says in answer["detail"]) == (401, True), answer


async def test_an_answer_never_repeats_the_token(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    await guarded.start()
    for token in (Issuer("k1").token("root"), guarded.issuer.token("root", aud="other"), guarded.issuer.token("ann")):
        headers = {"Authorization": f"Bearer {token}"}
        _, answer, said = await guarded.cluster.ask("GET", "/v1/config", headers=headers)
        for part in token.split("."):
            assert part not in msgspec.json.encode(answer).decode() + str(said) + caplog.text


async def test_a_remembered_token_expires_all_the_same(guarded: Guarded) -> None:
    await guarded.start()
    headers = guarded.bearer("root", exp=time.time() + 1.5 - LEEWAY_S)
    assert (await guarded.cluster.ask("GET", "/v1/config", headers=headers))[0] == 200

    async def refused() -> bool:
        return (await guarded.cluster.ask("GET", "/v1/config", headers=headers))[0] == 401

    await eventually(refused)


async def test_a_key_that_was_taken_away_ends_its_tokens_at_once(guarded: Guarded) -> None:
    """Within a second: remembered tokens are forgotten with their key."""
    await guarded.start()
    headers = guarded.bearer("root")
    assert (await guarded.cluster.ask("GET", "/v1/config", headers=headers))[0] == 200
    newer = Issuer("k2")
    guarded.keys.write_bytes(jwks(newer))

    async def rotated() -> bool:
        return (await guarded.cluster.ask("GET", "/v1/config", headers=headers))[0] == 401

    await eventually(rotated)
    guarded.issuer = newer
    assert (await guarded.ask("root", "GET", "/v1/config"))[0] == 200


async def test_two_authorization_headers_are_refused(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n")
    both = [("Authorization", guarded.bearer(who)["Authorization"]) for who in ("ann", "root")]
    for header in both:  # each of them is remembered
        await guarded.cluster.ask("GET", LOOKUP, headers=[header])
    assert (await guarded.cluster.ask("GET", "/v1/config", headers=both))[0] == 401
    assert (await guarded.cluster.ask("GET", LOOKUP, headers=both))[0] == 401


def test_what_is_remembered_of_tokens_is_bounded(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REMEMBERED", 3)
    found = Access(Settings(**guarded.settings))
    for number in range(10):
        headers = [(b"authorization", guarded.bearer("ann", jti=str(number))["Authorization"].encode())]
        found.identify(headers, None)
        assert found.known(headers, None) is not None
        assert len(found._verified) <= 3


def test_a_token_is_verified_once_however_much_stands_before_it(guarded: Guarded) -> None:
    found = Access(Settings(**guarded.settings))
    method, _, token = guarded.bearer("ann")["Authorization"].partition(" ")
    for blanks in range(1, 30_000, 3_000):
        headers = [(b"authorization", f"{method}{' ' * blanks}{token} ".encode())]
        assert (found.known(headers, None) is None) == (blanks == 1)
        assert found.identify(headers, None).name == "ann"
    assert sum(map(len, found._verified)) < 100, "bytes of one hash, not of ten headers"


def test_another_method_with_a_verified_token_is_not_known(guarded: Guarded) -> None:
    found = Access(Settings(**guarded.settings))
    token = guarded.bearer("ann")["Authorization"].removeprefix("Bearer ")
    found.identify([(b"authorization", f"Bearer {token}".encode())], None)
    for header in (f"Digest {token}", f"Bearer{token}", f"Basic: {token}", token, ""):
        assert found.known([(b"authorization", header.encode())], None) is None


async def test_no_method_goes_without_credentials(guarded: Guarded) -> None:
    await guarded.start()
    for method in ("HEAD", "OPTIONS", "TRACE", "PROPFIND"):
        for path in ("/v1/config", "/admin/v2/namespaces/t/n", LOOKUP, "/nothing-is-there"):
            assert (await guarded.ask(None, method, path))[0] == 401, f"{method} {path}"
    assert (await guarded.ask("ann", "HEAD", "/v1/config"))[0] == 403


async def test_refusals_are_counted_by_reason(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.ask(None, "GET", "/v1/config")
    await guarded.ask("ann", "GET", "/v1/config")
    await guarded.cluster.ask("GET", "/v1/config", headers=guarded.bearer("ann", aud="other"))
    _, text, _ = await guarded.ask("root", "GET", "/metrics")
    for why in ("missing", "role", "audience"):
        assert f'loadmanager_http_access_refused_total{{why="{why}"}} 1.0' in text


# --- authors


async def test_the_author_is_who_the_client_proved_to_be_whatever_it_says(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n")
    forged = {"X-Author": "somebody-else"}
    await guarded.ask("root", "PUT", "/v1/config/split", json={"value": False}, headers=forged)
    await guarded.ask("root", "POST", "/v1/balancing/pause", json={"author": "somebody-else"}, headers=forged)
    node = guarded.cluster.brokers[0].node
    assert [each.author for each in node.live.history("split")] == ["root"]
    assert [each.author for each in node.policies.history(Kind.CLUSTER, "cluster")] == ["root"]


# --- lookups


async def test_lookups_need_the_role_of_a_client_on_every_path(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n")
    await guarded.cluster.create("u/m")
    await guarded.grant(AccessRole.CLIENT, "carts", "t/n")
    counts = guarded.cluster.brokers[0].node.current.lookup.counts
    async with aiohttp.ClientSession() as session:  # one connection: later lookups take the fast path

        async def look_up(path: str, principal: str | None) -> int:
            headers = tokens[principal] if principal else {}
            async with session.get(guarded.cluster.brokers[0].url + path, headers=headers) as answer:
                await answer.read()
                return answer.status

        tokens = {name: guarded.bearer(name) for name in ("carts", "ann")}
        for _ in range(3):
            assert await look_up(LOOKUP, "carts") == 200
            assert await look_up(LOOKUP + "/bundle", "carts") == 200
            assert await look_up(LOOKUP, "ann") == 403
            assert await look_up(LOOKUP, None) == 401
            assert await look_up("/lookup/v2/topic/persistent/u/m/x", "carts") == 403
            assert await look_up("/lookup/v2/topic/persistent/none/such/x", "carts") == 403
    assert counts.at_once >= 2, "the fast path knows who asks"


async def test_of_many_topics_each_has_its_own_refusal(guarded: Guarded) -> None:
    await guarded.start()
    for namespace in ("t/n", "u/m"):
        await guarded.cluster.create(namespace)
    await guarded.grant(AccessRole.CLIENT, "carts", "t/n")
    body = {"topics": ["t/n/a", "u/m/a", "no/such/a"]}
    for _ in range(2):
        status, answer, _ = await guarded.ask("carts", "POST", "/v1/lookup", json=body)
        assert status == 200
        assert [each["error"] and each["error"]["status"] for each in answer["answers"]] == [None, 403, 403]
        await guarded.cluster.assign("u/m/a")  # what is known is no more open than what has to be assigned


async def test_a_watch_shows_the_namespace_that_its_client_may_see(guarded: Guarded) -> None:
    await guarded.start()
    for namespace in ("t/n", "u/m"):
        await guarded.cluster.create(namespace)
    await guarded.grant(AccessRole.VIEWER, "ann", "t/n")
    url = guarded.cluster.brokers[0].url + "/v1/watch?namespace=t/n"
    async with guarded.cluster.session.get(url, headers=guarded.bearer("ann")) as answer:
        assert answer.status == 200
        async for line in answer.content:
            assert b"u/m" not in line
            if b"snapshot-end" in line:
                break


# --- TLS


async def test_over_tls_everything_works_and_plain_http_does_not(guarded: Guarded) -> None:
    await guarded.start_with_tls(2)
    await guarded.cluster.create("t/n")
    broker = guarded.cluster.brokers[0]
    assert broker.url.startswith("https://127.0.0.1:")
    assert broker.node.membership.peers[broker.name].registration.admin_url == broker.url
    for _ in range(3):
        assert (await guarded.ask("root", "GET", LOOKUP))[0] == 200
    assert (await guarded.ask("root", "PUT", "/admin/v2/namespaces/t/n/unload"))[0] == 204
    plain = broker.url.replace("https:", "http:")
    with pytest.raises(aiohttp.ClientError):
        await guarded.cluster.session.get(plain + LOOKUP, timeout=aiohttp.ClientTimeout(total=WAIT_S))
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await guarded.cluster.session.get(broker.url + LOOKUP)


async def test_a_client_certificate_names_its_principal(guarded: Guarded) -> None:
    await guarded.start_with_tls()
    await guarded.cluster.create("t/n")
    await guarded.grant(AccessRole.VIEWER, "carts", "t/n")
    certificate, key = guarded.certificates.issue("client", "carts.example", common_name="carts")
    guarded.context.load_cert_chain(certificate, key)
    for _ in range(3):
        assert (await guarded.ask(None, "GET", LOOKUP))[0] == 200
        assert (await guarded.ask(None, "GET", "/v1/bundles?namespace=t/n"))[0] == 200
    assert (await guarded.ask(None, "GET", "/v1/bundles"))[0] == 403
    assert (await guarded.ask("root", "GET", "/v1/bundles"))[0] == 200, "a token counts before the certificate"
    wrong = guarded.bearer("root", aud="other")
    assert (await guarded.ask(None, "GET", "/v1/bundles", headers=wrong))[0] == 401, "and a wrong one is not forgiven"


def test_who_has_a_connection_longer_than_its_certificate_is_nobody(guarded: Guarded) -> None:
    now_s = [0.0]
    found, carts = Access(Settings(**guarded.settings), lambda: now_s[0]), Principal("carts", "certificate", 100.0)
    assert found.identify((), carts) is found.known((), carts) is carts
    now_s[0] = 100.0
    assert found.known((), carts) is None
    with pytest.raises(Unauthenticated, match="has expired: connect again"):
        found.identify((), carts)


async def test_a_certificate_of_another_authority_is_no_certificate(guarded: Guarded, tmp_path: Path) -> None:
    await guarded.start_with_tls()
    guarded.context.load_cert_chain(*Certificates(tmp_path / "evil").issue("client", "x", common_name="root"))
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await guarded.ask(None, "GET", "/v1/config")


async def test_where_certificates_are_required_a_token_alone_does_not_get_in(guarded: Guarded) -> None:
    await guarded.start_with_tls(tls_client_required=True)
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await guarded.ask("root", "GET", "/v1/config")
    guarded.context.load_cert_chain(*guarded.certificates.issue("client", "carts", common_name="carts"))
    assert (await guarded.ask("root", "GET", "/v1/config"))[0] == 200


async def test_probes_have_a_port_of_their_own_where_certificates_are_required(guarded: Guarded) -> None:
    port = free_port()
    await guarded.start_with_tls(tls_client_required=True, http_probe_port=port)
    broker = guarded.cluster.brokers[0]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def asked(path: str, method: str = "GET", **options: Any) -> int:
            async with session.request(method, path, **options) as answer:
                await answer.read()
                return answer.status

        for probe in ("health", "live", "ready"):
            assert await asked(f"/admin/v2/brokers/{probe}") == 200
        root = guarded.bearer("root")
        for path in ("/metrics", "/v1/config", "/admin/v2/brokers/health/", "/lookup/v2/topic/persistent/a/b/c"):
            assert await asked(path, headers=root) == 404
        assert await asked("/admin/v2/brokers/health", "POST", headers=root) == 404
        assert await asked("/admin/v2/brokers/health", headers={"Host": "evil.example"}) == 421
    assert broker.url.endswith(f":{port}") is False
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        await guarded.start_with_tls(tls_client_required=True, http_probe_port=port)
    guarded.cluster.brokers.pop()


async def test_a_renewed_certificate_is_used_without_a_restart(guarded: Guarded) -> None:
    await guarded.start_with_tls()
    url = guarded.cluster.brokers[0].url
    host, port = url.removeprefix("https://").split(":")

    async def serial() -> str:
        _, writer = await asyncio.open_connection(host, int(port), ssl=guarded.context)
        found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        writer.close()
        return str(found)

    before = await serial()
    guarded.certificates.issue("broker", "127.0.0.1")

    async def renewed() -> bool:
        return await serial() != before

    await eventually(renewed)
    assert (await guarded.ask("root", "GET", "/v1/config"))[0] == 200


async def test_files_that_were_spoiled_leave_the_earlier_certificate(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    await guarded.start_with_tls()
    guarded.certificates.spoil("broker")

    async def noticed() -> bool:
        return "TLS goes on with its earlier files" in caplog.text

    await eventually(noticed)
    assert (await guarded.ask("root", "GET", "/v1/config"))[0] == 200


async def test_clients_that_do_not_complete_the_handshake_are_cut_off(guarded: Guarded) -> None:
    await guarded.start_with_tls(http_head_timeout_s=0.2)
    host, port = guarded.cluster.brokers[0].url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    writer.close()
    assert (await guarded.ask("root", "GET", "/v1/config"))[0] == 200


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        ({"subject": ((("organizationName", "o"),), (("commonName", "carts"),))}, "carts"),
        ({"subject": (), "subjectAltName": (("DNS", "a.b"), ("URI", "spiffe://c/carts"))}, "spiffe://c/carts"),
        ({"subject": (), "subjectAltName": (("IP Address", "127.0.0.1"), ("DNS", "a.b"))}, "a.b"),
        ({"subject": (), "subjectAltName": (("email", "a@b"),)}, "a@b"),
        ({"subject": (), "subjectAltName": (("IP Address", "127.0.0.1"),)}, ""),
        ({}, ""),
    ],
)
def test_names_in_certificates(certificate: dict[str, Any], name: str) -> None:
    assert name_in(certificate) == name


def test_a_certificate_counts_until_it_expires() -> None:
    class Shown:
        def getpeercert(self) -> dict[str, Any]:
            return {"subject": ((("commonName", "carts"),),), "notAfter": "Jan  2 00:00:00 2030 GMT"}

    class Transport:
        def get_extra_info(self, name: str) -> Shown:
            return Shown()

    assert certified(Transport()) == Principal("carts", "certificate", 1_893_542_400.0)


async def test_unusable_files_stop_the_start_with_their_setting(guarded: Guarded, tmp_path: Path) -> None:
    certificate, key = guarded.certificates.issue("broker", "127.0.0.1")
    _, other_key = guarded.certificates.issue("other", "127.0.0.1")
    empty = tmp_path / "empty"
    empty.write_text("")
    for given, says in (
        ({"tls_certificate": certificate, "tls_key": other_key}, "tls_certificate="),
        ({"tls_certificate": certificate, "tls_key": str(tmp_path / "absent")}, "No such file"),
        ({"tls_certificate": certificate, "tls_key": key, "tls_client_ca": str(empty)}, "tls_client_ca="),
        ({"token_keys": str(empty)}, "token_keys="),
    ):
        with pytest.raises(Invalid, match=says):
            await guarded.start(1, **given)
        guarded.cluster.brokers.clear()


# --- reach


SECURED: dict[str, Any] = {"tls_certificate": "c", "tls_key": "k", "token_keys": "t", "superusers": "root"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "all clients may do anything.*, and others can read"),
        ({"tls_certificate": "c", "tls_key": "k"}, "all clients may do anything"),
        ({"token_keys": "t", "superusers": "root"}, "others can read what is sent"),
    ],
)
def test_beyond_loopback_tls_and_authentication_are_needed(given: dict[str, Any], says: str) -> None:
    with pytest.raises(NotLoopback, match=says):
        check_reach("10.0.0.1:8080", Settings(**given))
    check_reach("127.0.0.1:8080", Settings(**given))
    check_reach("10.0.0.1:8080", Settings(**given, insecure=True))


def test_beyond_loopback_a_secured_broker_may_listen() -> None:
    check_reach("0.0.0.0:8080", Settings(**SECURED))


# --- the client's half


async def test_a_router_shows_its_credentials_and_tells_a_refusal_from_an_outage(guarded: Guarded) -> None:
    await guarded.start_with_tls()
    await guarded.cluster.create("t/n")
    await guarded.grant(AccessRole.CLIENT, "carts", "t/n")
    urls = [guarded.cluster.brokers[0].url]

    def credentials(principal: str) -> Credentials:
        return Credentials(token=guarded.issuer.token(principal), ca=guarded.certificates.ca)

    async with Router(urls, credentials=credentials("carts")) as router:
        assert (await router.route("t/n/x")).broker == guarded.cluster.brokers[0].name
    async with Router(urls, credentials=credentials("ann")) as router:
        with pytest.raises(Forbidden, match="ann is not client in"):
            await router.route("t/n/x")
        with pytest.raises(Forbidden, match="ann is not client in"):
            await router.call("t/n/x", _never, budget_s=WAIT_S)
    async with Router(urls, credentials=Credentials(ca=guarded.certificates.ca)) as router:
        with pytest.raises(Forbidden, match="say who you are"):
            await router.route("t/n/x")


async def _never(_: Any) -> None:
    raise AssertionError("nobody may be asked")


def test_a_token_is_not_sent_where_others_could_read_it() -> None:
    found = Credentials(token="abc")
    assert found.headers("https://broker:1") == {"Authorization": "Bearer abc"}
    for mine in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        assert found.headers(mine)
    for other in ("http://broker:1", "http://10.0.0.1:1", "http://localhost.evil:1", "ftp://broker"):
        with pytest.raises(Forbidden, match="others could read it"):
            found.headers(other)
    assert Credentials(token="abc", insecure=True).headers("http://broker:1")
    assert Credentials().headers("http://broker:1") == {}


def test_a_token_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("one\n")
    found = Credentials.of_environment({"LOADMANAGER_TOKEN_FILE": str(path)})
    assert found.headers("https://b") == {"Authorization": "Bearer one"}
    path.write_text("two, much longer\n".replace(", much ", "-"))
    now_s[0] += 1.0
    assert found.headers("https://b") == {"Authorization": "Bearer two-longer"}
    path.unlink()
    now_s[0] += 1.0
    with pytest.raises(Invalid, match="cannot be read"):
        found.headers("https://b")


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_token_file_that_everybody_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    path.chmod(mode)
    with pytest.raises(Invalid, match=f"chmod 600 {path}"):
        Credentials(token_file=str(path)).headers("https://b")
    path.chmod(0o640)
    assert Credentials(token_file=str(path)).headers("https://b") == {"Authorization": "Bearer one"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "a", "token_file": "b"}, "not both"),
        ({"key": "a"}, "needs its certificate"),
        ({"token": "a\r\nX-Evil: 1"}, "one line"),
        ({"token": "é"}, "one line"),
    ],
)
def test_credentials_that_make_no_sense_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Credentials(**given)  # pyright: ignore[reportArgumentType]


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="absent"):
        Credentials(ca=str(tmp_path / "absent")).context()
