"""Facts about the form of the engine and the callbacks, from source and traced runs: ``make facts`` prints them."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "hookline"
LOOP = SOURCE / "loop"
CALLBACKS = SOURCE / "callbacks"
WHOLE_LOOP = {"Loop", "Engine"}
LAYERS = (
    ("trainer",),
    ("loop",),
    ("engine",),
    ("preflight",),
    ("evaluation", "saving"),
    ("tasks",),
    ("model",),
    ("record",),
    ("metrics",),
    ("data",),
    ("world",),
    ("keywords",),
    ("result", "settings"),
)
"""The folders and modules of ``loop/``, from the top. Each imports only from below, or from itself."""

OF_OTHERS = {"_buffers", "_groups", "_iterator", "_modules", "_version", "_workers", "args", "data", "training"}
"""Fields of torch, torchmetrics and the standard library. Some classes of the package have fields of the same name."""

PRIVATE_OF_OTHERS = {
    *("_buffers", "_compiled_call_impl", "_dump_snapshot", "_fields", "_iterator", "_modules", "_parameters"),
    *("_snapshot", "_strategy", "_values", "_version", "_workers", "_world"),
}
"""Private attributes of other libraries. Some classes of the package have one of the same name."""

Tree = tuple[Path, ast.Module]


def trees(folder: Path) -> list[Tree]:
    return [(path, parsed(path.read_text())) for path in sorted(folder.rglob("*.py"))]


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def shown(path: Path) -> str:
    """The path as the facts show it: inside the package if it is there."""
    return (path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else Path(path.name)).as_posix()


# -- from the source -------------------------------------------------------------------------------


def targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns."""
    if not isinstance(node, ast.stmt | ast.comprehension):  # Most nodes are neither.
        return
    match node:
        case ast.Assign(targets=found):
            queue: list[ast.expr] = list(found)
        case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
            queue = [one]
        case ast.For(target=one) | ast.comprehension(target=one):
            queue = [one]
        case ast.With(items=items):
            queue = [item.optional_vars for item in items if item.optional_vars is not None]
        case ast.Delete(targets=found):
            queue = list(found)
        case _:
            return
    while queue:
        one = queue.pop()
        if isinstance(one, ast.Tuple | ast.List):
            queue.extend(one.elts)
        elif isinstance(one, ast.Starred):
            queue.append(one.value)
        elif isinstance(one, ast.Attribute):
            yield one


@cache
def own_fields(folder: Path = SOURCE) -> set[str]:
    """The fields that a class of the package assigns on itself or declares."""
    found: set[str] = set()
    for _, tree in trees(folder):
        for node in ast.walk(tree):
            found |= {its.attr for its in targets(node) if isinstance(its.value, ast.Name) and its.value.id == "self"}
            if isinstance(node, ast.ClassDef):
                declared = [its.target for its in node.body if isinstance(its, ast.AnnAssign)]
                found |= {its.id for its in declared if isinstance(its, ast.Name)}
    return found - OF_OTHERS


def foreign_assignments(folder: Path = LOOP) -> list[str]:
    """Assignments to a field of an object of the package, other than ``self``. Those of torch are not counted."""
    found, own = [], own_fields()
    for path, tree in trees(folder):
        for node in ast.walk(tree):
            for target in targets(node):
                is_self = isinstance(target.value, ast.Name) and target.value.id == "self"
                if not is_self and target.attr in own:
                    found.append(f"{shown(path)}:{target.lineno} {ast.unparse(target)}")
    return found


