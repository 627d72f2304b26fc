"""Change the code in 200 places, one at a time, and see whether the tests of that code notice.

``make mutants`` prints the survivors. The places are drawn with a fixed seed, so two trees of tests can be compared:
``make mutants ARGS="--tests /other/tree/tests"`` runs other tests against the same mutants. Before the mutants of a
module, its tests must pass on the code as it is: a test that fails anyway would notice every mutant.

Why not mutmut or cosmic-ray: neither draws the same sample for two trees of tests, and both start a new interpreter,
which imports torch, for each mutant. Here every mutant is a fork of one process that has imported torch.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    "events": ["events"],
    "checkpoint": ["checkpoint"],
    "callbacks/stopping": ["callbacks/stopping"],
    "loop/data": ["loop/test_feed*.py", "loop/test_data.py"],
}
"""Folders of the package, with the tests of each."""
PER_MODULE = 50
LIMIT_S = 1200
"""For the code as it is."""
PATIENCE = 5
"""A mutant that takes this many times as long as the code as it is has a time-out, which is listed apart."""
BROKEN = 99
"""Exit code of a child process that could not run the tests at all."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the n-th place of a file that can be changed."""

    module: str
    path: str
    number: int
    line: int
    change: str


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The nodes of a file that can be changed, and how. Annotations and arguments of decorators stay."""
    passed_over = {id(inner) for node in ast.walk(tree) for part in annotations(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, f"{type(node.ops[0]).__name__} → {SWAPS[type(node.ops[0])].__name__}"
        elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
            yield node, f"{type(node.op).__name__} → {SWAPS[type(node.op)].__name__}"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "not x → x"
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
            yield node, f"{node.value} → {changed_value(node.value)}"
        elif isinstance(node, ast.Return) and not is_none(node.value):
            yield node, "return x → return None"
        elif isinstance(node, ast.If | ast.While):
            yield node, "if x → if not x"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node, "call → pass"


def is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def annotations(node: ast.AST) -> list[ast.AST]:
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None), *getattr(node, "decorator_list", ())]
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        parts.append(node)
    return [part for part in parts if isinstance(part, ast.AST)]


def changed_value(value: bool | int) -> bool | int:
    return not value if isinstance(value, bool) else value + 1


def change(source: str, number: int) -> str:
    """The source with its n-th place changed."""
    tree = ast.parse(source)
    node, _ = list(places(tree))[number]
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = changed_value(node.value)  # type: ignore[arg-type]
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.If | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Expr):
        node.value = ast.Constant(None)
    else:
        assert isinstance(node, ast.UnaryOp)
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    return ast.unparse(ast.fix_missing_locations(tree))


def draw(source: Path, seed: int) -> list[Mutant]:
    chance, drawn = random.Random(seed), []
    for module in MODULES:
        found = []
        for path in sorted((source / "hookline" / module).rglob("*.py")):
            for number, (node, how) in enumerate(places(ast.parse(path.read_text()))):
                line = getattr(node, "lineno", 0)
                found.append(Mutant(module, str(path.relative_to(source)), number, line, how))
        drawn += chance.sample(found, min(PER_MODULE, len(found)))
    return drawn


def run(module: str, mutant: Mutant | None, source: Path, tests: Path, folder: Path) -> int:
    """In a child process: run the tests of the module against the changed package, or against the package as it is."""
    package = folder / "src"
    shutil.copytree(source, package)
    if mutant is not None:
        path = package / mutant.path
        path.write_text(change(path.read_text(), mutant.number))
    os.setsid()
    with (folder / "output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # No mutant may see what the tests of another one have found.
    os.environ.update(PYTHONPATH=str(package), HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis"))
    sys.path.insert(0, str(package))
    os.chdir(tests.parent)
    import pytest

    files = [str(path) for pattern in MODULES[module] for path in sorted(tests.glob(pattern))]
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={folder}/tmp"]
    options += ["-p", "randomly", "--randomly-seed=0", "--randomly-dont-reorganize", "--hypothesis-seed=0"]
    return int(pytest.main([*options, "--rootdir", str(tests.parent), *files]))


@dataclass
class Child:
    """A process that runs the tests of one mutant."""

    pid: int
    folder: Path
    start: float

    def result(self, limit: float) -> str | None:
        """``"survived"``, ``"noticed"`` or ``"time-out"``; ``None`` while the tests run."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended and time.monotonic() - self.start < limit:
            return None
        if not ended:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return "time-out"
        code = os.waitstatus_to_exitcode(status)
        if code in (BROKEN, 5) or code < 0:
            raise SystemExit(f"the tests did not run (code {code}): see {self.folder / 'output.txt'}")
        return "noticed" if code else "survived"


def start(module: str, mutant: Mutant | None, source: Path, tests: Path) -> Child:
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    pid = os.fork()
    if not pid:
        code = BROKEN
        try:
            code = run(module, mutant, source, tests, folder)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return Child(pid, folder, time.monotonic())


def seconds_without_mutant(module: str, source: Path, tests: Path) -> float:
    """Run the tests of a module on the code as it is. They must pass."""
    child = start(module, None, source, tests)
    while (result := child.result(LIMIT_S)) is None:
        time.sleep(0.02)
    if result != "survived":
        raise SystemExit(f"{module}: its tests fail without a mutant: see {child.folder / 'output.txt'}")
    shutil.rmtree(child.folder, ignore_errors=True)
    return time.monotonic() - child.start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder that holds the package")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="the tree of tests")
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the result of each mutant")
    parser.add_argument("--only", choices=MODULES, help="one module")
    given = parser.parse_args()
    source, tests = given.source.resolve(), given.tests.resolve()
    import torch  # noqa: F401

    waiting = [mutant for mutant in draw(source, given.seed) if given.only in (None, mutant.module)]
    limits = {
        module: PATIENCE * seconds_without_mutant(module, source, tests) + 60
        for module in dict.fromkeys(mutant.module for mutant in waiting)
    }
    running: list[tuple[Mutant, Child]] = []
    results: list[dict[str, object]] = []
    try:
        while waiting or running:
            while waiting and len(running) < given.jobs:
                mutant = waiting.pop(0)
                running.append((mutant, start(mutant.module, mutant, source, tests)))
            for mutant, child in list(running):
                result = child.result(limits[mutant.module])
                if result is None:
                    continue
                running.remove((mutant, child))
                shutil.rmtree(child.folder, ignore_errors=True)
                where = f"{mutant.path}:{mutant.line}"
                took = time.monotonic() - child.start
                print(f"{result:8} {where:60} {mutant.change:24} {took:5.1f} s", flush=True)
                results.append({"where": where, "number": mutant.number, "change": mutant.change, "result": result})
            time.sleep(0.02)
    finally:
        results.sort(key=lambda row: (row["where"], row["number"]))
        if given.json:
            given.json.write_text(json.dumps(results, indent=1))
    counts = {kind: sum(row["result"] == kind for row in results) for kind in ("noticed", "time-out", "survived")}
    print(f"{len(results)} mutants: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
