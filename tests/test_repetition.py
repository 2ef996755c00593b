"""No pattern of `re` in the product takes more than linear time, whatever it is matched against.

`re` holds the interpreter's lock while it matches. A pattern that takes quadratic time for what a stranger sent stops a
broker. Expressions that users write go to RE2, by `loadmanager.model.policies.patterns`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from starlette.routing import compile_path

from loadmanager_api.access.rules import RULES, register
from tests.repetition import complaint

ROOT = Path(__file__).parents[1]
PACKAGES = ("statechannel", "loadmanager", "api", "tests/simulator")
FLAGS_AT = {
    **dict.fromkeys(("search", "match", "fullmatch", "findall", "finditer"), 2),
    **dict.fromkeys(("sub", "subn"), 4),
    "compile": 1,
    "split": 3,
}
METHODS = FLAGS_AT.keys()
"""The functions of `re`; the place of the argument with the flags."""
AT_ONE_PLACE = {"match", "fullmatch"}
FLAGS = {f"re.{name}": value for name, value in re.RegexFlag.__members__.items()}
ARGUMENTS = {"paging.of": (4, "form")}
"""Functions of ours that fully match a pattern: number and name of this argument."""


class Use(NamedTuple):
    """A pattern in the source; its text is None where the source does not have it."""

    where: str
    text: str | bytes | None
    flags: int
    searched: bool


class Module:
    """One module that uses `re`."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.tree = ast.parse(text)
        self.assigned = {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.imported = {
            alias.name: node.module
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def uses(self, others: set[tuple[str, str]]) -> Iterator[Use]:
        """Its patterns. `others`: methods that any module calls on public names."""
        named = {id(value): name for name, value in self.assigned.items()}
        for node in ast.walk(self.tree):
            match node:
                case ast.Call(args=[ast.Name(id=name), *_]) if name in {name for _, name in ARGUMENTS.values()}:
                    pass  # within such a function
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method)) if method in METHODS:
                    given = self.flags(node, method)
                    searched = method not in AT_ONE_PLACE
                    if method == "compile" and (name := named.get(id(node))):
                        searched = _searched(name, self.text, others)
                    yield Use(f"{self.name}:{node.lineno}", self.value(node.args[0]), given, searched)
                case ast.Call(func=ast.Attribute() as called) if found := ARGUMENTS.get(ast.unparse(called)):
                    yield Use(f"{self.name}:{node.lineno}", self.value(node.args[found[0]]), 0, searched=False)
                case _:
                    pass

    def flags(self, call: ast.Call, method: str) -> int:
        """The flags that the call names."""
        given = [each.value for each in call.keywords if each.arg == "flags"]
        given += call.args[FLAGS_AT[method] :]
        return sum(FLAGS[part] for each in given for part in ast.unparse(each).split(" | "))

    def value(self, node: ast.expr) -> str | bytes | None:
        """What a constant expression is; None if it is none."""
        match node:
            case ast.Constant(value=str() | bytes() as text):
                return text
            case ast.JoinedStr(values=values):
                parts = [self.value(each.value if isinstance(each, ast.FormattedValue) else each) for each in values]
                return "".join(map(str, parts)) if None not in parts else None
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = self.value(left), self.value(right)
                return f"{both[0]}{both[1]}" if None not in both else None
            case ast.Attribute(value=ast.Name(id=name), attr="pattern") if name in self.assigned:
                compiled = self.assigned[name]
                return self.value(compiled.args[0]) if isinstance(compiled, ast.Call) else None
            case ast.Name(id=name) if name in self.assigned:
                return self.value(self.assigned[name])
            case ast.Attribute(value=ast.Name(id=name), attr="pattern") if module := self.imported.get(name):
                name = f"{module.replace('.', '/')}.py"
                return Module(name, (ROOT / name).read_text(encoding="utf-8")).value(node)
            case _:
                return None


