"""Helm and what looks at its output and at Docker's files, built from Go modules and kept below `.stack/`."""

from __future__ import annotations

from pathlib import Path

from stack.golang import go

BUILT = Path(__file__).parents[1] / ".stack" / "go"
MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "helm-docs": "github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2",
    "kube-score": "github.com/zegl/kube-score/cmd/kube-score@v1.20.0",
    "compose-spec": "github.com/compose-spec/compose-go/v2/cmd@v2.16.2",
}


def built(name: str) -> Path:
    """The program; the first call builds it, which takes minutes. Raises StackError."""
    module, _, version = MODULES[name].partition("@")
    folder = BUILT / version
    if not (folder / name).exists():
        go("install", MODULES[name], folder=folder, environment={"GOBIN": str(folder), "CGO_ENABLED": "0"})
        (folder / module.rpartition("/")[2]).rename(folder / name)  # Go calls it as its package
    return folder / name
