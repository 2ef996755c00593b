"""Writes a support bundle: one `.tar.gz` that only its owner may read, with a page about its contents."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import msgspec

from loadmanager.diagnostics.doctor.collecting import Collected
from loadmanager.model.registration import VERSION

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
    files = {"README.txt": ABOUT.encode(), "about.json": _json(about), **dict(sorted(collected.files.items()))}
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


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