def _searched(name: str, text: str, others: set[tuple[str, str]]) -> bool:
    """Whether the pattern is used otherwise than at one place."""
    used = set(re.findall(rf"(?<!\w){name}\b(?!\s*[,=:]|\.pattern\b)(?:\.(\w+))?", text))
    if not name.startswith("_"):
        used |= {method for other, method in others if other == name and method in METHODS}
    return not used <= AT_ONE_PLACE


@cache
def uses() -> list[Use]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    using = {
        name: text
        for name, text in texts.items()
        if re.search(r"^\s*import re\b", text, re.MULTILINE) or any(f"{call}(" in text for call in ARGUMENTS)
    }
    others = {each for text in texts.values() for each in re.findall(r"\b([A-Z][A-Z_]+)\.([a-z]+)\(", text)}
    return [use for name, text in using.items() for use in Module(name, text).uses(others)]


def test_no_pattern_takes_more_than_linear_time():
    found = {
        use.where: "write the pattern where it is used"
        if use.text is None
        else complaint(use.text, use.flags, searched=use.searched)
        for use in uses()
    }
    assert len(found) > 80
    assert not {where: why for where, why in found.items() if why}


def test_no_path_of_a_route_takes_more_than_linear_time():
    register()
    found = {path: complaint(compile_path(path)[0].pattern, searched=False) for path in RULES}
    assert not {path: why for path, why in found.items() if why}


def test_no_module_hides_its_use_of_re():
    """`from re import …`, another name for it, and `fnmatch`, which makes patterns with several `.*`."""
    hidden = re.compile(
        r"^\s*(?:from re import (?!Match\b|Pattern\b)|import re as |(?:import|from) fnmatch\b).*", re.MULTILINE
    )
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {str(path): line[0] for path in paths for line in hidden.finditer(path.read_text(encoding="utf-8"))}
    assert not found


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",
        r"a+a+b",
        r"\w*pwd\w*",
        r".*a.*b",
        r"(?:a|a)*b",
        r"(?:a|aa)*b",
        r"(?:\d{1,3})*b",
        r"(?:ab?)*(?:ba)*c",
        r"(?:a*b?)*c",
        r"(?:a+){2,4}b",
        r"(?>a+a+b)",
        r"(?=a+a+b)a",
        r"\d{1,500}\d{1,500}x",
        r"(?:x\w+y)*\w+z",
        r"(?i:A+)a+b",
        r"(?:x|(?:a?b?)){22}c",
        r"(?:a{1,200}){1,200}b",
        r"(?!a+a+b)a*c",
        r"(a+)\1b",
    ],
)
def test_repetitions_that_share_characters_are_seen(pattern: str):
    assert complaint(pattern, searched=False)


@pytest.mark.parametrize(
    "pattern",
    [
        r"a+b",
        r" +$",
        r"\w+=",
        r"\s*=",
        r"<!--.*?-->",
        r"(?=.*b)a",
        r"\b[\w-]+=",
        r"(?<!a)\w+=",
        r"^.*b",
        r"a?b?c*d",
        r"x\w+y",
        r'"(?:[^"\\]|\\.)*"',
        r"(?!.*x)b",
    ],
)
def test_a_search_that_begins_anew_within_a_run_is_seen(pattern: str):
    assert complaint(pattern, re.MULTILINE | re.DOTALL, searched=True)


@pytest.mark.parametrize(
    ("pattern", "searched"),
    [
        (r"[\w.-]+/[\w.-]+", False),
        (r"a++a+b", False),
        (r"(?>a+)a", False),
        (r'"(?:[^"\\]|\\.)*"', False),
        (r"(?:\.\d+)*x", False),
        (r"(?:a|ab)*+c", False),
        (r"\w+", True),
        (r"(?<!\w)\w+=", True),
        (r"(?<=[:=])[^:=]+:", True),
        (r"(?:^|(?<=[:=]))[^:=]+:", True),
        (r"\b\w+=", True),
        (r"=\w+=", True),
        (r"\A.*b", True),
        (r"\d{1,9}x", True),
    ],
)
def test_what_takes_linear_time_is_let_through(pattern: str, searched: bool):
    assert complaint(pattern, searched=searched) is None
