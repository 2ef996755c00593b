"""Whatever a client sends, holds or delays costs a broker little; who asks after its health gets through."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from loadmanager_api.cli.broker import Idle
from loadmanager_api.http import connections, limits
from loadmanager_api.http.connections import OWN_SHARE
from stack.servers import free_port
from tests.api.access.conftest import attacked as cluster
from tests.api.access.conftest import without_access
from tests.api.conftest import WAIT_S, Cluster
from tests.api.raw import CHUNK, HEAD, Raw, connected, reads_nothing, refused_while_pouring, status_of, with_credentials
from tests.loadmanager.embedded import PATIENT

__all__ = ["cluster"]

VITAL = ("/admin/v2/brokers/health", "/admin/v2/brokers/ready", "/admin/v2/brokers/live", "/metrics")
POST = b"POST /v1/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MB = 1_000_000


async def test_a_header_of_100_mb_is_refused_as_soon_as_it_is_counted(cluster: Cluster, taken: Counter[int]) -> None:
    await cluster.start()
    raw = await connected(cluster)
    answer = await refused_while_pouring(taken, raw, HEAD + b"X-Long: ", b"x" * CHUNK, 100)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:loadmanager:problem:head-too-large"


async def test_60_mb_of_small_headers_on_three_connections_take_no_memory(
    cluster: Cluster, taken: Counter[int]
) -> None:
    await cluster.start()
    raws = [await connected(cluster) for _ in range(3)]
    gc.collect()
    before = psutil.Process().memory_info().rss
    small = b"a: b\r\n" * 10_000
    answers = await asyncio.gather(*(refused_while_pouring(taken, raw, HEAD, small, 60) for raw in raws))
    assert all(answer.startswith(b"HTTP/1.1 431 ") for answer in answers)
    assert psutil.Process().memory_info().rss - before < 100 * MB


@without_access
async def test_a_head_is_counted_to_the_kilobyte(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start(http_head_limit_bytes=8_192)
    for where in ["the first request", "behind another", "in one piece with another"]:
        with subtests.test(where=where):
            raw = await connected(cluster)
            before = b"" if where == "the first request" else HEAD + b"\r\n"
            if where == "behind another":
                await raw.send(before)
                assert b" 200 " in await raw.head()
                before = b""
            padding = 8_192 - len(HEAD) - len(b"X-Long: \r\n\r\n") - 1
            await raw.send(before + HEAD + b"X-Long: " + b"x" * padding + b"\r\n\r\n")
            if before:
                assert b" 200 " in await raw.head()
                await raw.reader.readexactly(5)
            assert b" 200 " in await raw.head()
            await raw.reader.readexactly(5)
            await raw.send(HEAD + b"X-Long: " + b"x" * (padding + 1_024))
            assert (await raw.answer()).startswith(b"HTTP/1.1 431 ")
            raw.close()


@without_access
async def test_trailers_and_the_sizes_of_chunks_count_as_body(cluster: Cluster, taken: Counter[int]) -> None:
    await cluster.start(http_body_limit_bytes=65_536)
    for endless in (b"a: b\r\n" * 1_000, b"1;" + b"x" * 1_000 + b"\r\n{\r\n"):
        raw = await connected(cluster)
        head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"0\r\n" if endless.startswith(b"a") else b"")
        await refused_while_pouring(taken, raw, head, endless, 60)


DRIPS: list[tuple[bytes, bytes, bytes]] = [
    (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Long: " + b"x" * 30_000, b"the head did not arrive"),
    (HEAD + b"\r\n", HEAD.replace(b"\r\n", b"x\r\n"), b"the head did not arrive"),
    (
        POST + b"Content-Length: 9999\r\n\r\n",
        b" " * 9_999,
        b"the body did not arrive",
    ),
]


@without_access
async def test_who_drips_is_told_that_the_time_is_over(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start(http_head_timeout_s=0.3, http_body_timeout_s=0.3)
    for sent, dripped, told in DRIPS:
        with subtests.test(told=told, sent=sent[:40]):
            raw = await connected(cluster)
            await raw.send(with_credentials(cluster, sent))
            dripping = asyncio.create_task(raw.drip(dripped))
            answer = await raw.answer()
            raw.close()
            await dripping
            assert b"HTTP/1.1 408 " in answer
            assert told in answer


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN: list[tuple[bytes, bytes, bytes]] = [
    (POST + CHUNKED, b"zz\r\n", b"HTTP/1.1 400 "),
    (POST + CHUNKED, b"1\r\n{\r\nzz\r\n", b"HTTP/1.1 400 "),
    (POST + CHUNKED, b"5\r\n{}", b""),
    (POST + CHUNKED, b"1\r\n{x", b"HTTP/1.1 400 "),
    (HEAD + CHUNKED, b"zz\r\n", b"HTTP/1.1 400 "),
]
"""Head, body, and the answer; none where more may come."""


@without_access
async def test_chunks_that_are_none_are_answered(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start(http_body_timeout_s=30)
    for head, body, answered in BROKEN:
        with subtests.test(body=body):
            raw = await connected(cluster)
            await raw.send(with_credentials(cluster, head))
            await raw.send(body)
            if answered:
                assert (await raw.answer()).startswith(answered)
            raw.close()


@without_access
async def test_a_body_that_nobody_asked_for_ends_as_well(cluster: Cluster) -> None:
    await cluster.start(http_body_timeout_s=0.3)
    raw = await connected(cluster)
    await raw.send(HEAD + b"Content-Length: 99999\r\n\r\n")
    assert b" 408 " in await raw.head()
    dripping = asyncio.create_task(raw.drip(b"x" * 99_999))
    await raw.answer()
    raw.close()
    await dripping


@without_access
async def test_a_connection_without_a_request_is_closed(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start(http_idle_timeout_s=0.2)
    for first in [b"", HEAD + b"\r\n"]:
        with subtests.test(first=first):
            raw = await connected(cluster)
            await raw.send(first)
            answer = await raw.answer()
            assert answer.startswith(b"HTTP/1.1 200 ") if first else answer == b""
            raw.close()


@pytest.mark.slow
async def test_flood_of_connections_leaves_room_for_health_checks(cluster: Cluster) -> None:
    await cluster.start(http_connections=16, http_head_timeout_s=600)
    flood: list[Raw] = []
    async with asyncio.timeout(WAIT_S):  # one that has sent nothing for a second may be closed
        while len(flood) < 100 or await status_of(cluster, "/v1/notes") != 503:
            flood.append(await connected(cluster))
            await flood[-1].pour(HEAD, b"", 0)
    for _ in range(3):
        assert [await status_of(cluster, path) for path in VITAL] == [200] * len(VITAL)
        assert await status_of(cluster, "/v1/notes") == 503
    for raw in flood:
        raw.close()
    async with asyncio.timeout(WAIT_S):
        while await status_of(cluster, "/v1/notes") != 200:
            await asyncio.sleep(0.01)


async def test_metrics_tell_what_the_endpoints_refuse(cluster: Cluster) -> None:
    await cluster.start(http_connections=16, http_head_timeout_s=1.0)
    late, beyond = 'deadlines_missed_total{part="head"}', 'connections_refused_total{how="vital_only"}'
    before = await http_metrics(cluster)
    assert set(before.values()) - {before["connections"]} == {0}
    assert 1 <= before["connections"] <= 16
    large = await connected(cluster)
    await large.send(HEAD + b"X-Long: " + b"x" * 40_000)
    assert (await large.answer()).startswith(b"HTTP/1.1 431 ")
    slow, after = list[Raw](), before
    async with asyncio.timeout(WAIT_S):
        while after[beyond] < 4:  # on a busy machine the first are late before the last have come
            for _ in range(20):
                slow.append(await connected(cluster))
                await slow[-1].pour(HEAD, b"", 0)
            known = after[late]
            while (after := await http_metrics(cluster))[late] == known:
                await asyncio.sleep(0.02)
    for raw in (large, *slow):
        raw.close()
    assert after["heads_refused_total"] == 1
    assert {after[f'requests_refused_total{{why="{why}"}}'] for why in ("loop", "running", "untaken")} == {0}


async def http_metrics(cluster: Cluster) -> dict[str, float]:
    """By name, without what they all begin with."""
    text, name = (await cluster.ask("GET", "/metrics"))[1], "loadmanager_http_"
    pairs = (line.removeprefix(name).rsplit(" ", 1) for line in text.splitlines() if line.startswith(name))
    return {key: float(value) for key, value in pairs if not key.partition("{")[0].endswith("_created")}


@without_access
async def test_idle_connections_make_room_for_new_ones(cluster: Cluster) -> None:
    await cluster.start(http_connections=16)
    idle = [await connected(cluster) for _ in range(16)]
    async with asyncio.timeout(WAIT_S):
        while await status_of(cluster, "/v1/notes") != 200:
            await asyncio.sleep(0.01)
    for raw in idle:
        raw.close()


OPENED_BY_A_BUNDLE = 3


class Patient(Idle):
    """A service in whose process no client that works is taken for idle, not even when the machine stalls."""

    def __init__(self) -> None:
        connections.AT_WORK_S = 600


class Opening(Patient):
    """A service that opens descriptors with each bundle that it gets, and keeps them."""

    def acquire(self, bundle: object, token: object, hand_off: bytes | None) -> None:
        for _ in range(OPENED_BY_A_BUNDLE):
            os.open("/dev/zero", os.O_RDONLY)


@contextmanager
def broker_with_descriptors(
    directory: Path, descriptors: int, *options: str
) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """A broker process that may have so many open, and its address."""
    name = f"127.0.0.1:{free_port()}"
    command = [str(Path(sys.executable).parent / "loadmanager"), "broker", "--advertised", name]
    patient = [part for name, value in PATIENT.items() for part in ("--set", f"{name}={value}")]
    process = subprocess.Popen(
        [*command, "--log", f"sqlite:{directory / 'lm.db'}", *patient, *options],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
    )
    try:
        yield process, f"http://{name}"
    finally:
        process.kill()
        process.wait(WAIT_S)


def asked(url: str, method: str = "GET", body: bytes | None = None) -> int:
    """The status; 0 if nobody answers."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"} if body else {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def opened_by(there: psutil.Process) -> list[str]:
    """What the service of a broker's process has opened."""
    links = (os.readlink(each) for each in Path(f"/proc/{there.pid}/fd").iterdir() if each.is_symlink())
    return [link for link in links if link == "/dev/zero"]


@pytest.mark.slow
async def test_a_flood_leaves_the_broker_descriptors_for_its_log_and_coordination(tmp_path: Path) -> None:
    descriptors = 128
    kept = int(descriptors * OWN_SHARE) // 2
    host = ("--host", "tests.api.test_http_limits:Patient")
    with broker_with_descriptors(tmp_path, descriptors, *host) as (process, url), ExitStack() as stack:

        async def status(path: str, method: str = "GET", body: bytes | None = None) -> int:
            return await asyncio.to_thread(asked, url + path, method, body)

        async with asyncio.timeout(WAIT_S):
            while await status("/admin/v2/brokers/health") != 200:
                await asyncio.sleep(0.05)
        assert await status("/admin/v2/namespaces/t/n", "PUT", b'{"numBundles": 16}') == 204
        working = await Raw.to(url)
        stack.callback(working.close)
        for number in range(2 * descriptors):
            raw = await Raw.to(url)
            stack.callback(raw.close)
            await raw.pour(HEAD, b"", 0)
            if number % 16 == 0:
                await look_up(working, 0)
        async with asyncio.timeout(WAIT_S):
            until_s = time.monotonic() + 1.1 * PATIENT["proof_validity_s"]
            for key in itertools.count():  # its log takes records, over more than one proof's validity
                await look_up(working, key)
                if time.monotonic() > until_s:
                    break
                assert psutil.Process(process.pid).num_fds() <= descriptors - kept, "clients keep off these"
                await asyncio.sleep(0.05)
        assert await status("/admin/v2/brokers/health") == 200
    await asyncio.sleep(0)  # the connections end


@pytest.mark.slow
async def test_what_the_process_itself_opens_is_taken_from_clients(tmp_path: Path) -> None:
    descriptors, bundles = 256, 8
    kept = int(descriptors * OWN_SHARE) // 2
    options = ("--host", "tests.api.test_http_limits:Opening")
    with broker_with_descriptors(tmp_path, descriptors, *options) as (process, url), ExitStack() as stack:
        there = psutil.Process(process.pid)
        async with asyncio.timeout(WAIT_S):
            while await asyncio.to_thread(asked, url + VITAL[1]) != 200:
                await asyncio.sleep(0.05)
        path, body = "/admin/v2/namespaces/t/n", b'{"bundles": {"numBundles": 8}}'
        assert await asyncio.to_thread(asked, url + path, "PUT", body) == 204
        working = await Raw.to(url)
        stack.callback(working.close)
        for number in range(2 * descriptors):
            raw = await Raw.to(url)
            stack.callback(raw.close)
            await raw.pour(HEAD, b"", 0)
            if number % 16 == 0:
                await look_up(working, 0)
        for key in range(10 * bundles):  # who works stays
            await look_up(working, key)
        assert len(opened_by(there)) == OPENED_BY_A_BUNDLE * bundles > kept, "as long as there is nothing for it"
        async with asyncio.timeout(WAIT_S):
            while there.num_fds() > descriptors - kept:
                await look_up(working, 0)
                await asyncio.sleep(0.05)


async def look_up(working: Raw, key: int) -> None:
    """One after the other on one connection."""
    await working.send(f"GET /lookup/v2/topic/persistent/t/n/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await working.head()
    assert head.startswith(b"HTTP/1.1 200 "), head
    await working.reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))


