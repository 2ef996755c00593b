"""Changes the code in one small place at a time, and prints the changes that no test notices: the survivors.

    python -m tests.mutation --area leader --count 20 --seed 7

Each change is made in a copy of the tree, never in the tree itself. A survivor is a behaviour that no test of its area
asks for, or a change that makes no difference. `tests/statechannel/test_mutants.py` has the changes of the law that
must be noticed; this finds those about which nothing was said yet.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PATIENCE = 5
"""A change with which the tests take so many times as long, and PAUSE_S more, counts as noticed."""
PAUSE_S = 60.0


class Area(NamedTuple):
    """Files to change, and the tests that should notice it: what follows `pytest`."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


def _in(folder: str, names: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(f"{folder}/{prefix}{name}.py" for name in names.split())


LAW_FILES = _in("statechannel/law", "agreement namespace partition table transitions")
LAW_TESTS = _in(
    "tests/statechannel", "agreement invariants moves reshaping table transitions histories copies", "test_"
)
PROOF_TESTS = ("tests/statechannel/test_proofs.py", *_in("tests/loadmanager/broker", "proving proof_clock", "test_"))
AREAS = {
    "law": Area(LAW_FILES, (*LAW_TESTS, "tests/scenarios")),
    "proofs": Area(
        ("statechannel/runtime/proofs.py", "loadmanager/broker/proving.py", "loadmanager/cluster/clocks.py"),
        PROOF_TESTS,
    ),
    "leader": Area(_in("loadmanager/leader", "core"), ("tests/loadmanager/leader/test_core.py",)),
    "group": Area(
        _in("loadmanager/consumers/coordinator", "group targets"),
        _in("tests/loadmanager/consumers", "group group_world promises", "test_"),
    ),
    "fences": Area(
        _in("loadmanager/fencing", "fences sqlite"),
        ("tests/contracts/test_fencing_contract.py", "-m", "not (postgresql or redis)"),
    ),
}
FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


class Mutant(NamedTuple):
    """One changed place: bytes `[begin, end)` of the source become `after`."""

    line: int
    begin: int
    end: int
    before: str
    after: str

    def applied(self, source: str) -> str:
        encoded = source.encode()
        return (encoded[: self.begin] + self.after.encode() + encoded[self.end :]).decode()


def mutants_of(source: str) -> list[Mutant]:
    """All changes of a module, in order; each of them compiles."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node in _code(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = source.encode()[begin:end].decode()
        found += [Mutant(node.lineno, begin, end, before, after) for after in _changes(node)]
    return sorted(found)


def _code(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What decides or acts: without annotations, decorators, docstrings, errors and texts."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if text or not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _code(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(left, [operator], [right]):
            yield f"{_inner(left)} {FLIPPED[type(operator)]} {_inner(right)}"
        case ast.BoolOp(operator, values):
            yield f"({(' or ' if isinstance(operator, ast.And) else ' and ').join(map(_inner, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield _inner(operand)
        case ast.BinOp(left, ast.Add() | ast.Sub() as operator, right):
            yield f"{_inner(left)} {'-' if isinstance(operator, ast.Add) else '+'} {_inner(right)}"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield str(value + 1)
        case ast.Call(ast.Name("min" | "max" as name), arguments, keywords):
            yield ast.unparse(ast.Call(ast.Name("max" if name == "min" else "min"), arguments, keywords))
        case ast.Return(ast.expr()):
            yield "return None"
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case _:
            return


def _inner(node: ast.expr) -> str:
    """With parentheses where it would read otherwise inside another expression."""
    plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant)
    return ast.unparse(node) if plain else f"({ast.unparse(node)})"


def survivors(tree: Path, area: Area, count: int, seed: int) -> Iterator[tuple[str, Mutant, bool]]:
    """File, change, and True if no test noticed it, for `count` changes of the area; changes files of `tree`.

    Raises RuntimeError if the tests fail without a change.
    """
    began_s = time.monotonic()
    if not _pass(tree, area.tests, None):
        raise RuntimeError(f"the tests fail without a change: pytest {' '.join(area.tests)}")
    limit_s = PAUSE_S + PATIENCE * (time.monotonic() - began_s)
    every = [(file, mutant) for file in area.files for mutant in mutants_of((tree / file).read_text())]
    for file, mutant in random.Random(seed).sample(every, min(count, len(every))):
        source = (tree / file).read_text()
        (tree / file).write_text(mutant.applied(source))
        try:
            yield file, mutant, _pass(tree, area.tests, limit_s)
        finally:
            (tree / file).write_text(source)


def _pass(tree: Path, tests: Sequence[str], limit_s: float | None) -> bool:
    """Whether these tests pass in this tree; its code comes before what is installed."""
    path = os.pathsep.join([str(tree), str(tree / "api")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def copy(place: Path) -> Path:
    """The files of the tree that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--area", choices=AREAS, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=20, help="changes of each area")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same changes")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        tree = copy(Path(place))
        for name in given.area or AREAS:
            made, left = 0, 0
            for file, mutant, survived in survivors(tree, AREAS[name], given.count, given.seed):
                made, left = made + 1, left + survived
                if survived:
                    print(f"{file}:{mutant.line}: {' '.join(mutant.before.split())} -> {mutant.after}", flush=True)
            print(f"{name}: {left} of {made} changes were not noticed (--seed {given.seed})", flush=True)


if __name__ == "__main__":
    main()
