"""What an audit says of a ZooKeeper: each judgement by itself, and all of them on a real server."""

from __future__ import annotations

import asyncio

import pytest
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from stack.servers import free_port
from statechannel.adapters.zookeeper.audit import (
    Expected,
    audit_zookeeper,
    judge_acls,
    judge_clock,
    judge_ensemble,
    judge_root,
    judge_server,
    judge_sessions,
    judge_settings,
    judge_writes,
)
from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.adapters.zookeeper.probe import Granted, Server, Unreachable, ask_server
from statechannel.audit import Finding, Severity
from statechannel.ports import Identity
from tests.faults import Cut, proxy_to
from tests.servers import SHORTEST_SESSION_S, TICK_MS, coordination_root, shared_zookeeper

OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR
EXPECTED = Expected(cluster="production", session_timeout_s=6.0, proof_validity_s=2.0)
GRANTED = Granted(timeout_ms=6_000, shortest_ms=4_000, longest_ms=40_000)
SERVER = Server("zk:2181", 1.0, GRANTED, version="3.9.3", mode="follower")


def changed(server: Server, **parts) -> Server:
    return Server(**{name: getattr(server, name) for name in Server.__struct_fields__} | parts)


# --- judgements
@pytest.mark.parametrize(
    ("answer", "any_other", "severity", "says"),
    [
        (SERVER, True, OK, "3.9.3, follower"),
        (changed(SERVER, version="3.10.0"), True, OK, "3.10.0"),
        (changed(SERVER, version="3.5.9"), True, WARNING, "upgrade"),
        (changed(SERVER, mode="read-only"), True, ERROR, "quorum"),
        (changed(SERVER, version="", mode=""), True, WARNING, "4lw.commands.whitelist"),
        (Unreachable("refused"), True, WARNING, "start it"),
        (Unreachable("refused"), False, ERROR, "no broker can start"),
    ],
)
def test_a_server_is_judged_by_its_answer_release_and_role(answer, any_other, severity, says):
    (finding,) = judge_server("zk:2181", answer, any_other=any_other)
    assert finding.severity is severity
    assert "zk:2181" in finding.subject
    assert says in f"{finding.found} {finding.advice}"


@pytest.mark.parametrize(
    ("granted_ms", "severity", "says"),
    [
        (6_000, OK, ""),
        (10_000, WARNING, "minSessionTimeout"),
        (5_000, WARNING, "maxSessionTimeout"),
        (1_500, ERROR, "before proofs"),
    ],
)
def test_a_session_is_judged_by_the_time_that_is_granted(granted_ms, severity, says):
    server = changed(SERVER, granted=Granted(granted_ms, 1_000, 40_000))
    (finding,) = judge_sessions([server], EXPECTED)
    assert (finding.severity, says in finding.advice) == (severity, True)
    assert "limits 1 to 40 s" in finding.found


def test_servers_that_grant_different_sessions_are_told_apart():
    other = changed(SERVER, address="zk2:2181", granted=Granted(8_000, 8_000, 40_000))
    first, second = judge_sessions([SERVER, other], EXPECTED)
    assert first.found.startswith("zk:2181:")
    assert second.found.startswith("zk2:2181:")
    assert second.severity is WARNING


@pytest.mark.parametrize(
    ("voters", "listed", "severity"), [(1, 1, WARNING), (2, 2, WARNING), (3, 1, WARNING), (3, 3, OK), (5, 3, OK)]
)
def test_an_ensemble_is_judged_by_the_failures_that_it_bears(voters, listed, severity):
    assert judge_ensemble(voters, listed, EXPECTED).severity is severity


def test_one_server_is_fine_for_development():
    assert judge_ensemble(1, 1, Expected("c", development=True)).severity is OK
    assert judge_acls({"/r": OPEN_ACL_UNSAFE}, Expected("c", development=True)).severity is OK


def test_settings_with_which_no_broker_starts_are_an_error():
    assert [found.severity for found in judge_settings(OPEN_ACL_UNSAFE, EXPECTED)] == [ERROR]
    assert not [*judge_settings(CREATOR_ALL_ACL, EXPECTED)]
    for allowed in (Expected("c", development=True), Expected("c", insecure=True)):
        assert not [*judge_settings(OPEN_ACL_UNSAFE, allowed)]


@pytest.mark.parametrize(
    ("tied", "log", "severity"),
    [
        (Identity("production", "log-1"), None, OK),
        (Identity("production", "log-1"), "log-1", OK),
        (Identity("production", "log-1"), "log-2", ERROR),
        (Identity("staging", "log-1"), None, ERROR),
        (None, "log-1", OK),
    ],
)
def test_a_root_is_judged_by_whom_it_belongs_to(tied, log, severity):
    expected = Expected("production", log_identity=log)
    assert judge_root("/r", tied, expected, exists=True).severity is severity


def test_a_root_that_does_not_exist_is_no_trouble():
    assert judge_root("/r", None, EXPECTED, exists=False).severity is OK


