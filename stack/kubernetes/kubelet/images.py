"""What the images of the chart are on this machine: the checkout and its Python, under the settings of the Dockerfile.

`counters` is the image of a service that has the broker inside: `host` names a module of the checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
PARTS = ("loadmanager", "statechannel", "api", "tests", "loadmanager.egg-info")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """How to run a container of it; `folders` of this machine are there under the same path."""

    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: tuple[Path, ...] = ()
    user: int = 0
    folder: str = "/"


def _ours(**more: str) -> Image:
    environment = {
        "PATH": f"{Path(sys.prefix) / 'bin'}:{PATH}",
        "HOME": "/tmp",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    own = [CHECKOUT / part for part in PARTS if (CHECKOUT / part).exists()]
    python = [Path(each) for each in (sys.prefix, sys.base_prefix) if not each.startswith("/usr")]
    folders = tuple(dict.fromkeys([*own, *python]))
    return Image(("loadmanager",), environment | more, folders, 10_001, "/tmp")


WAITS = Image(("sleep", "infinity"), {"PATH": PATH})
"""Of servers that are not run in pods here: Kafka's and ZooKeeper's own."""
KNOWN = {
    "loadmanager": _ours(),
    "loadmanager-history": _ours(),
    "counters": _ours(PYTHONPATH=str(CHECKOUT)),
    "busybox": Image(("sh",), {"PATH": PATH}),
    "apache/kafka": WAITS,
    "zookeeper": WAITS,
}


def find(reference: str) -> Image | None:
    """The image of this reference, with whatever tag or digest; None: no registry has it."""
    name = reference.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    return KNOWN.get(repository if colon and "/" not in tag else name)