async def test_a_reader_of_a_watch_that_takes_nothing_holds_nothing(cluster: Cluster) -> None:
    await cluster.start(http_send_timeout_s=0.2)
    late = 'deadlines_missed_total{part="answer"}'
    await cluster.create("t/n", 65_536)
    with await reads_nothing(cluster, b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
        async with asyncio.timeout(WAIT_S):
            while (await http_metrics(cluster))[late] == 0:
                await asyncio.sleep(0.01)
        await cluster.until(lambda: not is_served(client))


@pytest.mark.slow
async def test_answers_that_nobody_takes_are_few(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNSENT_AT_MOST_BYTES", 0)  # what the kernel leaves of an answer may be little
    await cluster.start(http_send_timeout_s=5.0)
    wanted = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    with await reads_nothing(cluster, wanted) as client:
        async with asyncio.timeout(WAIT_S):
            while await status_of(cluster, "/v1/notes") != 503:
                await asyncio.sleep(0.01)
            assert await status_of(cluster, VITAL[0]) == 200
            while await status_of(cluster, "/v1/notes") != 200:
                await asyncio.sleep(0.05)
        assert not is_served(client)


def is_served(client: socket.socket) -> bool:
    """Whether the broker, which is of this process, still has its end of the connection."""
    mine = client.getsockname()
    return any(tuple(each.raddr) == mine for each in psutil.Process().net_connections("tcp") if each.raddr)
