"""The wheel in an empty environment: what is in it, that it runs with its own dependencies only, and what it asks for.

Built from a copy, so that nothing of an earlier build gets into it; pip (or uv) may take what it needs from its index
or its cache. One build and two environments serve all of these tests: the wheel alone, and a broker's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

import pytest

from loadmanager_api.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("loadmanager", "loadmanager_api", "statechannel")
BARE = {
    *("aiohttp", "click", "google-re2", "msgspec", "numpy", "prometheus-client", "psutil", "pydantic"),
    *("pydantic-settings", "pyyaml", "rich", "structlog"),
}
EXTRAS = {"api", "planner", "kafka", "zookeeper", "all", "otel", "postgresql", "redis", "top", "playground", "history"}
TIMEOUT_S = 300.0
READY, READY_S = " is ready: ", 60.0

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(2 * TIMEOUT_S)]

SERVICE = """
async def test_it_fails_over(loadmanager_cluster):
    async with loadmanager_cluster(brokers=2, bundles=2) as cluster:
        await cluster.kill(cluster.brokers[0])
        await cluster.settled()
        assert cluster.owner("test/service/alice") is cluster.brokers[0]
"""

PUBLIC = """
import sys
import loadmanager, loadmanager.client, loadmanager.embedding.broker, loadmanager.testing.cluster

for name in loadmanager.__all__:
    getattr(loadmanager, name)
print(loadmanager.__version__, sorted({"fastapi", "uvicorn", "scipy", "pandas", "pyspark"} & set(sys.modules)))
"""

PROJECT = """
import asyncio
import api, bench, tests
from loadmanager.testing import embedded_cluster

class Service:
    def prepare(self, bundle): ...
    def acquire(self, bundle, token, hand_off): ...
    def release(self, bundle, to): ...
    def abandon(self, bundle): ...
    def load(self): return {}

async def main():
    async with embedded_cluster(Service, brokers=2, bundles=2) as cluster:
        await cluster.kill(cluster.brokers[0])
        await cluster.settled()
        assert cluster.owner("test/service/alice") is cluster.brokers[0]

asyncio.run(main())
print(api.WHOSE, bench.WHOSE, tests.WHOSE)
"""

STORE = "from loadmanager.fencing import {0} as store; store.{1}"

EVERY_COMMAND = """
from loadmanager_api.cli.main import COMMANDS, main

for command in COMMANDS:
    main([command, "--help"], standalone_mode=False)
"""

PYTEST_INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""

TYPED = """
from loadmanager import Broker, Bundle, Token
from loadmanager.testing import embedded_cluster
from statechannel.law.bundle import Key

reveal_type(Key.parse("t/n/a").namespace)


async def main(broker: Broker) -> None:
    async with broker.admit("t/n/a") as claim:
        bundle: Bundle = claim.bundle
        wrong: int = claim.token
        print(bundle, wrong, Token, embedded_cluster)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def done(*command: str | Path, cwd: Path, **environment: str) -> str:
    result = run(*command, cwd=cwd, **environment)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for package in ("statechannel", "loadmanager", "api", "tests", "bench"):  # the latter two must stay out
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    dist = tmp_path_factory.mktemp("dist")
    if uv := shutil.which("uv"):
        done(uv, "build", "-q", "--wheel", "-o", dist, source, cwd=source)
    else:
        done(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, source, cwd=source)
    [built] = dist.glob("*.whl")
    return built


