"""What is not HTTP, or not UTF-8, is 400 on every route, and changes nothing."""

from __future__ import annotations

import pytest

from loadmanager_api.http.guard import is_encoded
from tests.api import declared
from tests.api.access.conftest import without_access
from tests.api.conftest import Cluster
from tests.api.raw import connected
from tests.api.test_declared import KNOWN, filled

NOT_ENCODED = (b"%", b"%z", b"%zz", b"%4", b"%ff", b"%c3", b"%ed%a0%80", b"%%41", b"\xff", b"\xc3\xa4")
FURTHER = (
    "/lookup/v2/topic/persistent/t/n/a",
    "/lookup/v2/topic/persistent/t/n/a/bundle",
    "/v1/groups/t/n/g/members/m/heartbeat",
    "/v1/groups/t/n/g/members/m/commit",
    "/admin/v2/brokers/health",
    "/admin/v2/brokers/live",
    "/metrics",
    "/nothing/is/there",
    "/dashboard/main.mjs",
    "/",
)
"""Paths that are answered beside the document's operations, or before them."""


@pytest.mark.parametrize("text", [b"", b"/t/n", b"a%2fb", b"%25zz", b"%c3%A4", b"x=1&y=%20", b"+", b"%00"])
def test_what_is_percent_encoded_utf_8(text: bytes) -> None:
    assert is_encoded(text)


@pytest.mark.parametrize("text", NOT_ENCODED)
def test_what_is_not(text: bytes) -> None:
    assert not is_encoded(text)
    assert not is_encoded(b"/t/n/%41" + text)


def requests_of_all() -> list[tuple[bytes, bytes]]:
    """Method and path of each operation, with names that are there, and of what is answered beside them."""
    listed = [(each.method, filled(each.path, KNOWN)) for each in declared.operations()]
    further = [(method, path) for path in FURTHER for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE")]
    return [(method.encode(), path.encode()) for method, path in (*listed, *further)]


async def answered(cluster: Cluster, request: bytes) -> bytes:
    raw = await connected(cluster)
    try:
        await raw.send(request)
        return await raw.answer()
    finally:
        raw.close()


async def state_of(cluster: Cluster) -> list[object]:
    """What requests could have changed: bundles, policies, topics, plans, operations, the audit log, drains."""
    paths = ("/v1/policies", "/admin/v2/persistent/t/n", "/v1/plans", "/v1/operations", "/v1/audit")
    node = cluster.brokers[0].node
    return [
        *[(await cluster.ask("GET", path))[1] for path in paths],
        [(entry.bundle, entry.state, entry.revision) for entry in node.channel.table],
        node.registration.draining,
    ]


@pytest.mark.slow
@without_access
async def test_a_path_or_a_query_that_is_not_encoded_is_400_everywhere(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await cluster.ask("GET", "/lookup/v2/topic/persistent/t/n/a")
    before, wrong = await state_of(cluster), list[bytes]()
    assert len(requests_of_all()) > 150
    for method, path in requests_of_all():
        for number, text in enumerate(NOT_ENCODED):
            for target in (path + text, path + b"?x=" + text, path + b"?" + text + b"=1")[number % 3 :: 3]:
                line = method + b" " + target
                answer = await answered(cluster, line + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 400 ") or (method != b"HEAD" and b"percent-encoded" not in answer):
                    wrong.append(line + b": " + answer[:200])
    assert not wrong, b"\n".join(wrong[:20]).decode("latin-1")
    assert await state_of(cluster) == before


@pytest.mark.slow
@without_access
async def test_a_body_in_chunks_that_are_none_is_400_everywhere(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await cluster.ask("GET", "/lookup/v2/topic/persistent/t/n/a")
    before, wrong = await state_of(cluster), list[bytes]()
    head = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for method, path in requests_of_all():
        for chunks in (b"zz\r\n", b"2\r\n{}\r\nzz\r\n", b"2\r\n{}x"):
            answer = await answered(cluster, method + b" " + path + head + chunks)
            if not answer.startswith(b"HTTP/1.1 400 ") or answer.count(b"\r\n\r\n") != 1:
                wrong.append(method + b" " + path + b" " + chunks + b": " + answer[:200])
    assert not wrong, b"\n".join(wrong[:20]).decode("latin-1")
    assert await state_of(cluster) == before
