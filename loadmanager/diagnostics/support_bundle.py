"""Asks every member of a cluster through its endpoints, and writes the answers, without secrets, as one archive.

A member that does not answer is noted and delays no other. Reads only, and takes nothing from this machine. The
archive is a `.tar.gz` that only its owner may read, with a page about its contents.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from loadmanager.client.cluster import Pin
from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import AnotherCluster
from loadmanager.client.router import Directory
from loadmanager.diagnostics.redaction import redact, redact_text
from loadmanager.errors import Forbidden, Unavailable
from loadmanager.model.registration import VERSION
from statechannel.law.bundle import DOTS

REQUEST_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
MEMBERS_AT_ONCE = 8
MAX_ANSWER_BYTES = 32 << 20
BUNDLE_PAGE, BUNDLE_PAGES = 1_000, 20
NOT_OFFERED = 404

OF_A_MEMBER: Mapping[str, str] = {
    "settings.json": "/v1/settings",
    "channel.json": "/v1/channel?digest=true",
    "notes.json": "/v1/notes?limit=500",
    "metrics.txt": "/metrics",
    "version.txt": "/admin/v2/brokers/version",
    "health.txt": "/admin/v2/brokers/health",
}
IF_OFFERED: Mapping[str, str] = {"tasks.txt": "/v1/tasks", "config.json": "/v1/config", "findings.json": "/v1/health"}
"""Files that some releases lack; a missing one is not noted."""


class Missing(msgspec.Struct, frozen=True):
    """A file that is missing from the bundle, and why."""

    name: str
    reason: str


class Collected(msgspec.Struct):
    """The files of a bundle by their names in it."""

    files: dict[str, bytes] = msgspec.field(default_factory=dict)
    missing: list[Missing] = msgspec.field(default_factory=list)

    def keep(self, name: str, text: str) -> None:
        self.files[name] = text.encode()

    def note_missing(self, name: str, reason: str) -> None:
        self.missing.append(Missing(name, redact_text(" ".join(reason.split()))))


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}: {reason}")
        self.status = status


class _Member(msgspec.Struct):
    broker: str
    admin_url: str = ""


NO_USE = (_Refused, aiohttp.ClientError, OSError, ValueError, TypeError, LookupError)
"""Errors of unusable answers, also from something that is not a broker."""


async def collect(
    admin_url: str, known_secrets: Collection[str] = (), credentials: Credentials | None = None, cluster: str = ""
) -> Collected:
    """Collect everything of one cluster, starting from one broker.

    Raises Unavailable if it does not answer, aiohttp.InvalidURL.
    """
    credentials = credentials or Credentials()
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    async with credentials.session(timeout=timeout) as session:
        collector = Collector(session, known_secrets, credentials, Pin(cluster))
        await collector.cluster(admin_url)
        return collector.collected


class Collector:
    """One round of questions."""

    def __init__(
        self, session: aiohttp.ClientSession, known_secrets: Collection[str], credentials: Credentials, pin: Pin
    ) -> None:
        self._session = session
        self._directory = Directory((), session, credentials, pin)
        self._credentials = credentials
        self._known = known_secrets
        self._places = asyncio.Semaphore(MEMBERS_AT_ONCE)
        self.collected = Collected()

    async def cluster(self, admin_url: str) -> None:
        """Ask the broker about the cluster, then each member about itself."""
        members: list[_Member] = []
        try:
            answer = json.loads(await self._ask(admin_url, "/v1/brokers"))
            members = msgspec.convert(answer, list[_Member])
            self._keep_json("cluster/brokers.json", answer)
        except _Refused as error:  # it answers, but is not active (yet): what it says of itself matters all the more
            self.collected.note_missing("cluster/brokers.json", str(error))
        except aiohttp.InvalidURL:
            raise
        except (ValueError, msgspec.MsgspecError):
            raise Unavailable(f"what answers at {admin_url} is not a broker") from None
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            raise Unavailable(f"no broker answers at {admin_url}: {_why(error)}") from None
        await asyncio.gather(
            self._file(admin_url, "cluster/leader.json", "/admin/v2/brokers/leaderBroker"),
            self._file(admin_url, "cluster/policies.json", "/v1/policies"),
            self._bundles(admin_url),
            self._namespaces(admin_url),
            *(self._member(url, name) for name, url in dict(_to_ask(members, admin_url)).items()),
        )
        for member in members:
            if not member.admin_url:
                reason = "it is not registered, or registered no admin URL"
                self.collected.note_missing(f"members/{file_name(member.broker)}", reason)

    async def _member(self, url: str, name: str) -> None:
        async with self._places:
            wanted = [(f"members/{name}/{file}", path) for file, path in OF_A_MEMBER.items()]
            answers = await asyncio.gather(*(self._file(url, file, path) for file, path in wanted))
            if any(answers):
                for file, path in IF_OFFERED.items():
                    await self._file(url, f"members/{name}/{file}", path, optional=True)

    async def _namespaces(self, url: str) -> None:
        try:
            found: list[str] = []
            for tenant in json.loads(await self._ask(url, "/admin/v2/tenants")):
                found += json.loads(await self._ask(url, f"/admin/v2/namespaces/{tenant}"))
        except NO_USE as error:
            self.collected.note_missing("cluster/namespaces.json", _why(error))
        else:
            self._keep_json("cluster/namespaces.json", found)

    async def _bundles(self, url: str) -> None:
        found: list[Any] = []
        after = ""
        try:
            for _ in range(BUNDLE_PAGES):
                page = json.loads(await self._ask(url, f"/v1/bundles?limit={BUNDLE_PAGE}{after}"))
                found += page["bundles"]
                if not page["next"]:
                    break
                after = f"&cursor={quote(page['next'])}"
            else:
                self.collected.note_missing("cluster/bundles.json", f"only the first {len(found)} bundles are in it")
        except NO_USE as error:
            self.collected.note_missing("cluster/bundles.json", _why(error))
        if found:
            self._keep_json("cluster/bundles.json", found)

    async def _file(self, url: str, name: str, path: str, *, optional: bool = False) -> bool:
        """Keep one answer as one file; returns whether there was an answer of any kind."""
        try:
            text = await self._ask(url, path)
        except _Refused as error:
            if name.endswith("health.txt"):  # a refusal is its answer
                self.collected.keep(name, redact_text(str(error), self._known))
            elif not (optional and error.status == NOT_OFFERED):
                self.collected.note_missing(name, str(error))
            return True
        except (aiohttp.ClientError, OSError, AnotherCluster) as error:
            self.collected.note_missing(name, _why(error))
            return False
        try:
            self._keep(name, text)
        except ValueError:
            self.collected.note_missing(name, "the answer is not JSON")
        return True

    def _keep(self, name: str, text: str) -> None:
        if name.endswith(".json"):
            self._keep_json(name, json.loads(text))
        else:
            self.collected.keep(name, redact_text(text, self._known))

    def _keep_json(self, name: str, value: Any) -> None:
        self.collected.keep(name, json.dumps(redact(value, self._known), indent=1))

    async def _ask(self, url: str, path: str) -> str:
        try:
            async with (
                self._directory.asking(url, self._credentials) as headers,
                self._session.get(url + path, headers=headers, allow_redirects=False) as answer,
            ):
                self._directory.pin.take(answer.headers, url)
                content = await answer.content.read(MAX_ANSWER_BYTES)
                while chunk := await answer.content.read(MAX_ANSWER_BYTES):
                    content += chunk
                    if len(content) > MAX_ANSWER_BYTES:
                        raise _Refused(answer.status, f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        except Forbidden as error:
            raise _Refused(0, str(error)) from None
        text = content.decode("utf-8", errors="replace")
        if answer.status != 200:
            raise _Refused(answer.status, text[:500])
        return text


def _to_ask(members: list[_Member], admin_url: str) -> Iterable[tuple[str, str]]:
    """Directory name and URL of each member; only the asked one if it cannot name the members."""
    if not members:
        yield file_name(admin_url.partition("://")[2]), admin_url
    for member in members:
        if member.admin_url:
            yield file_name(member.broker), member.admin_url


def file_name(broker: str) -> str:
    """A broker's name, or what an endpoint gives as one, as a safe file name."""
    name = re.sub(r"[^\w.-]", "_", broker.rpartition("@")[2])
    return name.replace(".", "_") if name in DOTS else name


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {REQUEST_TIMEOUT_S:g} s"
    cause = getattr(error, "os_error", error)
    return "connection refused" if isinstance(cause, ConnectionRefusedError) else str(error) or type(error).__name__


ABOUT = """What the members of a loadmanager cluster reported about themselves, without secrets. *** stands for the
values of settings that are passed through to Kafka and ZooKeeper, for those of `properties`, and for users, passwords
and queries in URLs. Names of brokers, namespaces and bundles are included; records and keys of the service are not.
"""


def write_archive(path: Path, collected: Collected, at_ms: int, asked: str) -> None:
    """Write the archive. Raises FileExistsError instead of overwriting, OSError."""
    about = {
        "written_by": VERSION,
        "at_ms": at_ms,
        "asked": asked,
        "files": {name: len(content) for name, content in sorted(collected.files.items())},
        "missing": msgspec.to_builtins(collected.missing),
    }
    files = {
        "README.txt": ABOUT.encode(),
        "about.json": json.dumps(about, indent=1).encode(),
        **dict(sorted(collected.files.items())),
    }
    top = path.name.removesuffix(".gz").removesuffix(".tar")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with (
        os.fdopen(descriptor, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), at_ms // 1000, 0o600
            tar.addfile(entry, io.BytesIO(content))


def default_name(cluster: str, at_ms: int) -> str:
    """The default name of a support bundle; its time is in UTC."""
    return f"loadmanager-{cluster}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at_ms / 1000))}.tar.gz"
