"""Reads Dockerfiles, says which rules of good ones they break, and carries out their steps in a plain directory."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "helm" / "images"
DOCKERFILES = sorted(IMAGES.glob("*.Dockerfile"))
LABELS = {f"org.opencontainers.image.{each}" for each in ("title", "description", "licenses", "version")}
LABELS |= {"org.opencontainers.image.revision", "org.opencontainers.image.source", "loadmanager.sbom"}
CLEAN = "rm -rf /var/lib/apt/lists/*"
FIRST_USER = 10_001
SYSTEM = ("apt-get", "useradd")
"""Steps of the system's packages and users, which a plain directory does not have."""


class Step(NamedTuple):
    """An instruction and the rest of its line, continued lines joined."""

    word: str
    rest: str


class Stage(NamedTuple):
    """What follows a FROM."""

    base: str
    name: str
    steps: list[Step]

    def all(self, word: str) -> list[str]:
        """The rests of these instructions."""
        return [step.rest for step in self.steps if step.word == word]


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile. Comments go; a line that ends in a backslash continues."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = list[Stage]()
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        word, rest = word.upper(), " ".join(rest.split())
        if word == "FROM":
            base, _, name = re.sub(r"(?i) as ", "\0", rest).partition("\0")
            found.append(Stage(base, name, []))
        else:
            found[-1].steps.append(Step(word, rest))
    return found


def pairs(texts: list[str]) -> dict[str, str]:
    """`KEY=VALUE …` of LABEL and ENV."""
    parts = (each.partition("=") for text in texts for each in shlex.split(text))
    return {key: value for key, _, value in parts}


# --- rules


def broken_rules(text: str) -> set[str]:
    """Names of the rules that the Dockerfile breaks."""
    found = stages(text)
    return {*_of_bases(found), *_of_steps(found), *_of_last(found[-1])}


def _of_bases(found: list[Stage]) -> Iterator[str]:
    if len(found) < 2:
        yield "one stage only: what builds is in the image too"
    names = {each.name for each in found}
    for each in found:
        tag = each.base.partition(":")[2]
        if each.base not in names and (not tag or tag == "latest"):
            yield "a base without a tag"


def _of_steps(found: list[Stage]) -> Iterator[str]:
    for step in (step for stage in found for step in stage.steps):
        if step.word == "ADD":
            yield "ADD: it may fetch or unpack"
        if step.word == "WORKDIR" and not step.rest.startswith("/"):
            yield "a WORKDIR that is not absolute"
        if step.word == "RUN":
            yield from _of_run(step.rest)


def _of_run(text: str) -> Iterator[str]:
    if "apt-get install" in text and ("apt-get update" not in text or CLEAN not in text):
        yield "apt-get install without update before and cleaning after it"
    if "apt-get install" in text and "--no-install-recommends" not in text:
        yield "apt-get install of what is only recommended"
    for command in re.split(r"&&|;", text):
        if "pip install" in command:
            if "--require-hashes" not in command and "--no-deps" not in command:
                yield "pip install of what is not locked"
            if "--no-cache-dir" not in command:
                yield "pip install that leaves its cache"
        if re.search(r"\b(curl|wget|sudo)\b", command):
            yield "a download, or sudo"


def _of_last(last: Stage) -> Iterator[str]:
    users = last.all("USER")
    if not users or not re.fullmatch(r"\d+:\d+", users[-1]) or int(users[-1].partition(":")[0]) < FIRST_USER:
        yield "no numeric user that is not root's"
    words = [step.word for step in last.steps]
    if "USER" in words and {"RUN", "COPY"} & set(words[words.index("USER") :]):
        yield "a step after USER: the user could change it"
    if not last.all("ENTRYPOINT") or not last.all("ENTRYPOINT")[-1].startswith("["):
        yield "no ENTRYPOINT in exec form: signals would not arrive"
    if LABELS - pairs(last.all("LABEL")).keys():
        yield "labels are missing"


# --- carrying out


class Built(NamedTuple):
    """An image as a directory."""

    root: Path
    environment: dict[str, str]
    entrypoint: list[str]
    labels: dict[str, str]

    def path(self, inside: str) -> Path:
        """Where a path of the image is."""
        return self.root / inside.removeprefix("/")

    def command(self, *arguments: str) -> list[str]:
        """What the container would run; tini, which is of the system, does not come first."""
        entry = [each for each in self.entrypoint if each not in {"tini", "--"}]
        return [str(self.path(each)) if each.startswith("/") else each for each in entry] + list(arguments)


def carry_out(dockerfile: Path, root: Path) -> Built:
    """Take its steps, with the paths of the image below `root`; all stages share them. Raises CalledProcessError."""
    found, folder = stages(dockerfile.read_text()), root / "src"
    tools = root / "tools"
    tools.mkdir(parents=True)
    (tools / "python").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment |= {"HOME": os.environ["HOME"], "LANG": "C.UTF-8"}
    context = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text()
    for step in (step for stage in found for step in stage.steps):
        if step.word == "WORKDIR":
            folder = root / step.rest.removeprefix("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY":
            _copy(step.rest, context, root, folder)
        elif step.word == "RUN" and not any(each in step.rest for each in SYSTEM):
            script = _moved(step.rest, root).replace("--no-cache-dir ", "")  # so that a second run is quick
            subprocess.run(["sh", "-ec", script], cwd=folder, env=environment, check=True, timeout=1_500)
        elif step.word == "ENV":
            given = {name: _moved(value, root) for name, value in pairs([step.rest]).items()}
            environment |= {name: value.replace("$PATH", environment["PATH"]) for name, value in given.items()}
    last = found[-1]
    environment["HOME"] = str(folder)
    return Built(root, environment, json.loads(last.all("ENTRYPOINT")[-1]), pairs(last.all("LABEL")))


def _moved(text: str, root: Path) -> str:
    return re.sub(r"(?<![\w.*/])/(?=(opt|src|tmp)\b)", f"{root}/", text)


def _copy(rest: str, context: str, root: Path, folder: Path) -> None:
    *sources, target = [each for each in rest.split() if not each.startswith("--")]
    if "--from=" in rest:
        assert sources == [target], "stages share their paths here"
        return
    goal = root / target.removeprefix("/") if target.startswith("/") else folder / target
    for source in sources:
        for path in files_of(context):
            if source == "." or path == Path(source):
                place = goal / path if source == "." else goal
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, place)
        assert source == "." or goal.exists(), f"{source} is not in the context: see the .dockerignore"


def files_of(context: str) -> list[Path]:
    """The files of the repository that a .dockerignore lets into the context: all is ignored but what it names."""
    first, *kept = [line for line in context.splitlines() if line and not line.startswith("#")]
    assert first == "*"
    found = list[Path]()
    for name in (line.removeprefix("!") for line in kept if line.startswith("!")):
        path = ROOT / name
        assert path.exists(), name
        found += [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return [each.relative_to(ROOT) for each in found if "__pycache__" not in each.parts]
