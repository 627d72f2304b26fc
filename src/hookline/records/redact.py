"""Removal of secrets from all that Hookline writes.

``redact_names.py`` decides whether a name and a value are a secret. The name of a value is, by structure:

1. Its key in a mapping, also of a mapping above it: ``{"password": {"a": x}}``, ``{"wandb": {"key": x}}``.
2. The item before it in a list, tuple or command line: ``["--token", x]``, ``["password", x, "lr", 0.1]``. An option
   in the plural names all values up to the next option: ``--secrets x y``.
3. Another field of its record: ``{"name": "password", "value": x}``. The field of the name may have any key. The field
   of the value is called ``value``, ``default`` or similar; in a record of two fields it may also have any key.
4. The head of its column, in a table and in ``{"columns": ["user", "password"], "rows": [["me", x]]}``.
5. In text, the word before it: ``token=x``, ``"token": "x"``, ``--token x``; and rules 2 and 3 in text that looks like
   Python or JSON: ``('password', 'x')``.

Some secrets need no name: a known prefix such as ``ghp_``, headers, passwords in addresses, ``curl -u me:x``,
``mysql -px``. 40 hexadecimal digits are a key of W&B only after W&B and a word such as ``key`` or ``login``.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from hookline.records.redact_names import (
    HIDDEN,
    WORDS,
    is_hidden,
    is_hidden_after,
    is_hidden_in_column,
    is_hidden_in_record,
    is_name_of_secret,
    is_secret,
    is_several_secrets,
)

__all__ = ["HIDDEN", "redact", "redact_arguments", "redact_table", "redact_text", "whole_text"]

ROUNDS = 5
"""Limit for the passes over a text: a hidden secret may reveal another one after it."""
MAX_GROUP_CHARS = 500
MAX_CONTEXT_CHARS = 200

_PREFIXES = (
    # OpenAI, Anthropic: a digit next to a letter, unlike the name of a library with a year.
    r"sk-(?=[A-Za-z0-9_-]{0,60}?(?:[A-Za-z][0-9]|[0-9][A-Za-z]))[A-Za-z0-9_-]{16,}",
    r"sk_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"gsk_[A-Za-z0-9]{16,}",  # Groq
    r"nvapi-[A-Za-z0-9_-]{16,}",  # NVIDIA
    r"r8_[A-Za-z0-9]{32,}",  # Replicate
    r"gh[oprsu]_[A-Za-z0-9]{16,}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{16,}",
    r"glpat-[A-Za-z0-9_-]{16,}",  # GitLab
    r"hf_[A-Za-z0-9]{16,}",  # Hugging Face
    r"wandb_v[0-9]_[A-Za-z0-9_]{16,}",  # Weights & Biases
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{30,}",  # Google
    r"ya29\.[A-Za-z0-9_-]{16,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-AgE[A-Za-z0-9_-]{16,}",
    r"dapi[a-f0-9]{32}",  # Databricks
    r"SG\.[A-Za-z0-9_-]{16,100}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
_KNOWN = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_PREFIXES) + ")")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_HOOK = re.compile(r"(?P<place>/services/T\w+/B\w+/|/api/webhooks/\d+/|/bot\d+:)[\w-]{16,}")  # Slack, Discord, Telegram
# Each pattern below begins where a word begins. Otherwise the time would be quadratic in the length of the text.
_IN_ADDRESS = re.compile(r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]+://)[^\s/?#<>"']+@""")
_UNTIL_A_SLASH = re.compile(
    r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]+://)[^\s/?#@:<>"'\[]{0,200}:(?!\d{1,5}[/?#,])[^\s@<>"']{1,200}@"""
)
"""Matches a password with a slash, ``//me:a/b@host``, but not a port, ``//host:80/a@b``."""
_PLAIN = r"""(?!//)[^\s"'&,;}\])]+(?:(?:[&,;](?![\w.-]++["']?\s{0,3}[=:])|["'}\])](?=\w))[^\s"'&,;}\])]+)*"""
"""A separator inside a word does not end a value.

``a,b`` is one value; ``a,lr=0.1`` and ``a, b`` are two.
"""
_VALUE = re.compile(r"""[bru]{0,2}"(?:[^"\\\n]|\\.)*"?|[bru]{0,2}'(?:[^'\\\n]|\\.)*'?|""" + _PLAIN)
_GROUP_PART = re.compile(r"""[bru]{0,2}"(?:[^"\\\n]|\\.)*"?|[bru]{0,2}'(?:[^'\\\n]|\\.)*'?|[()\[\]{}]|[^"'()\[\]{}]+""")
"""A string, a bracket, or text between them."""
_VALUE_KEY = r"(?:value|val|v|default|content)s?(?:_?from)?"
_IS_VALUE_KEY = re.compile(_VALUE_KEY, re.IGNORECASE)
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]+)(?P<sign>["']?\s{0,3}[=:]\s{0,3})""")
_OPTION = re.compile(r"(?<![\w.-])(?P<name>--[\w.-]+)(?P<sign>\s+)(?!--|-\w?(?!\S))")
_LISTED = re.compile(
    r"""(?P<quote>["'])(?P<name>[\w./-]{1,100})(?P=quote)(?P<sign>\s{0,3},\s{0,3})"""
    r"""(?=[bru]{0,2}["']|\d)(?!["']-(?:-|\w?["']))"""  # It must be a string or a number, and not an option.
)
_RECORD = re.compile(
    r"""(?<=[:=])\s{0,3}["']?(?P<name>[\w./-]{1,100}+)(?P<sign>["']?\s{0,3}[,\n]\s{0,20}["']?"""
    + _VALUE_KEY
    + r"""["']?\s{0,3}[:=]\s{0,3})""",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?:pass|token): [^\W\d_]+|pass: \d+", re.IGNORECASE)
_HEADER = re.compile(
    r"""(?P<name>\b(?:proxy-)?authorization|(?:^[<> ]*|(?<=["']))(?:set-)?cookie)"""
    r"""(?P<sign>["']?\s{0,3}[:=]\s{0,3}["']?)[^\s"'][^\r\n"']*""",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w./-]*")
_NO_OPTION_VALUE = re.compile(r"-\w?|--.*", re.DOTALL)
"""``-v`` is an option; ``-abc`` can be a password."""
_ASSIGNED = re.compile(r"(?P<name>[-+]*[\w./-]+)=(?P<value>(?:(?!\s[\w.-]+=).)*)", re.DOTALL)
"""One argument is one value, with its spaces; ``token=abc lr=0.1`` is text."""
_HEX_KEY = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{40}(?![0-9A-Za-z])")
_WANDB = re.compile(r"(?:wandb|weights\W{1,3}(?:and\W)?biases|w&b)(?P<after>\W*$)?", re.IGNORECASE)
_CONTEXT = re.compile(r"wandb|biases|w&b|curl|mysql|mariadb|sshpass|login", re.IGNORECASE)
"""Most lists have none of these words, and are not searched for ``_hide_by_context``."""
_KEY_WORDS = frozenset({"api", "apikey", "key", "keys", "login", "relogin"})
_COMMIT_WORDS = frozenset(
    {"artifact", "commit", "digest", "git", "hash", "head", "rev", "revision", "sha", "sha1", "version"}
)
_CURL_USER = re.compile(
    r"""(?P<before>\bcurl\b[^\n|;]{0,200}?\s(?:-[uU]|--user|--proxy-user)(?:\s{1,20}|=)?["']?(?!\d+:\d+\b)[^\s:"'|;-][^\s:"']{0,99}:)"""
    r"""[^\s"']+"""
)
_COMMAND_PASSWORD = re.compile(
    r"""(?P<before>\b(?:mysql\w{0,9}|mariadb\w{0,9}|sshpass|(?:docker|podman)\slogin)\b[^\n|;]{0,200}?\s-p\s{0,20}["']?)"""
    r"""[^\s"'-][^\s"']*"""
)
_BASIC = re.compile(r"\b(?P<kind>Basic)\s+(?P<code>[A-Za-z0-9+/_-]{6,}={0,2})", re.IGNORECASE)
_NETRC = re.compile(r"(?P<before>\bmachine\s+\S{1,100}\s+login\s+\S{1,100}\s+password\s+)\S+")
_BEARER = re.compile(r"\b(?P<kind>Bearer)\s+(?=[A-Za-z._~+/=-]{0,40}[0-9])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Return the text without its secrets.

    >>> redact_text("push to https://me:hunter2@example.org/?token=abc&page=2 with AKIAABCDEFGHIJKLMNOP")
    'push to https://[redacted]@example.org/?token=[redacted]&page=2 with [redacted]'
    """
    for _ in range(ROUNDS):
        before, text = text, _hide(text)
        if text == before:
            break
    return whole_text(text)


def whole_text(text: str) -> str:
    """Return the text with lone surrogates escaped, so that every file and sink accepts it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _hide(text: str) -> str:
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\g<name>\g<sign>{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<kind> {HIDDEN}", text)
    text = _BASIC.sub(_hide_basic, text)
    text = _KNOWN.sub(HIDDEN, text)
    text = _hide_by_context(text)
    text = _NETRC.sub(rf"\g<before>{HIDDEN}", text)
    text = _HOOK.sub(rf"\g<place>{HIDDEN}", text)
    text = _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _UNTIL_A_SLASH.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _hide_values(text, _NAMED, _is_hidden_in_text)
    text = _hide_values(text, _OPTION, lambda found, value: is_hidden(found["name"], _bare(value)))
    text = _hide_values(text, _LISTED, _is_hidden_in_list)
    return _hide_values(text, _RECORD, lambda found, value: is_hidden_in_record(found["name"], _bare(value)))


def _hide_by_context(text: str) -> str:
    """Hide secrets that only the words before them reveal: in a command, or after "W&B"."""
    text = _HEX_KEY.sub(_hide_wandb_key, text)
    text = _CURL_USER.sub(rf"\g<before>{HIDDEN}", text)
    return _COMMAND_PASSWORD.sub(rf"\g<before>{HIDDEN}", text)


def _hide_wandb_key(found: re.Match[str]) -> str:
    """Hide a key of W&B if the words before it show that it is a key.

    Otherwise it may be the hash of a commit, which looks the same.
    """
    before = found.string[max(0, found.start() - 100) : found.start()]
    named = [*_WANDB.finditer(before)]
    if not named:
        return found[0]
    words = {word.lower() for word in WORDS.findall(before)}
    after = {word.lower() for word in WORDS.findall(before[named[-1].end() :])}
    is_key = named[-1]["after"] is not None or words & _KEY_WORDS
    return HIDDEN if is_key and not after & _COMMIT_WORDS else found[0]


def _hide_basic(found: re.Match[str]) -> str:
    """Hide a user and password such as ``Basic dXNlcjpwYXNz``, but not ``Basic training``."""
    code = found["code"].rstrip("=")
    try:
        decoded = b64decode(code + "=" * (-len(code) % 4), altchars=b"-_" if set(code) & set("-_") else None)
        is_user = ":" in decoded.decode() and decoded.decode().isprintable()
    except ValueError:
        is_user = False
    return f"{found['kind']} {HIDDEN}" if is_user else found[0]


def _hide_values(text: str, pattern: re.Pattern[str], hides: Callable[[re.Match[str], str], bool]) -> str:
    """Hide the values after secrets' names, also inside other values: ``env=token=abc``."""
    parts: list[str] = []
    done = start = 0
    while found := pattern.search(text, start):
        start = found.end()
        value = _value_at(text, start) if is_secret(found["name"]) else ""
        if value in ("", HIDDEN, HIDDEN[:-1]) or not hides(found, value):
            continue
        quote = "" if value[0] in "([{" else next((char for char in value[:3] if char in "\"'"), "")
        parts += [text[done:start], quote, HIDDEN, quote]
        done = start = start + len(value)
    return "".join([*parts, text[done:]])


def _value_at(text: str, start: int) -> str:
    """Return the string, word or bracketed group that begins here."""
    if text[start : start + 1] in ("(", "[", "{") and not text.startswith(HIDDEN, start):
        return _group_at(text, start)
    found = _VALUE.match(text, start)
    return found[0] if found else ""


def _group_at(text: str, start: int) -> str:
    """Return the text up to the closing bracket, or the rest of the line if there is none."""
    depth = 0
    for part in _GROUP_PART.finditer(text, start, start + MAX_GROUP_CHARS):
        depth += (part[0] in "([{") - (part[0] in ")]}")
        if depth == 0:
            return text[start : part.end()]
    return text[start : start + MAX_GROUP_CHARS].partition("\n")[0]


def _bare(value: str) -> str:
    """Return a quoted value without its quotes."""
    unprefixed = value.lstrip("bru")
    return unprefixed.strip(unprefixed[0]) if unprefixed[:1] in ("'", '"') else value


def _is_hidden_in_text(found: re.Match[str], value: str) -> bool:
    """True if a value after a name and a sign in a text is a secret.

    ``the next token: apple`` and ``pass: 1000 of 2000`` are sentences, and ``token=(1, 2)`` are numbers.
    """
    name = found["name"]
    if found["sign"] == ": " and _SENTENCE.fullmatch(f"{name}: {value}"):
        return False
    if value[0] in "([{" and not any(map(str.isalpha, value)):
        return is_hidden(name, 0)
    return is_hidden(name, _bare(value))


def _is_hidden_in_list(found: re.Match[str], value: str) -> bool:
    name, end = found["name"], found.end() + len(value)
    if found.string[end : end + 3].lstrip().startswith(":"):  # The string is a key of a mapping, not a value.
        return False
    return (is_hidden if name.startswith("-") else is_hidden_after)(name, _bare(value))


def redact(value: Any, name: str = "") -> Any:
    """Return a tree of plain values without its secrets.

    >>> redact({"lr": 0.1, "wandb": {"key": "abc"}, "data": {"password": ["x"]}, "token": None})
    {'lr': 0.1, 'wandb': {'key': '[redacted]'}, 'data': {'password': ['[redacted]']}, 'token': None}
    """
    if isinstance(value, Mapping):
        return _redact_mapping(value, name)
    if is_hidden(name, value):
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Set):
        return [redact(item, name) for item in value]
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return _redact_items(value, name)
    return value


def _redact_mapping(value: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    # Redacted keys decide about the values, so that redacting twice changes nothing.
    shown = {_redact_key(key): its for key, its in value.items()}
    names = {key: _below(name, str(key)) for key in shown}
    if not is_secret(name):
        names |= _names_in_record(shown)
        shown = _redact_tables(shown)
    logger = "wandb " if any(map(_names_wandb, shown.values())) else ""
    return {key: _redact_after(f"{logger}{name}.{key}", its, names[key]) for key, its in shown.items()}


def _redact_items(items: Sequence[Any], name: str) -> list[Any]:
    """Redact a list of values, of names and values, or a command line."""
    if is_secret(name):
        return [redact(item, name) for item in items]
    found: list[Any] = []
    owner, said = "", name  # The secret's name directly before the item, and all words before it.
    for item in items:
        text = item if isinstance(item, str) else ""
        if _owns(owner, item):
            found.append(redact(item, owner))
            owner = owner if owner.startswith("-") and is_several_secrets(owner) else ""
        else:
            found.append(_redact_assigned(_redact_after(said, item, name)))
            owner = text if is_name_of_secret(text) else ""
        said = f"{said} {found[-1] if text else ''}"[-MAX_CONTEXT_CHARS:]
    return found


def _owns(owner: str, item: Any) -> bool:
    """True if an item is the value of the secret's name before it."""
    if not owner or (isinstance(item, str) and _NO_OPTION_VALUE.fullmatch(item)):
        return False
    return _OPTION_NAME.fullmatch(owner) is not None or (not owner.startswith("-") and is_hidden_after(owner, item))


def _redact_assigned(item: Any) -> Any:
    """Hide all of the value in an argument ``token=a b c``."""
    found = _ASSIGNED.fullmatch(item) if isinstance(item, str) else None
    return f"{found['name']}={HIDDEN}" if found and is_hidden(found["name"], found["value"]) else item


def _redact_after(said: str, item: Any, name: str) -> Any:
    """Redact a value that follows these words."""
    if isinstance(item, str) and _CONTEXT.search(said):
        line = _hide_by_context(f"{said} {item}")
        item = line[len(said) + 1 :] if line.startswith(f"{said} ") else item
    return redact(item, name)


def _names_in_record(record: Mapping[Any, Any]) -> dict[Any, str]:
    """Return the names of the values in a record such as ``{"name": "password", "value": x}``."""
    names = {key: its for key, its in record.items() if is_name_of_secret(its) and not is_secret(str(key))}
    found = {}
    for key, its in record.items():
        name = next((name for other, name in names.items() if other != key), "")
        if _IS_VALUE_KEY.fullmatch(str(key)):
            is_value = isinstance(its, Mapping | list | tuple) or is_hidden_in_record(name, its)
        else:
            is_value = len(record) == 2 and key not in names and is_hidden_after(name, its)
        if name and is_value:
            found[key] = name
    return found


def _redact_tables(record: dict[Any, Any]) -> dict[Any, Any]:
    """Redact the rows in ``{"columns": ["user", "password"], "rows": [["me", x]]}``."""
    columns = record.get("columns")
    if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
        return record
    return {key: redact_table(columns, its) if _has_rows(its, len(columns)) else its for key, its in record.items()}


def _has_rows(value: Any, width: int) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(row, list | tuple) and len(row) == width for row in value)


def redact_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the rows of a table without the secrets of its columns.

    >>> redact_table(["user", "password"], [["me", "hunter2"]])
    [['me', '[redacted]']]
    """
    heads = [column if is_secret(column) else "" for column in columns]
    is_record = len(columns) > 1 and any(map(_IS_VALUE_KEY.fullmatch, columns))  # One column holds names, one values.
    found = []
    for row in rows:
        named = _names_in_record(dict(zip(columns, row, strict=True))) if is_record else {}
        found.append(
            [
                HIDDEN if is_hidden_in_column(head, cell) else redact(cell, named.get(column, ""))
                for column, head, cell in zip(columns, heads, row, strict=True)
            ]
        )
    return found


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its secrets.

    It finds ``--token abc``, ``--token=abc`` and ``token=abc``.

    >>> redact_arguments(["train.py", "--token", "abc", "--lr", "0.1", "--api-key=xyz"])
    ['train.py', '--token', '[redacted]', '--lr', '0.1', '--api-key=[redacted]']
    """
    return _redact_items(arguments, "")


def _names_wandb(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 50 and _WANDB.search(value) is not None


def _below(name: str, key: str) -> str:
    """Return the name of a nested value.

    Everything inside a secret is secret, and a ``key`` inside ``wandb`` is a ``wandb.key``.
    """
    if is_secret(name):
        return name
    whole = f"{name}.{key}"
    return whole if len(WORDS.findall(key)) == 1 and not is_secret(key) and is_secret(whole) else key


def _redact_key(key: Any) -> Any:
    return redact_text(key) if isinstance(key, str) else key
