"""The example service in Go: its own tests, and what gofmt and vet say of it."""

from __future__ import annotations

import subprocess

import pytest

from stack.golang import go
from tests.sidecar.building import EXAMPLES

pytestmark = pytest.mark.guards("sidecar")


def test_its_own_tests_pass():
    go("test", "-count=1", "./...", folder=EXAMPLES / "go")


def test_it_is_formatted_and_vetted():
    go("vet", "./...", folder=EXAMPLES / "go")
    told = subprocess.run(
        ["gofmt", "-l", "."], cwd=EXAMPLES / "go", capture_output=True, text=True, check=True, timeout=60
    )
    assert not told.stdout
