"""Helm and helm-docs, built from their Go modules and kept below `.stack/`."""

from __future__ import annotations

from pathlib import Path

from stack.golang import go

BUILT = Path(__file__).parents[1] / ".stack" / "go"
MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "helm-docs": "github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2",
}


def built(name: str) -> Path:
    """The program; the first call builds it, which takes minutes. Raises StackError."""
    module = MODULES[name]
    folder = BUILT / module.rpartition("@")[2]
    if not (folder / name).exists():
        go("install", module, folder=folder, environment={"GOBIN": str(folder), "CGO_ENABLED": "0"})
    return folder / name
