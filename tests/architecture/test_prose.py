"""No banned phrase in the documentation, nor in docstrings, comments, messages and the pages of the report.

A row of ``BANNED`` is a pattern and what to write instead. A space in a pattern is any white space, so that a phrase is
also found where a line is wrapped. Code, link targets and addresses are left out.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UNIT = "second|minute|hour|step|batch|sample|epoch|interval|rank|process|evaluation|run|curve|hop|row"
COUNTED = "samples|batches|tokens|steps|rows|values|bytes|points|operations|microseconds|once|twice|times|[µm]s|[kKMG]B"
FOLLOWS = (
    "and|or|in|for|that|is|are|has|have|on|at|with|by|to|from|here|there|when|while|as|was|were|of|it|the|a|beyond"
)
BANNED = {
    # Old-fashioned words
    r"\b[Aa]new\b": "again, from scratch",
    r"\b(go|goes|went|gone|going) on\b(?! to\b)": "continue, resume",
    r"\bbeside\b": "next to, in addition to",
    r"\bmeanwhile\b": "while",
    rf"\bof (its|their|your|our|my|his|her) own(?=[^\w\s]| ({FOLLOWS})\b)": "its own, separate, custom",
    r"\b[Ss]o (many|much)\b(?! (that|as)\b)": "name the quantity",
    rf"\b({COUNTED}) an? ({UNIT})\b": "per",
    r", too(?=[^\w\s]|$)": "also",
    r"(?<!here)\sis no (?!longer\b|such\b|more\b)": "is not an X",
    r"\b[Ww]hoever\b": "the caller, the callback",
    r"\b[Nn]obody\b|\b[Ss]omebody\b|\b[Ee]verybody\b": "name the actor: no callback, no rank, all ranks",
    r"\b(in no time|in silence|without a word|the very|and its like)\b": "say it plainly",
    r"\b[Bb]y all[:,]": "All ranks must call it.",
    # Reporting passives
    r"\b(is|are|was|were) (said|told)\b": "Hookline warns, raises, logs, prints",
    r"\b(is|are|was|were) warned of\b": "Hookline warns about",
    # A sentence that starts with "What" and is not a question
    r"((?m:^(# )?)|(?<=[.;]) )What (?![^.?]*\?)": "name the thing",
    # Technical terms
    r"(?<!'s)\sown loops?\b": "custom loop",
    r"\bwhole numbers?\b": "integer",
    r"\bwhole (tensor|weight|parameter)s?\b": "full tensor",
    r"\b[Pp]ictures?\b": "image, figure, plot",
    r"\b(at|until|any|this|that|same|right|given|each|every|one|which|other) moments?\b": "event, hook, time",
    r"\b[Ww]ish(es|ed)?\b": "request, vote",
    r"\b(the|a|its|their|another|other|which) places?\b(?! of\b)": "path, index, position",
    r"\b(the|a|its|their|this|what) share\b|\bshare of\b": "fraction, or shard of the data",
    r"\bdealt( out)?\b|\bstripes?\b": "shard of the data",
    r"\bschedulers? moves?\b": "the scheduler steps",
    r"\bput(s|ting)? (it |them |[a-z]+ ){0,3}back\b(?! into the queue)": "restore",
}

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(page for folder in ("docs", "examples") for page in (ROOT / folder).glob("**/*.md")),
]
CODE = re.compile(
    r"^ *```.*\n[\s\S]*?^ *```$|`[^`\n]*(?:\n[^`\n]+)?`|<!--[\s\S]*?-->|(?<=\])\([^)\s]*\)|https?://\S+", re.M
)
QUOTED = re.compile(r"``[^`]*``|^ *>>> [\s\S]*?(?=\n\s*\n|\Z)|^ +\w+(?=: )|https?://\S+", re.M)

SOURCE = ROOT / "src" / "hookline"
ASSETS = [path for path in sorted((SOURCE / "report/assets").iterdir()) if path.suffix in (".js", ".css")]
ASSET_TEXT = re.compile(r"//.*|/\*[\s\S]*?\*/|\"[^\"\n]* [^\"\n]*\"|`[^`]* [^`]*`")


def hits(text: str, path: Path, first_line: int = 1) -> Iterator[str]:
    """Yield one line per banned phrase: file, line, phrase, what to write."""
    for pattern, instead in BANNED.items():
        for found in re.finditer(pattern.replace(" ", r"\s+"), text):
            line = text.count("\n", 0, found.start()) + first_line
            phrase = " ".join(found[0].split())
            yield f"{path.relative_to(ROOT)}:{line}: {phrase!r}, write: {instead}"


def without(pattern: re.Pattern[str], text: str) -> str:
    """Blank what is not prose, and keep the number of lines."""
    return pattern.sub(lambda found: "`" + "\n" * found[0].count("\n"), text)


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize(
    ("banned", "allowed"),
    [
        ("the run goes on", "the run goes online"),
        ("a folder\nof its own.", "the batches of its own shard"),
        ("samples a second", "samples that a second process reads"),
        ("it is saved, too.", "half precision, too coarse for updates"),
        ("NaN is no constant", "there is no constant, and it is no longer used"),
        ("You are told what differs", "The rank that told it"),
        ("It ends.\nWhat was saved stays.", "It ends. What was saved?"),
        ("an own loop", "Hookline's own loop"),
        ("at any moment", "the third central moment"),
        ("in another place", "it takes the place of the loader, in place"),
        ("what share of the time", "two layers that share weights"),
        ("puts the weights back", "puts the job back into the queue"),
    ],
)
def test_a_pattern_finds_the_phrase_and_nothing_else(banned: str, allowed: str) -> None:
    assert list(hits(banned, ROOT / "README.md"))
    assert list(hits(allowed, ROOT / "README.md")) == []


def test_the_pages_have_no_banned_phrase() -> None:
    found = [hit for page in PAGES for hit in hits(without(CODE, page.read_text()), page)]
    assert not found, "\n" + "\n".join(found)


def messages_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that have several words and are not docstrings, each with its first line."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    parts = {
        id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node
    }
    skipped = parts | {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # Docstrings.
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "`" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and id(node) not in skipped and " " in str(node.value):
            yield node.lineno, str(node.value)


@pytest.mark.parametrize("texts", [prose_of, messages_of])
def test_the_package_has_no_banned_phrase(texts: Callable[[str], Iterator[tuple[int, str]]]) -> None:
    found = [
        hit
        for module in sorted(SOURCE.rglob("*.py"))
        for line, text in texts(module.read_text())
        for hit in hits(without(QUOTED, text), module, line)
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_scripts_and_styles_of_the_report_have_no_banned_phrase() -> None:
    found = [
        hit
        for path in ASSETS
        for text in ASSET_TEXT.finditer(path.read_text())
        for hit in hits(text[0], path, path.read_text().count("\n", 0, text.start()) + 1)
    ]
    assert not found, "\n" + "\n".join(found)


OLD_NAMES = {
    r"begin_anew": "reset, start, restart",
    r"forget": "drop, clear, reset",
    r"put_back": "restore",
    r"words_of": "error_text",
    r"tell|say": "notify, warn, log",
    r"MOST": "MAX_ and what is counted",
    r"wish\w*": "request, vote",
}
"""Names that no function, class or constant has, and what to write instead."""


def test_no_function_or_constant_has_an_old_name() -> None:
    found = []
    for module in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(node.id)
            for old, instead in OLD_NAMES.items():
                hit = [name for name in names if re.fullmatch(rf"_?({old})", name)]
                found += [f"{module.relative_to(ROOT)}:{node.lineno}: {name}, write: {instead}" for name in hit]
    assert not found, "\n" + "\n".join(found)
