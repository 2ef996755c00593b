"""Credentials and ACLs of `ZooKeeperCoordination` against a real server, and which settings of access are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Id, Permissions, make_digest_acl

from stack.servers import ZooKeeperServer
from statechannel.adapters.zookeeper.access import acl_of, client_arguments, refuse_open_nodes
from statechannel.adapters.zookeeper.audit import Expected, audit_zookeeper
from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.audit import Severity
from statechannel.errors import CoordinationError, CoordinationUnavailable, Fenced
from statechannel.ports import Connection
from tests.servers import coordination_root, shared_zookeeper

WAIT_S = 60
A, B = "broker-a:8080", "broker-b:8080"
OURS = {"auth_data": "digest:loadmanager:se:cret", "acl": "creator"}
THEIRS = {"auth_data": "digest:stranger:other", "acl": "creator"}
OUR_ACL = [make_digest_acl("loadmanager", "se:cret", all=True)]
SAYS_WHAT_TO_DO = "give the credentials that the other brokers have"


@pytest.fixture
def server(pytestconfig) -> ZooKeeperServer:
    return shared_zookeeper(pytestconfig)


@pytest.fixture
def root() -> str:
    return coordination_root("access") + "/cluster"


@asynccontextmanager
async def started(address: str, root: str, **settings) -> AsyncGenerator[ZooKeeperCoordination]:
    client = ZooKeeperCoordination(address, root=root, client_settings=settings, request_timeout_s=30.0)
    try:
        await client.start(timeout_s=WAIT_S)
        yield client
    finally:
        await client.close()


async def until(client: ZooKeeperCoordination, holds) -> None:
    changed = asyncio.Event()
    client.on_change(changed.set)
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await changed.wait()
            changed.clear()


@pytest.fixture
def administrator(server) -> Iterator[KazooClient]:
    """Somebody who has our credentials and uses the server by hand."""
    client = KazooClient(server.address, auth_data=[("digest", "loadmanager:se:cret")])
    client.start()
    yield client
    client.stop()
    client.close()


def acls(administrator: Any, path: str) -> dict[str, list[ACL]]:
    """Of a node and everything below it. kazoo declares no types, and those that are inferred are wrong."""
    found = {path: administrator.get_acls(path)[0]}
    for name in administrator.get_children(path):
        found |= acls(administrator, f"{path}/{name}")
    return found


# --- a real server
@pytest.mark.zookeeper
async def test_nodes_belong_to_us_and_others_may_only_create_beside_the_root(server, root, administrator):
    async with started(server.address, root, **OURS) as client, started(server.address, root, **OURS) as other:
        await client.identify("production", "log-1")
        a, b = await client.start_incarnation(A, above=0), await other.start_incarnation(B, above=0)
        await client.register(a, b"")
        await other.register(b, b"")
        leadership = await client.campaign(a)
        assert leadership is not None
        await client.prove(a)
        assert await other.claim("a-lease", b)
        found = await asyncio.to_thread(acls, administrator, root)
        assert {path.removeprefix(root) for path in found} >= {
            "", "/identity", "/epoch", "/leader", "/brokers", f"/brokers/ids/{A}", f"/brokers/live/{B}",
            "/offices/a-lease", "/terms/a-lease",
        }  # fmt: skip
        assert {path: acl for path, acl in found.items() if acl != OUR_ACL} == {}
        shared = administrator.get_acls(root.rpartition("/")[0])[0]
        assert shared == [*OUR_ACL, ACL(Permissions.READ | Permissions.CREATE, Id("world", "anyone"))]
        await client.raise_incarnation(b, leadership.epoch)
        with pytest.raises(Fenced):
            await other.prove(b)
        assert await other.evict(leadership)


@pytest.mark.zookeeper
@pytest.mark.parametrize("settings", [{}, THEIRS], ids=["none", "others"])
async def test_client_without_credentials_is_refused_at_once_and_told_what_to_do(server, root, settings):
    loop = asyncio.get_running_loop()
    async with started(server.address, root, **OURS):
        began_s = loop.time()
        with pytest.raises(CoordinationUnavailable, match=SAYS_WHAT_TO_DO) as refusal:
            async with started(server.address, root, **settings):
                pass
        assert loop.time() - began_s < WAIT_S / 2
        assert "other" not in str(refusal.value).replace("other brokers", "")  # no secret in it


@pytest.mark.zookeeper
async def test_who_may_only_read_sees_everything_and_can_change_nothing(server, root):
    async with started(server.address, root, **{**OURS, "acl": "creator-read"}) as client:
        a = await client.start_incarnation(A, above=0)
        await client.register(a, b"data")
        assert await client.claim("a-lease", a)
        async with started(server.address, root) as reader:
            await until(reader, lambda: A in reader.members and reader.leases == {"a-lease": a})
            assert reader.connection is Connection.CONNECTED
            for attempt in (
                reader.start_incarnation(A, above=0),
                reader.start_incarnation(B, above=0),
                reader.prove(a),  # and it must not look as if the incarnation were fenced
                reader.campaign(a),
                reader.vacate("a-lease", a),
            ):
                with pytest.raises(CoordinationUnavailable, match=SAYS_WHAT_TO_DO):
                    await attempt
        await client.prove(a)
        assert client.leases == {"a-lease": a}


@pytest.mark.zookeeper
async def test_clusters_with_credentials_of_their_own_stand_side_by_side(server, root):
    parent = root.rpartition("/")[0]
    async with (
        started(server.address, f"{parent}/one", **OURS) as one,
        started(server.address, f"{parent}/two", **THEIRS) as two,
    ):
        await one.start_incarnation(A, above=0)
        await two.start_incarnation(A, above=0)


@pytest.mark.zookeeper
async def test_open_root_goes_on_with_credentials_and_the_audit_finds_open_nodes(server, root, administrator, caplog):
    async with started(server.address, root) as before, started(server.address, root, **OURS) as after:
        a, b = await before.start_incarnation(A, above=0), await after.start_incarnation(B, above=0)
        await before.register(a, b"")
        await after.register(b, b"")
        assert administrator.get_acls(f"{root}/brokers/live/{B}")[0] == OUR_ACL
        assert f"everybody may still change {root}" in caplog.text
        found = {f.subject: f async for f in audit_zookeeper(server.address, root, Expected("c"), OURS)}
    assert found["zookeeper: access"].severity is Severity.WARNING
    assert "setAcl -R" in found["zookeeper: access"].advice


@pytest.mark.zookeeper
async def test_audit_of_a_protected_root_passes_with_credentials_only(server, root):
    async with started(server.address, root, **OURS) as client:
        await client.identify("c", "log")
        inside = {f.subject: f async for f in audit_zookeeper(server.address, root, Expected("c"), OURS)}
        outside = {f.subject: f async for f in audit_zookeeper(server.address, root, Expected("c"))}
    assert inside["zookeeper: access"].severity is Severity.OK
    assert "zookeeper: writes" in inside
    assert outside["zookeeper: access"].severity is Severity.ERROR
    assert SAYS_WHAT_TO_DO in outside["zookeeper: access"].found


@pytest.mark.zookeeper
async def test_credentials_that_the_server_does_not_know_at_all_are_named(server, root):
    client = ZooKeeperCoordination(server.address, root=root, client_settings={"auth_data": "nosuchscheme:somebody"})
    with pytest.raises(CoordinationUnavailable, match="rejected our credentials"):
        await client.start(timeout_s=WAIT_S)


# --- settings
@pytest.mark.parametrize("settings", [{}, {"acl": "open"}, {**OURS, "acl": "open"}, {"acl": "world:anyone:w"}])
def test_nodes_that_everybody_may_change_are_refused(settings):
    with pytest.raises(CoordinationError, match="--development"):
        refuse_open_nodes(settings)


def test_an_identity_is_enough_to_own_the_nodes():
    refuse_open_nodes({"auth_data": "digest:a:b"})
    assert client_arguments({"auth_data": "digest:a:b"})["default_acl"] == CREATOR_ALL_ACL


def test_names_of_acls_and_entries_are_understood():
    assert acl_of("open") == OPEN_ACL_UNSAFE
    assert acl_of("creator") == CREATOR_ALL_ACL
    assert acl_of("creator-read") == [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
    ours, all_read = ACL(Permissions.ALL, Id("sasl", "loadmanager")), ACL(Permissions.READ, Id("world", "anyone"))
    assert acl_of("sasl:loadmanager:cdrwa, world:anyone:r") == [ours, all_read]
    assert acl_of(["x509:CN=a,O=b:cdrwa"]) == [ACL(Permissions.ALL, Id("x509", "CN=a,O=b"))]


@pytest.mark.parametrize("setting", ["creater", "", "sasl:loadmanager:all", "sasl:cdrwa", "world:anyone:", 7, [], None])
def test_what_is_no_acl_is_refused_with_an_example(setting):
    with pytest.raises(CoordinationError, match="sasl:loadmanager:cdrwa"):
        client_arguments({"acl": setting, "auth_data": "digest:a:b"})


@pytest.mark.parametrize(
    "setting",
    ["digest:a:b", ["digest:a:b"], ["digest", "a:b"], [["digest", "a:b"]], [("digest", "a:b")]],
)
def test_credentials_may_be_written_in_several_ways(setting):
    assert client_arguments({"auth_data": setting})["auth_data"] == [("digest", "a:b")]


@pytest.mark.parametrize("setting", ["hunter2", "digest:hunter2", ["digest", "hunter2"], [["digest"]], "", 5, {}])
def test_what_is_no_credential_is_refused_and_not_repeated(setting):
    with pytest.raises(CoordinationError, match="digest:USER:PASSWORD") as refusal:
        client_arguments({"auth_data": setting})
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"acl": "creator"}, "needs an identity to which the nodes belong"),
        ({"sasl_options": "me"}, "JSON object"),
        ({"acl_": "creator"}, "no acl_"),
        ({"use_ssl": "yes"}, "true or false"),
        ({"use_ssl": True, "ca": "/nowhere/ca.pem"}, "no such file"),
        ({"use_ssl": True, "keyfile_password": 5}, "quotes"),
        ({"use_ssl": True, "verify_certs": False, "check_hostname": True}, "verify_certs"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_to_do(settings, says):
    with pytest.raises(CoordinationError, match=says):
        client_arguments(settings)


def test_tls_files_need_tls_and_each_other_and_to_be_what_they_seem(tmp_path):
    file = tmp_path / "file.pem"
    file.write_text("no certificate")
    with pytest.raises(CoordinationError, match="use_ssl=true"):
        client_arguments({"ca": str(file)})
    with pytest.raises(CoordinationError, match="belong together"):
        client_arguments({"use_ssl": True, "certfile": str(file)})
    with pytest.raises(CoordinationError, match="cannot be used"):
        client_arguments({"use_ssl": True, "ca": str(file)})


def test_names_of_servers_are_checked_unless_switched_off():
    assert client_arguments({"use_ssl": True})["check_hostname"] is True
    assert client_arguments({"use_ssl": True, "check_hostname": False})["check_hostname"] is False
    assert client_arguments({"use_ssl": True, "verify_certs": False})["check_hostname"] is False
