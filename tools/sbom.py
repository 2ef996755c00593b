"""Writes the bill of materials of an environment, CycloneDX 1.6 as JSON: `ENVIRONMENT/bin/python tools/sbom.py LOCK`.

It lists what is installed, with the hashes that the lock file allows, and fails if the two differ. With `--jars DIR
--pom FILE` also the jars below a folder, by the coordinates in the POM. It does not list packages of the system.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import sys
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SUBJECT = "loadmanager"
TOOLS = {"pip", "setuptools", "wheel"}
"""What an environment has of its own."""
LOCKED = re.compile(r"^([\w.-]+)==(\S+?)(?: ;.*?)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.MULTILINE)
POM = "{http://maven.apache.org/POM/4.0.0}"
LONGEST_LICENCE = 60
"""Longer ones are the whole text."""


def sbom(lock: Path, pom: Path | None = None, jars: Path | None = None) -> dict[str, Any]:
    """The document, the same for the same environment. Raises SystemExit if the environment is not what is locked."""
    installed = {name_of(each): each for each in importlib.metadata.distributions()}
    subject = installed.pop(SUBJECT, None)
    if subject is None:
        sys.exit(f"{SUBJECT} is not installed in the environment of {sys.executable}")
    packages = {name: each for name, each in installed.items() if name not in TOOLS}
    hashes = {(canonical(name), version): re.findall("[0-9a-f]{64}", rest)
              for name, version, rest in LOCKED.findall(lock.read_text())}  # fmt: skip
    other = [f"{name} {each.version}" for name, each in sorted(packages.items()) if (name, each.version) not in hashes]
    if other:
        sys.exit(f"installed, but not as {lock} says: {', '.join(other)}")
    parts = [component(each, hashes[name, each.version]) for name, each in sorted(packages.items())]
    java = [] if pom is None or jars is None else list(jar_components(pom, jars))
    root = component(subject, ())
    graph = dependencies({SUBJECT: subject, **packages})
    graph[0]["dependsOn"] += [each["bom-ref"] for each in java]
    content = {
        "metadata": {"component": {**root, "type": "application"}},
        "components": [*parts, *java],
        "dependencies": [*graph, *({"ref": each["bom-ref"]} for each in java)],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        **content,
    }


def canonical(name: str) -> str:
    """A package's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(distribution: importlib.metadata.Distribution) -> str:
    """Its name, as PEP 503 writes it."""
    return canonical(distribution.metadata["Name"])


def purl(distribution: importlib.metadata.Distribution) -> str:
    """Its package URL."""
    return f"pkg:pypi/{name_of(distribution)}@{distribution.version}"


def component(distribution: importlib.metadata.Distribution, hashes: Iterable[str]) -> dict[str, Any]:
    """A Python package; its hashes are those of all files that the lock file allows for this version."""
    about, url = distribution.metadata.json, purl(distribution)
    found: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name_of(distribution)}
    found |= {"version": distribution.version, "purl": url}
    expression, text = about.get("license_expression"), str(about.get("license", "")).strip()
    if expression:
        found["licenses"] = [{"expression": expression}]
    elif 0 < len(text) <= LONGEST_LICENCE and "\n" not in text:
        found["licenses"] = [{"license": {"name": text}}]
    allowed = [{"name": "lock:sha256", "value": each} for each in hashes]
    return {**found, "properties": allowed} if allowed else found


def dependencies(packages: Mapping[str, importlib.metadata.Distribution]) -> list[dict[str, Any]]:
    """Which package needs which; extras count where they are installed. The first one is ours."""
    found = list[dict[str, Any]]()
    for each in packages.values():
        named = {canonical(re.split(r"[^\w.-]", needed, maxsplit=1)[0]) for needed in each.requires or ()}
        needs = sorted(purl(packages[name]) for name in named if name in packages and packages[name] is not each)
        found.append({"ref": purl(each), "dependsOn": needs})
    return found


def jar_components(pom: Path, jars: Path) -> Iterator[dict[str, Any]]:
    """The jars below the folder. Raises SystemExit for one that the POM does not name, or one that is missing."""
    files = {path.name: path for path in jars.rglob("*.jar")}
    for group, artifact, version in coordinates(pom):
        path = files.pop(f"{artifact}-{version}.jar", None)
        if path is None:
            sys.exit(f"{artifact} {version} of {pom} is not below {jars}")
        url = f"pkg:maven/{group}/{artifact}@{version}"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        yield {
            "type": "library",
            "bom-ref": url,
            "group": group,
            "name": artifact,
            "version": version,
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "purl": url,
        }
    if files:
        sys.exit(f"{pom} does not name {', '.join(sorted(files))}")


def coordinates(pom: Path) -> list[tuple[str, str, str]]:
    """Group, artifact and version of each dependency, also of those in profiles."""
    project = ElementTree.parse(pom).getroot()
    values = {each.tag.removeprefix(POM): each.text or "" for each in project.find(f"{POM}properties") or ()}
    found = list[tuple[str, str, str]]()
    for each in project.iterfind(f".//{POM}dependencies/{POM}dependency"):
        group, artifact, version = (each.findtext(POM + part, "") for part in ("groupId", "artifactId", "version"))
        found.append((group, artifact, re.sub(r"\$\{([^}]+)\}", lambda match: values[match[1]], version)))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--pom", type=Path)
    parser.add_argument("--jars", type=Path)
    sys.stdout.write(json.dumps(sbom(**vars(parser.parse_args())), indent=1) + "\n")
