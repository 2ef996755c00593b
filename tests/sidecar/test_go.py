"""The example service in Go: its own tests, and what gofmt and vet say of it."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from stack.golang import go
from stack.stores import PostgresServer
from tests.servers import topic_prefix
from tests.sidecar.building import EXAMPLES

pytestmark = [pytest.mark.postgresql, pytest.mark.release, pytest.mark.go]


def test_its_own_tests_pass(postgres_server: PostgresServer):
    name = topic_prefix("go").rstrip(".").replace("-", "_")
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    store = postgres_server.url.rpartition("/")[0] + f"/{name}"
    go("test", "-count=1", "./...", folder=EXAMPLES / "go", environment={"COUNTERS_STORE": store})


def test_it_is_formatted_and_vetted():
    go("vet", "./...", folder=EXAMPLES / "go")
    told = subprocess.run(
        ["gofmt", "-l", "."], cwd=EXAMPLES / "go", capture_output=True, text=True, check=True, timeout=60
    )
    assert not told.stdout