def private_uses(folder: Path = SOURCE) -> list[str]:
    """Uses of a private field, method or function that another module of the package defines."""
    private, found = private_names(), []
    for path, tree in trees(folder):
        here = defined_in(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in private - here:
                owner = ast.unparse(node.value)
                if owner not in ("self", "cls", "super()"):
                    found.append(f"{shown(path)}:{node.lineno} {owner}.{node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hookline"):
                names = [alias.name for alias in node.names if is_private(alias.name) and alias.name in private]
                found += [f"{shown(path)}:{node.lineno} import {name}" for name in names]
    return found


@cache
def private_names() -> set[str]:
    names = {name for _, tree in trees(SOURCE) for name in defined_in(tree)}
    return {name for name in names if is_private(name)} - PRIVATE_OF_OTHERS


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined_in(tree: ast.Module) -> set[str]:
    """The fields, methods and functions that a module defines."""
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return functions | own_fields_of(tree)


def own_fields_of(tree: ast.Module) -> set[str]:
    """The fields that a class of one module assigns on itself, or names in ``__slots__``."""
    found = {its.attr for node in ast.walk(tree) for its in targets(node) if isinstance(its.value, ast.Name)}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    slots = [node.value for node in assigned if "__slots__" in ast.unparse(node.targets[0])]
    return found | {its.value for value in slots for its in ast.walk(value) if isinstance(its, ast.Constant)}


def layer_of(module: str) -> int | None:
    """The index of the layer of a module of ``loop/``. ``None`` for ``hookline.loop`` itself."""
    parts = module.split(".")
    names = [index for index, layer in enumerate(LAYERS) if len(parts) > 2 and parts[2] in layer]
    return names[0] if names else None


def imports_upwards() -> list[str]:
    """Imports inside ``loop/`` from a higher layer or from the other folder of the same layer."""
    found = []
    for name, others in imports().items():
        here = layer_of(name)
        for other in others:
            there = layer_of(other)
            if here is None or there is None:
                continue
            is_same = name.split(".")[2] == other.split(".")[2]
            if there < here or (there == here and not is_same and name.split(".")[2:3] != other.split(".")[2:3]):
                found.append(f"{name} imports {other}")
    return sorted(found)


def control_fields(folder: Path = LOOP) -> list[str]:
    """Fields that are assigned outside ``__init__`` and read in a condition."""
    assigned, read = set(), set()
    for _, tree in trees(folder):
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if function.name not in ("__init__", "__post_init__"):
                assigned |= {target.attr for node in ast.walk(function) for target in targets(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.If | ast.While | ast.IfExp):
                read |= {its.attr for its in ast.walk(node.test) if isinstance(its, ast.Attribute)}
    return sorted(assigned & read)


def comparisons_of_the_world_with_none(folder: Path = SOURCE) -> list[str]:
    """Comparisons of the world with ``None``."""
    pattern = re.compile(r"\b(ranks|world)\b is (not )?None")
    return [
        f"{shown(path)}:{number}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def functions_of_the_whole_loop(folder: Path = LOOP) -> list[str]:
    """Functions with a parameter that is the whole loop, or may be."""
    found = []
    for path, tree in trees(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                kinds = [its.annotation for its in ast.walk(node.args) if isinstance(its, ast.arg) and its.annotation]
                if any(WHOLE_LOOP & set(re.findall(r"\w+", ast.unparse(kind))) for kind in kinds):
                    found.append(f"{shown(path)}:{node.lineno} {node.name}")
    return found


def questions_about_the_number_of_processes(folder: Path = LOOP) -> list[str]:
    """Reads of ``is_alone`` and comparisons of ``world_size``, outside the folder of the world."""
    found = []
    for path, tree in trees(folder):
        for node in ast.walk(tree):
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            asked = [its for its in compared if isinstance(its, ast.Attribute) and its.attr == "world_size"]
            if isinstance(node, ast.Attribute) and node.attr in ("is_alone", "_is_alone") and is_read(node):
                asked.append(node)
            found += [f"{shown(path)}:{its.lineno} {ast.unparse(its)}" for its in asked if path.parent.name != "world"]
    return found


def is_read(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def senders(folder: Path = LOOP) -> dict[str, list[str]]:
    """By event: the functions that send it, as ``steps.py: of_task``."""
    found: dict[str, set[str]] = {}
    for path, tree in trees(folder):
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if ast.unparse(call.func).rpartition(".")[2] in ("emit", "enter"):
                    for event in (its.attr for its in call.args if isinstance(its, ast.Attribute)):
                        found.setdefault(event, set()).add(f"{path.name}: {function.name}")
    return {event: sorted(functions) for event, functions in found.items()}


def updates(folder: Path = LOOP) -> list[str]:
    """The functions that step an optimizer, as ``steps.py: _update``."""
    return sorted(
        {
            f"{path.name}: {function.name}"
            for path, tree in trees(folder)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and re.search(r"\b(optimizer|scaler)\.step$", ast.unparse(call.func))
        }
    )


def story_functions(folder: Path = SOURCE) -> list[str]:
    """Functions that may be more complex than the others: lines that switch off ruff's C901."""
    return [
        line.strip()
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"noqa:.*\bC901\b", line)
    ]


def imports(folder: Path = LOOP) -> dict[str, set[str]]:
    """The modules that each module of a folder imports from it, ``TYPE_CHECKING`` imports included."""
    base = SOURCE if folder.is_relative_to(SOURCE) else folder
    names = {"hookline." + ".".join(path.relative_to(base).with_suffix("").parts): tree for path, tree in trees(folder)}
    found: dict[str, set[str]] = {}
    for name, tree in names.items():
        its = found.setdefault(name.removesuffix(".__init__"), set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                its |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            if isinstance(node, ast.Import):
                its |= {alias.name for alias in node.names}
    return {name: {other for other in its if other in found and other != name} for name, its in found.items()}


def largest_cycle(folder: Path = LOOP) -> list[str]:
    """The largest set of modules of which each imports each other, directly or not."""
    edges = imports(folder)

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        queue = [start]
        while queue:
            for other in edges[queue.pop()] - seen:
                seen.add(other)
                queue.append(other)
        return seen

    reach = {name: reachable(name) for name in edges}
    cycles = [{other for other in reach[name] if name in reach[other]} | {name} for name in edges]
    return sorted(max(cycles, key=len))


def uses_of_the_loop(*folders: Path) -> list[str]:
    """Places where callbacks and sinks reach past the public fields of ``run``: its loop, or its state."""
    return [
        f"{shown(path)}:{node.lineno} {ast.unparse(node)}"
        for folder in folders or (CALLBACKS, SOURCE / "sinks")
        for path, tree in trees(folder)
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Attribute)
            and (node.attr in ("loop", "engine") or (node.attr == "_state" and ast.unparse(node.value) != "self"))
        )
        or (isinstance(node, ast.Constant) and node.value in ("loop", "_state"))  # getattr(run, "loop")
    ]


# -- from the source of the callbacks -------------------------------------------------------------


def sloc(path: Path) -> int:
    """Return the number of lines with code, without comments and docstrings."""
    text = path.read_text()
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in empty]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    strings = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    documented = [
        node for node in strings if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return len(lines - {line for node in documented for line in range(node.lineno, (node.end_lineno or 0) + 1)})


def modules_of_families() -> list[Path]:
    """Return the modules directly in the folder of a family, without ``__init__.py``."""
    families = [path.parent for path in CALLBACKS.glob("*/__init__.py")]
    return [path for family in families for path in sorted(family.glob("*.py")) if path.name != "__init__.py"]


def callbacks_in(path: Path) -> list[str]:
    """Return the public callbacks that a module defines, as its family exports them."""
    exported = set(re.findall(r"import (\w+)", (path.parent / "__init__.py").read_text()))
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name in exported
    ]


def misnamed_modules() -> list[str]:
    """Modules of a family without an underscore that are not one callback, and helpers that have one."""
    return [
        str(path.relative_to(CALLBACKS))
        for path in modules_of_families()
        if (len(callbacks_in(path)) == 1) == path.name.startswith("_")
    ]


def lines_in_callbacks(pattern: str) -> list[str]:
    """Return the lines of callbacks that a pattern matches."""
    return [
        f"{shown(path)}:{number}"
        for path in sorted(CALLBACKS.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def orderings_by_name() -> list[str]:
    """Callbacks that name other callbacks as strings in ``before`` or ``after``."""
    return [
        f"{shown(path)}:{node.lineno}"
        for path, tree in trees(CALLBACKS)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in ast.walk(owner)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if ast.unparse(target) in (("before", "after") if node in owner.body else ("self.before", "self.after"))
        and any(isinstance(its, ast.Constant) and isinstance(its.value, str) for its in ast.walk(node.value))
    ]


def without_args_section() -> list[str]:
    """Public callbacks with arguments whose docstring has no ``Args:`` section."""
    import hookline.callbacks as package
    from hookline import Callback

    found = [value for value in (getattr(package, name) for name in package.__all__) if isinstance(value, type)]
    found = [cls for cls in found if issubclass(cls, Callback)]
    return [cls.__name__ for cls in found if inspect.signature(cls).parameters and "Args:" not in (cls.__doc__ or "")]


def listed_names() -> int:
    """Return the number of names in ``dir(hookline)``."""
    import hookline

    return len([name for name in dir(hookline) if not name.startswith("_")])


# -- from traced runs ------------------------------------------------------------------------------


class Tracer:
    """Collects the functions of the package that are called between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()

    def start(self, *_: Any) -> None:
        sys.setprofile(self._see)

    def stop(self, *_: Any) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            self.found.add((code.co_filename, code.co_qualname))

    def __str__(self) -> str:
        return f"{len(self.found)} / {len({file for file, _ in self.found})}"


class Batches(list[Any]):
    """Batches that call a function before one of them is given, and another before the next one."""

    def __init__(self, batches: list[Any], tracer: Tracer, at: int) -> None:
        super().__init__(batches)
        self._tracer, self._at = tracer, at

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(super().__iter__()):
            if number == self._at:
                self._tracer.start()
            elif number == self._at + 1:
                self._tracer.stop()
            yield batch


def traced_step(*events: str) -> Tracer:
    """The functions of one step of which callbacks hear these events."""
    import hookline as hl
    from hookline.testing import tiny_data
    from tests.support import fit

    tracer = Tracer()
    fit(
        *(hl.on(event)(lambda run: None) for event in events),
        train=Batches(tiny_data(20), tracer, 9),
        max_duration="1ep",
    )
    return tracer


def traced(start: str, stop: str, **options: Any) -> Tracer:
    """The functions between two events of a run."""
    import hookline as hl
    from tests.support import fit

    tracer = Tracer()
    fit(hl.on(stop)(tracer.stop), hl.on(start)(tracer.start), **options)
    return tracer


def traced_evaluation() -> Tracer:
    from hookline.testing import tiny_data

    return traced("train_epoch_end", "epoch_end", val=tiny_data(16), max_duration="1ep")


def traced_save() -> Tracer:
    import hookline as hl
    from tests.support import fit

    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        save = hl.Checkpointer("3st", background=False)
        begin = hl.on("train_step_end", at="3st")(tracer.start)
        fit(save, begin, hl.on("checkpoint_saved")(tracer.stop), max_duration="4st", folder=folder)
    return tracer


def traced_resume() -> Tracer:
    import hookline as hl
    from tests.support import crash_at, fit

    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        with suppress(RuntimeError):
            fit(hl.Checkpointer("2st"), crash_at(5), max_duration="8st", folder=folder)
        stop = hl.on("train_step_start")(tracer.stop)
        tracer.start()
        fit(hl.Checkpointer("2st"), stop, max_duration="8st", folder=folder, resume="auto")
        tracer.stop()
    return tracer


def main() -> None:
    files = list(LOOP.rglob("*.py"))
    rows: list[tuple[str, Callable[[], object], str]] = [
        ("control fields in loop/", lambda: len(control_fields()), "about 35"),
        ("assignments to a field of another object, in loop/", lambda: len(foreign_assignments()), "under 40"),
        ("the world compared with None", lambda: len(comparisons_of_the_world_with_none()), "3"),
        (
            "questions how many processes there are, in loop/",
            lambda: len(questions_about_the_number_of_processes()),
            "3",
        ),
        ("functions that take the whole loop", lambda: len(functions_of_the_whole_loop()), "under 15"),
        ("largest import cycle in loop/, modules", lambda: len(largest_cycle()), "1"),
        ("run.loop in callbacks and sinks", lambda: len(uses_of_the_loop()), "0"),
        ("quiet step, functions / files", traced_step, "12 / 5"),
        ("step with a callback on gradients_ready", lambda: traced_step("gradients_ready"), "16 / 6"),
        ("one evaluation of 16 batches", traced_evaluation, "90 / 18"),
        ("one save", traced_save, "90 / 25"),
        ("opening a resumed run", traced_resume, "400 / 70"),
        ("loop/, files", lambda: len(files), "about 60"),
        ("loop/, lines", lambda: sum(len(path.read_text().splitlines()) for path in files), "10,500"),
    ]
    modules, sources = modules_of_families(), list(CALLBACKS.rglob("*.py"))
    helpers = [path for path in modules if path.name.startswith("_")]
    rows += [
        ("callbacks/, files", lambda: len(sources), "about 95"),
        ("callbacks/, SLOC", lambda: sum(map(sloc, sources)), "9,500"),
        ("families: helper modules / callback modules", lambda: f"{len(helpers)} / {len(modules) - len(helpers)}", ""),
        ("families: modules with the wrong underscore", lambda: len(misnamed_modules()), "0"),
        ("callbacks: tests of the entry point", lambda: len(lines_in_callbacks(r"\bentry_point\b")), "0"),
        ("callbacks: hand-made resets", lambda: len(lines_in_callbacks(r"def _?reset\(|self\._used = True")), "0"),
        ("callbacks: ordering by names as strings", lambda: len(orderings_by_name()), "0"),
        ("callbacks without an Args: section", lambda: len(without_args_section()), "0"),
        ("names in dir(hl)", listed_names, "about 40"),
    ]
    print(f"{'fact':55} {'now':>10}   target")
    for name, measure, target in rows:
        print(f"{name:55} {measure()!s:>10}   {target}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