def test_nodes_are_judged_by_who_may_change_them_not_by_who_may_read():
    readable = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
    assert judge_acls({"/r": CREATOR_ALL_ACL, "/r/a": readable}, EXPECTED).severity is OK
    finding = judge_acls({"/r": readable, "/r/a": OPEN_ACL_UNSAFE}, EXPECTED)
    assert finding.severity is WARNING
    assert "1 of the 2" in finding.found
    assert "/r/a" in finding.found
    assert "setAcl -R" in finding.advice


@pytest.mark.parametrize(
    ("times_ms", "severity"), [([1.0] * 20, OK), ([1.0] * 19 + [600.0], WARNING), ([600.0] * 20, ERROR)]
)
def test_writes_are_judged_against_the_time_that_a_proof_counts(times_ms, severity):
    assert judge_writes(times_ms, EXPECTED).severity is severity


@pytest.mark.parametrize(
    ("apart_ms", "severity", "says"), [(20, OK, ""), (3_000, WARNING, "ahead"), (-3_000, WARNING, "behind")]
)
def test_a_clock_is_judged_by_its_distance_from_ours(apart_ms, severity, says):
    finding = judge_clock(apart_ms)
    assert finding.severity is severity
    assert says in finding.found


# --- a real server
async def findings(hosts: str, root: str, expected: Expected, **settings) -> dict[str, Finding]:
    found = [finding async for finding in audit_zookeeper(hosts, root, expected, settings, timeout_s=8)]
    assert all(bool(finding.advice) or finding.severity is OK or "settings" in finding.found for finding in found)
    return {finding.subject: finding for finding in found}


@pytest.fixture
def server(pytestconfig):
    return shared_zookeeper(pytestconfig)


@pytest.fixture
def root() -> str:
    return coordination_root("audit")


@pytest.mark.zookeeper
async def test_a_server_tells_its_release_role_and_limits(server):
    told = await ask_server(server.address, 3.0, None, timeout_s=60)
    assert told.version.startswith("3.")
    assert told.mode == "standalone"
    assert told.granted == Granted(timeout_ms=3_000, shortest_ms=2 * TICK_MS, longest_ms=20 * TICK_MS)


@pytest.mark.zookeeper
async def test_what_is_no_zookeeper_is_named(server):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with web:
        with pytest.raises(Unreachable, match="is not ZooKeeper"):
            await ask_server(f"127.0.0.1:{web.sockets[0].getsockname()[1]}", 3.0, None, timeout_s=60)


@pytest.mark.zookeeper
async def test_audit_before_the_first_broker_finds_one_server_and_leaves_nothing(server, root):
    expected = Expected("production", session_timeout_s=SHORTEST_SESSION_S, proof_validity_s=1.0)
    found = await findings(server.address, root, expected)
    assert found[f"zookeeper: {server.address}"].severity is OK
    assert found["zookeeper: sessions"].severity is OK
    assert found["zookeeper: ensemble"].severity is WARNING
    assert "does not exist" in found[f"zookeeper: root {root}"].found
    assert "zookeeper: access" not in found
    assert found["zookeeper: writes"].severity in (OK, WARNING)
    assert found["zookeeper: clock"].severity is OK
    again = await findings(server.address, root, expected)
    assert "does not exist" in again[f"zookeeper: root {root}"].found


@pytest.mark.zookeeper
async def test_audit_of_a_used_root_names_its_cluster_and_that_all_may_change_it(server, root):
    client = ZooKeeperCoordination(server.address, root=root)
    await client.start(timeout_s=60)
    try:
        await client.identify("production", "log-1")
        ours = await findings(server.address, root, EXPECTED)
        theirs = await findings(server.address, root, Expected("staging"))
        assert client.members == {}  # nor did the audit leave a node in it
    finally:
        await client.close()
    assert ours[f"zookeeper: root {root}"].severity is OK
    assert theirs[f"zookeeper: root {root}"].severity is ERROR
    assert "everybody may change" in ours["zookeeper: access"].found


@pytest.mark.zookeeper
async def test_longer_sessions_than_were_asked_for_are_found(server, root):
    found = await findings(server.address, root, Expected("production", session_timeout_s=0.2, proof_validity_s=0.2))
    assert found["zookeeper: sessions"].severity is WARNING
    assert "minSessionTimeout" in found["zookeeper: sessions"].advice


@pytest.mark.zookeeper
async def test_each_listed_server_is_asked_and_the_rest_uses_those_that_answer(server, root):
    nobody = f"127.0.0.1:{free_port()}"
    async with proxy_to(server.address) as mute:
        mute.cut(Cut.BLACKHOLE)
        found = await findings(f"{nobody},{mute.address},{server.address}", root, EXPECTED)
    assert found[f"zookeeper: {nobody}"].severity is WARNING
    assert "refused" in found[f"zookeeper: {nobody}"].found
    assert "within 8 s" in found[f"zookeeper: {mute.address}"].found
    assert found[f"zookeeper: {server.address}"].severity is OK


async def test_no_server_at_all_is_one_error_each_and_nothing_else(root):
    nobody = f"127.0.0.1:{free_port()}"
    found = await findings(nobody, root, Expected("production", development=True))
    assert {subject: finding.severity for subject, finding in found.items()} == {f"zookeeper: {nobody}": ERROR}
