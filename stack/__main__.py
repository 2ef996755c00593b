"""`python -m stack up | status | down`: one Kafka and one ZooKeeper on free loopback ports, data under `.stack/`.

`down` ends only what `up` started, known by pid and start time from `.stack/run.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from stack.jars import STACK_DIR, classpath, java
from stack.process import Identity
from stack.programs import StackError
from stack.servers import STOP_TIMEOUT_S, JavaServer, KafkaServer, ZooKeeperServer

RUN_FILE = STACK_DIR / "run.json"
DATA_DIR = STACK_DIR / "data"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start both, print their addresses")
    up.add_argument("--fresh", action="store_true", help="begin with empty servers")
    commands.add_parser("jars", help="bring the servers' jars, or say what is missing for that")
    commands.add_parser("down", help="stop what `up` started")
    commands.add_parser("status", help="say what runs; exit code 1 if not both do")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "up":
                return _up(fresh=arguments.fresh)
            case "jars":
                return _jars()
            case "down":
                return _down()
            case _:
                return _status()
    except StackError as error:
        _say(str(error), sys.stderr)
        return 1


def _up(*, fresh: bool) -> int:
    noted = _noted()
    if any(identity.is_alive() for _, identity in noted.values()):
        if all(identity.is_alive() for _, identity in noted.values()):
            return _status()
        _down()
    if fresh:
        shutil.rmtree(DATA_DIR, ignore_errors=True)
    servers: list[JavaServer] = [KafkaServer(DATA_DIR / "kafka"), ZooKeeperServer(DATA_DIR / "zookeeper")]
    try:
        for server in servers:
            server.start()
    except BaseException:
        for server in servers:
            server.kill()
        raise
    _note(servers)
    return _status()


def _jars() -> int:
    java()
    for server in ("kafka", "zookeeper"):
        classpath(server)
    return 0


def _down() -> int:
    for name, (address, identity) in _noted().items():
        if identity.is_alive():
            identity.end(STOP_TIMEOUT_S)
            _say(f"{name} on {address} stopped")
    RUN_FILE.unlink(missing_ok=True)
    return 0


def _status() -> int:
    noted = _noted()
    for name, (address, identity) in noted.items():
        state = f"pid {identity.pid}" if identity.is_alive() else "not running; see " + str(_log_of(name))
        _say(f"{name:<10} {address:<22} {state}", sys.stderr)
    if len(noted) < 2 or not all(identity.is_alive() for _, identity in noted.values()):
        _say("not running; start with: python -m stack up", sys.stderr)
        return 1
    _say("one Kafka server replicates nothing: a broker on it needs --development as well", sys.stderr)
    _say(f"--log kafka://{noted['kafka'][0]} --coordination zookeeper://{noted['zookeeper'][0]}")
    return 0


def _note(servers: list[JavaServer]) -> None:
    noted: dict[str, Mapping[str, str | int]] = {}
    for server in servers:
        if (identity := server.identity) is not None:
            noted[server.name] = {"address": server.address, "pid": identity.pid, "started": identity.started}
    RUN_FILE.write_text(json.dumps(noted, indent=2) + "\n")


def _noted() -> dict[str, tuple[str, Identity]]:
    try:
        noted = json.loads(RUN_FILE.read_text())
    except FileNotFoundError:
        return {}
    return {name: (entry["address"], Identity(entry["pid"], entry["started"])) for name, entry in noted.items()}


def _say(text: str, stream: TextIO = sys.stdout) -> None:
    stream.write(text + "\n")


def _log_of(name: str) -> Path:
    return DATA_DIR / name / "server.log"


if __name__ == "__main__":
    sys.exit(main())
