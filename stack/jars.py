"""Brings the servers' jars with Maven, once, and finds the JDK. Does not start anything of them."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stack.programs import StackError, install, program

ROOT = Path(__file__).resolve().parent.parent
STACK_DIR = ROOT / ".stack"
POM = Path(__file__).with_name("pom.xml")
OLDEST_JAVA = 17
DOWNLOAD_TIMEOUT_S = 600


def classpath(server: str) -> str:
    """The class path of `kafka`, `zookeeper` or `pulsar-admin`; downloads the jars if they are missing or outdated."""
    target = STACK_DIR / "jars" / server
    stamp = target / ".complete"
    wanted = hashlib.sha256(POM.read_bytes()).hexdigest()
    with _locked(STACK_DIR / "jars" / f"{server}.lock"):
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            _download(server, target)
            stamp.write_text(wanted)
    return str(target / "*")


def java() -> str:
    """The path of a Java that is new enough. Raises StackError."""
    path = program("java")
    banner = subprocess.run([path, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', banner)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise StackError(f"{path} is older than {OLDEST_JAVA}; on Debian: {install('java')}")
    return path


def _download(server: str, target: Path) -> None:
    command = [program("mvn"), "-q", "-B", "-f", str(POM), "-P", server, "dependency:copy-dependencies"]
    run = subprocess.run(
        [*command, f"-DoutputDirectory={target}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=DOWNLOAD_TIMEOUT_S,
    )
    if run.returncode != 0:
        raise StackError(f"Maven could not bring the jars of {server}:\n{run.stdout[-2000:]}")


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Only one process of this machine at a time: two test runs would otherwise write the same jars."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
