"""An archive of the classes that Spark's JVM loads (AppCDS): with it a command answers some three seconds earlier.

`loadmanager history jars` calls `make()`, which takes half a minute, and 190 MB beside the jars; sessions on this
machine call `options()`. An archive is for one class path and one Java; for others `make` replaces it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from loadmanager.history import jars

TRAINING = "loadmanager.history.training"
"""The program that does some work and ends, which this module does not import."""
TIMEOUT_S = 300
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM tells on standard output of each class that it can't archive, and of an archive that it doesn't take."""


def class_path() -> str:
    """The jars that every job needs, for a JVM on this machine. Raises Invalid where they are missing."""
    return ":".join(str(jar) for jar in jars.needed())


def options() -> str:
    """Options for a JVM with `class_path()`; none where there is no archive for it."""
    file = _file()
    return f'"-XX:SharedArchiveFile={file}" -Xshare:auto {SILENT}' if file is not None and file.exists() else ""


def make() -> bool:
    """Make the archive unless it is there; whether it is. A Java that can't make one is no error."""
    file = _file()
    if file is None or file.exists():
        return file is not None
    part = file.with_suffix(f".{os.getpid()}.part")
    command = [sys.executable, "-m", TRAINING, str(part)]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TIMEOUT_S)
        part.rename(file)
    except (OSError, subprocess.TimeoutExpired):
        part.unlink(missing_ok=True)
        return False
    for old in set(file.parent.glob("*.jsa")) - {file}:
        old.unlink(missing_ok=True)
    return True


def _file() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    spark = find_spec("pyspark")
    if spark is None or not java.is_file():
        return None
    known = java.resolve().stat()
    about = (str(java.resolve()), known.st_mtime_ns, known.st_size, spark.origin, version("pyspark"), class_path())
    return jars.folder() / f"classes-{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.jsa"