def installed(wheel: str, place: Path) -> Path:
    """The directory of the commands of a new environment that holds the wheel and what it needs."""
    python = place / "bin" / "python"
    done(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent)
    if uv := shutil.which("uv"):
        done(uv, "pip", "install", "-q", "--python", python, wheel, cwd=place.parent)
    else:
        done(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", wheel, cwd=place.parent)
    return place / "bin"


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel and no extra."""
    return installed(str(wheel), tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment for a broker on SQLite."""
    return installed(f"{wheel}[api,planner]", tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture
def loadmanager(environment: Path) -> Path:
    return environment / "loadmanager"


@contextmanager
def broker(loadmanager: Path, directory: Path) -> Iterator[str]:
    """A broker on SQLite; gives its admin URL."""
    told = directory / "broker.err"
    with told.open("w") as errors:
        process = subprocess.Popen(
            [loadmanager, "broker", "--listen", "127.0.0.1:0", "--log", f"sqlite:{directory / 'lm.db'}"],
            cwd=directory,
            stderr=errors,
        )
    try:
        until_s = time.monotonic() + READY_S
        while READY not in told.read_text():
            assert process.poll() is None, told.read_text()
            assert time.monotonic() < until_s, told.read_text()
            time.sleep(0.02)
        yield told.read_text().partition(READY)[2].split()[0]
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def test_it_holds_the_packages_with_their_types_and_nothing_else(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert not [name for name in names if "/test_" in name or "conftest" in name or "/bench/" in name]
    sources = [
        *(ROOT / "loadmanager").rglob("*.py"),
        *(ROOT / "loadmanager").rglob("*.sql"),
        *(ROOT / "statechannel").rglob("*.py"),
    ]
    there = {path.relative_to(ROOT).as_posix() for path in sources}
    there |= {path.relative_to(ROOT / "api").as_posix() for path in (ROOT / "api").rglob("*.py")}
    assert not there - set(names), "a package without __init__.py stays out of the wheel"


def test_it_says_what_it_needs_and_offers(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    said = Parser().parsestr(archive.read(metadata).decode())
    assert set(said.get_all("Provides-Extra", [])) - {"test", "dev", "style"} == EXTRAS
    needs = said.get_all("Requires-Dist", [])
    assert {re.split(r"[^\w-]", need)[0] for need in needs if "extra ==" not in need} == BARE
    assert not [need for need in needs if re.search(r"[^!=<>~]==", need.partition(";")[0])], "ranges; locks are exact"
    points = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert "loadmanager = loadmanager_api.cli.main:main" in points
    assert "loadmanager = loadmanager.testing.plugin" in points


def test_its_commands_run(environment: Path, loadmanager: Path, tmp_path: Path):
    assert "--brokers" in done(loadmanager, "demo", "--help", cwd=tmp_path)
    assert "Exit codes" in done(loadmanager, "--help", cwd=tmp_path)
    told = done(environment / "python", "-c", EVERY_COMMAND, cwd=tmp_path)
    assert told.count("Usage:") == len(COMMANDS)
    assert "errors" in done(loadmanager, "check", cwd=tmp_path)


def test_a_broker_on_sqlite_answers_a_lookup(loadmanager: Path, tmp_path: Path):
    with broker(loadmanager, tmp_path) as url:
        asking = {"cwd": tmp_path, "LOADMANAGER_ADMIN_URL": url}
        done(loadmanager, "namespaces", "create", "shop/carts", **asking)
        [answer] = json.loads(done(loadmanager, "topics", "lookup", "shop/carts/alice", "-o", "json", **asking))
        assert f"http://{answer['broker']}" == url
        told = done(loadmanager, "doctor", "-o", "bundle.tar.gz", **asking)
        assert "check.json" in told


def test_wheel_alone_offers_embedding_and_clients_and_nothing_heavy(bare: Path, wheel: Path, tmp_path: Path):
    version = wheel.name.split("-")[1]
    assert done(bare / "python", "-c", PUBLIC, cwd=tmp_path).split(maxsplit=1) == [version, "[]\n"]
    assert done(bare / "loadmanager", "--version", cwd=tmp_path).split()[-1] == version
    told = done(bare / "python", "-c", EVERY_COMMAND, cwd=tmp_path)
    assert told.count("Usage:") == len(COMMANDS)


def test_wheel_alone_runs_brokers_beside_packages_of_any_name(bare: Path, tmp_path: Path):
    for package in ("api", "bench", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"WHOSE = 'our {package}'")
    (tmp_path / "project.py").write_text(PROJECT)
    result = run(bare / "python", "project.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "our api our bench our tests\n"), result.stderr
    for extra in ("api", "planner"):
        assert f"pip install 'loadmanager[{extra}]'" in result.stderr


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("api", ("loadmanager", "broker", "--listen", "127.0.0.1:0")),
        ("api", ("loadmanager", "demo")),
        ("planner", ("loadmanager", "check")),
        ("kafka", ("loadmanager", "check", "--log", "kafka://127.0.0.1:1", "--coordination", "sqlite:co.db")),
        ("zookeeper", ("loadmanager", "check", "--coordination", "zookeeper://127.0.0.1:1")),
        ("postgresql", ("python", "-c", STORE.format("postgresql", "PostgresStore('host=nowhere')"))),
        ("top", ("loadmanager", "top")),
        ("redis", ("python", "-c", STORE.format("redis", "RedisStore('redis://127.0.0.1:1')"))),
        ("playground", ("loadmanager", "playground", "--brokers", "3", "--bundles", "9", "--rounds", "12")),
        ("history", ("loadmanager", "history", "ingest", "--lake", "lake", "--log", "sqlite:lm.db")),
    ],
)
def test_what_an_extra_would_bring_is_asked_for_in_one_line(
    bare: Path, tmp_path: Path, extra: str, command: tuple[str, ...]
):
    (tmp_path / "lm.db").touch()
    result = run(bare / command[0], *command[1:], cwd=tmp_path)
    said = (result.stdout + result.stderr).splitlines()
    assert len([line for line in said if f"pip install 'loadmanager[{extra}]'" in line]) == 1, said
    assert command[0] == "python" or "Traceback" not in result.stderr


def test_that_line_takes_the_installed_loadmanager_and_no_other(bare: Path, tmp_path: Path):
    pytest.importorskip("pip")
    asking = ("install", "--dry-run", "--no-index", "loadmanager[kafka]")
    result = run(sys.executable, "-m", "pip", "--python", bare / "python", *asking, cwd=tmp_path, PIP_FIND_LINKS="")
    assert "No matching distribution found for confluent-kafka" in result.stderr
    assert "No matching distribution found for loadmanager" not in result.stderr


def test_the_demo_runs_outside_of_the_repository(loadmanager: Path, tmp_path: Path):
    done(
        loadmanager,
        "demo",
        "--plain",
        "--seconds",
        "10",
        "--rate",
        "50",
        "--budget",
        "60",
        "--json",
        "figures",
        cwd=tmp_path,
    )
    found = json.loads((tmp_path / "figures").read_text())
    assert (found["requests_failed"], found["increments_lost"], found["increments_doubled"]) == (0, 0, 0)
    assert found["requests_ok"] > 100


@pytest.mark.parametrize("command", ["broker", "check"])
@pytest.mark.parametrize(
    ("extra", "addresses"),
    [
        ("kafka", ("--log", "kafka://127.0.0.1:1", "--coordination", "sqlite:co.db")),
        ("zookeeper", ("--log", "sqlite:lm.db", "--coordination", "zookeeper://127.0.0.1:1")),
    ],
)
def test_a_client_that_is_not_installed_is_one_line_that_names_the_extra(
    loadmanager: Path, tmp_path: Path, command: str, extra: str, addresses: tuple[str, ...]
):
    listen = ("--listen", "127.0.0.1:0") if command == "broker" else ()
    result = run(loadmanager, command, *listen, *addresses, cwd=tmp_path)
    assert result.returncode == 1
    lines = [
        line for line in (result.stdout + result.stderr).splitlines() if f"pip install 'loadmanager[{extra}]'" in line
    ]
    assert len(lines) == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_its_types_are_seen(environment: Path, tmp_path: Path):
    (tmp_path / "service.py").write_text(TYPED)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    python = environment / "python"
    result = run(sys.executable, "-m", "pyright", "--pythonpath", python, "--outputjson", "service.py", cwd=tmp_path)
    told = [(each["severity"], each["message"]) for each in json.loads(result.stdout)["generalDiagnostics"]]
    assert [severity for severity, _ in told] == ["information", "error"], told
    assert '"str"' in told[0][1]
    assert '"Token" is not assignable to "int"' in told[1][1]


def test_its_fixture_is_there_for_the_tests_of_a_service(environment: Path, tmp_path: Path):
    [site] = environment.parent.glob("lib/python*/site-packages")
    (tmp_path / "test_service.py").write_text(SERVICE)
    (tmp_path / "pytest.ini").write_text(PYTEST_INI)
    pytest_of_ours = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    told = done(*pytest_of_ours, cwd=tmp_path, PYTHONPATH=str(site))
    assert "1 passed" in told
