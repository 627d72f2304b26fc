"""Tables of what a callback can declare: the attributes of ``hl.Callback``, and the roles."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise

import hookline
from hookline.cli.callbacks_table import callback_rows
from hookline.events import Callback
from hookline.events.order import ROLES


def attributes_table() -> list[str]:
    """Return the table of the class attributes of ``Callback``, from their docstrings."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(Callback)).body if isinstance(node, ast.ClassDef)]
    rows = []
    for declared, text in pairwise(body):
        if not isinstance(declared, ast.AnnAssign) or not isinstance(text, ast.Expr) or declared.value is None:
            continue
        name = ast.unparse(declared.target)
        if not name.startswith("_"):
            meaning = inspect.cleandoc(ast.literal_eval(text.value)).partition("\n\n")[0]
            kind = ast.unparse(declared.annotation).removeprefix("ClassVar[").replace(" | ", " or ")
            kind = kind[:-1] if kind.count("]") > kind.count("[") else kind
            default = ast.unparse(declared.value).replace("'", '"')
            rows.append(f"| `{name}` | `{kind}` | `{default}` | {_markdown(meaning)} |")
    return ["| attribute | type | default | meaning |", "|---|---|---|---|", *rows]


def roles_table() -> list[str]:
    """Return the table of the roles, in their order, with the callbacks that have them."""
    found: dict[str, list[str]] = {role: [] for role in ROLES}
    for row in callback_rows():
        kinds = [kind for kind in getattr(hookline, row.name).__mro__ if issubclass(kind, Callback)]
        sources = "".join(map(inspect.getsource, kinds[: kinds.index(Callback)]))
        for role, names in found.items():
            if f'role = "{role}"' in sources:  # Some callbacks have it only with certain arguments.
                names.append(f"[`{row.name}`](callbacks/{row.page}.md)")
    rows = [f"| `{role}` | {meaning} | {', '.join(found[role])} |" for role, meaning in ROLES.items()]
    return ["| role | the callback | callbacks |", "|---|---|---|", *rows]


def _markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
