"""What mkdocs adds to the pages of docs/: the root's pages, the API, the commands, the routes, the list of decisions.

Nothing is copied by hand: the front page is README.md, the API comes from docstrings, the commands from `--help`, the
routes from the OpenAPI document.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from loadmanager_api.application import routes_of_all
from loadmanager_api.cli.main import COMMANDS, main

sys.path.insert(0, str(Path(__file__).parent))
from rest_page import rest
from state_pictures import picture

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINKED = {**ROOT_PAGES, "docs/rest_page.py": "reference/rest.md"}
"""Pages of the site by what the repository has in their place."""
API = {
    "In a service": "loadmanager",
    "Stores with fences": "loadmanager.fencing",
    "What a service answers": "loadmanager.client.redirection",
    "Tests of a service": "loadmanager.testing",
}
DIAGRAM = re.compile(r"^```mermaid\n(stateDiagram.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions in the navigation, behind their index."""
    records = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    decisions = ["decisions/index.md", *(f"decisions/{page.name}" for page in records)]
    assert config.nav is not None
    config.nav = [{"Decisions": decisions} if "Decisions" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "reference/api.md", content="\n".join(api())))
    files.append(File.generated(config, "reference/rest.md", content="\n".join(rest(routes_of_all().openapi()))))
    files.append(File.generated(config, "reference/commands.md", content="\n".join(commands())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between pages lead to pages; what else is in the repository is named and not linked."""
    where = page.file.src_uri
    origin = next((name for name, built in ROOT_PAGES.items() if built == where), f"docs/{where}")

    def relink(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = ((ROOT / origin).parent / target).resolve()
        if not path.exists():
            return found[0]  # mkdocs complains
        name = path.relative_to(ROOT).as_posix()
        built = LINKED.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else "")
        if name == "docs/decisions":
            built = "decisions/index.md"
        if not built:
            return text if text.startswith("`") else f"`{name}`"
        if text.endswith(".md") and path.is_file():  # for a reader of the site it is a page, not a file
            text = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        up = "../" * where.count("/")
        return f"{picture}[{text}]({up}{built}{anchor})"

    markdown = DIAGRAM.sub(lambda found: f'<div class="states">{picture(found[1])}</div>\n', markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else LINK.sub(relink, part) for part in parts)


def api() -> Iterator[str]:
    """The public names of each package, for mkdocstrings."""
    yield "# Python API\n"
    for title, package in API.items():
        module = import_module(package)
        names = getattr(module, "__all__", ["Moved", "NotServing", "problem_of", "error_of"])
        yield f"## {title}\n\n`from {package} import …`\n"
        for name in names:
            home = getattr(getattr(module, name), "__module__", package)
            yield f"::: {home}.{name}\n    options:\n      heading_level: 3\n"


def commands() -> Iterator[str]:
    """`--help` of every command."""
    yield "# Commands\n\nWhat `--help` says. [How they belong together](../command-line.md).\n"
    top = click.Context(main, info_name="loadmanager")
    for name in sorted(COMMANDS):
        command = main.get_command(top, name)
        assert command is not None
        yield from help_of(command, name, top)


def help_of(command: click.Command, name: str, parent: click.Context, level: int = 2) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
    yield f"{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None and not inner.hidden:
                yield from help_of(inner, each, context, level + 1)
