"""The control plane of Kubernetes, built from its Go modules and kept below `.stack/`.

The first calls take about eleven minutes on two cores, of which the API server takes five.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from stack.golang import TIMEOUT_S, go
from stack.helm import BUILT

KUBERNETES = "v1.36.3"
ETCD = "v3.7.3"
MODULE = "k8s.io/kubernetes"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": f"{MODULE}/cmd/kube-apiserver",
    "kube-controller-manager": f"{MODULE}/cmd/kube-controller-manager",
    "kube-scheduler": f"{MODULE}/cmd/kube-scheduler",
    "kubectl": f"{MODULE}/cmd/kubectl",
}
BUILD_S = 3_600.0
ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=mod"}


def built(name: str) -> Path:
    """The program; the first call builds it, which takes minutes. Raises StackError."""
    module, version = ("etcd", ETCD) if name == "etcd" else ("kubernetes", KUBERNETES)
    folder = BUILT / f"{module}-{version}"
    program = folder / name
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "go.mod").exists():
            (folder / "go.mod").write_text(_etcd() if name == "etcd" else _kubernetes(folder))
        part = f"{name}.{os.getpid()}.part"  # a build that is broken off leaves no program; two may run at once
        how = ["build", f"-ldflags={_flags()}", "-o", part, PACKAGES[name]]
        go(*how, folder=folder, environment=ENVIRONMENT, timeout_s=BUILD_S)
        (folder / part).rename(program)
    return program


def _etcd() -> str:
    return f"module stack\n\ngo 1.24\n\nrequire {PACKAGES['etcd']} {ETCD}\n"


def _kubernetes(folder: Path) -> str:
    """A main module that repeats the replacements of Kubernetes' own: its staged parts have versions of their own."""
    download = ["mod", "download", "-json", f"{MODULE}@{KUBERNETES}"]
    go(*download, folder=folder)
    told = subprocess.run(["go", *download], cwd=folder, capture_output=True, check=True, timeout=TIMEOUT_S).stdout
    theirs = Path(json.loads(told)["GoMod"]).read_text()
    language = re.search(r"^go .*$", theirs, re.MULTILINE)
    lines = ["module stack", language[0] if language else "", f"require {MODULE} {KUBERNETES}", *_staged(theirs)]
    return "\n\n".join(lines) + "\n"


def _staged(text: str) -> Iterator[str]:
    for name in re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", text, re.MULTILINE):
        yield f"replace {name} => {name} v0{KUBERNETES.removeprefix('v1')}"


def _flags() -> str:
    """Without them a program does not know its version, which Helm asks for."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    known = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in known.items())])
