"""Secrets are not written down. Two rules decide, and every structure below uses them.

A name is that of a secret (``is_secret``): then its value is hidden, in a mapping, behind an option of a command line,
in a pair ``("password", x)``, in a record ``{"name": "password", "value": x}`` and in a column of a table. A string
carries a secret (``redact_text``): a known prefix, a header, the user of an address, ``curl -u``, a key of W&B.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

HIDDEN = "[redacted]"
ROUNDS = 5
"""What stands behind a secret, without a gap, shows only when that is hidden."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_PASSWORD = re.compile(r"[a-z]*(passphrase|passwd|passwords?|pwd|secrets?)")
"""``PGPASSWORD`` is one word. These may be numbers."""
_SECRET = re.compile(
    r"[a-z]*apikeys?|(access|account|anthropic|aws|hf|openai|private|secret|ssh|wandb)keys?|"
    r"(access|api|auth|bot|gh|github|gitlab|hf|hub|oauth|refresh|secret|session|wandb)tokens?|"
    r"(admin|db|ftp|ldap|mail|mysql|pg|redis|root|smtp|sql|ssh|user)pass|"
    r"auth|authorization|bearer|cookies?|cred|creds|credentials?|jwt|passcode|psk|token|webhooks?"
)
_AMBIGUOUS = frozenset(
    {"auth", "bearer", "cookie", "cookies", "cred", "pass", "psk", "pw", "token", "webhook", "webhooks"}
)
"""A pair or a column with such a name may be about something else: ``("token", "the")``."""
_SECRET_PAIR = re.compile(
    r"(access|account|anthropic|api|aws|comet|deploy|encryption|hf|license|openai|private|sas|signing|ssh|storage|"
    r"subscription|wandb) keys?|(access|api|auth|bearer|hf|refresh) tokens"
)
"""``api_key`` is a secret; ``sort_key`` and ``max_tokens`` are none."""
_OF_A_COURSE = re.compile(
    r"(all|backward|band|by|each|every|filter|final|first|forward|high|last|low|multi|n|num|one|second|single|third|"
    r"two) pass"
)
"""``db_pass`` is a secret; ``low_pass`` and ``second_pass`` are none."""
_OF_A_LAYER = re.compile(r"(conv|depthwise|dw|kernel) pw")
"""``db_pw`` is a secret; ``conv_pw``, a pointwise convolution, is none."""
_OF_A_VOCABULARY = re.compile(
    r"(audio|average|avg|bad|bos|class|cls|distill|distillation|dummy|empty|end|eoi|eos|eot|first|image|label|last|mask|"
    r"max|mean|memory|min|n|next|num|pad|padding|patch|per|pool|prefix|prompt|register|sep|separator|soft|special|start|"
    r"stop|suffix|text|think|total|unk|unknown|video|vision|visual|word) token|"
    r"token (acc|accuracy|budget|count|dim|drop|dropout|emb|embedding|embeddings|freq|frequency|ids?|index|keep|"
    r"learner|len|length|level|limit|loss|mask|masking|merge|merging|mixer|mixing|mlp|norm|pooling|prob|pruning|ratio|"
    r"reduction|sampling|selection|shift|shuffle|size|weighting|weights?|types?)"
)
"""``pad_token="<pad>"``, ``token_type="word"`` and ``max_token=512`` are no secrets."""
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-amz-credential", "x-amz-security-token"})

_PREFIXES = (
    # OpenAI, Anthropic: letters and digits side by side, as in no name of a library with a year.
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
# Each pattern below begins where a word begins: without that, a long text would take time by its square.
_IN_ADDRESS = re.compile(r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]+://)[^\s/?#<>"']+@""")
_UNTIL_A_SLASH = re.compile(
    r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]+://)[^\s/?#@:<>"'\[]{0,200}:(?!\d{1,5}[/?#,])[^\s@<>"']{1,200}@"""
)
"""A password with a slash, ``//me:a/b@host``; and no port, ``//host:80/a@b``."""
_PLAIN = r"""(?!//)[^\s"'&,;}\])]+(?:(?:[&,;](?![\w.-]++["']?\s{0,3}[=:])|["'}\])](?=\w))[^\s"'&,;}\])]+)*"""
"""A sign that may end a value does not do so amid a word: ``a,b`` is one value, ``a,lr=0.1`` and ``a, b`` are two."""
_VALUE = re.compile(r"""[bru]{0,2}"(?:[^"\\\n]|\\.)*"?|[bru]{0,2}'(?:[^'\\\n]|\\.)*'?|""" + _PLAIN)
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]+)(?P<sign>["']?\s{0,3}[=:]\s{0,3})""")
_OPTION = re.compile(r"(?<![\w.-])(?P<name>--[\w.-]+)(?P<sign>\s+)(?!--|-\w?(?!\S))")
_FEW = re.compile(r"\d{1,3}|\d{0,3}\.\d{1,9}")
"""A number that counts or measures something: ``pass=0.73``, ``token: 42``."""
_HEADER = re.compile(
    r"""(?P<name>\b(?:proxy-)?authorization|(?:^[<> ]*|(?<=["']))(?:set-)?cookie)"""
    r"""(?P<sign>["']?\s{0,3}[:=]\s{0,3}["']?)[^\s"'][^\r\n"']*""",
    re.IGNORECASE | re.MULTILINE,
)
_NAME = re.compile(r"[\w./-]+")
_OPTION_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_RANDOM = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_+/=.~-]{8,}")
_WORD = re.compile(r"(?:[A-Za-z][a-z]*|[A-Z]+)(?:[ _./-](?:[A-Za-z][a-z]*|[A-Z]+))*")
"""What may stand in a list beside the name of a secret: ``["secret", "public"]`` are two classes, and no pair."""
_NO_VALUE = frozenset({"True", "False", "None", "true", "false", "null", "none"})
_NAME_KEYS, _VALUE_KEYS = ("name", "key", "variable", "var", "field", "header", "option"), ("value", "val", "content")
_HEX_KEY = re.compile(r"[0-9a-f]{40}")
_NO_KEY = r"artifact|commit|digest|git|hash|head|rev|revision|sha|sha1|version"
_WANDB = re.compile(r"wandb|weights\W{1,3}(?:and\W)?biases|w&b", re.IGNORECASE)
_WANDB_KEY = re.compile(
    r"(?P<before>(?:wandb|weights\W{1,3}(?:and\W)?biases|w&b)(?:(?!\b(?:" + _NO_KEY + r")\b)[^\r]){0,80}?"
    r"(?<![0-9A-Za-z]))[0-9a-f]{40}(?![0-9A-Za-z])",
    re.IGNORECASE,
)
"""A key of W&B looks like a commit: what stands before it must tell."""
_CURL_USERS = ("-u", "-U", "--user", "--proxy-user")
_CURL_USER = re.compile(
    r"""(?P<before>\bcurl\b[^\n|;]{0,200}?\s(?:-[uU]|--user|--proxy-user)(?:\s{1,20}|=)?["']?(?!\d+:\d+\b)[^\s:"'|;-][^\s:"']{0,99}:)"""
    r"""[^\s"']+"""
)
_BASIC = re.compile(r"\b(?P<kind>Basic)\s+(?P<code>[A-Za-z0-9+/_-]{6,}={0,2})", re.IGNORECASE)
_NETRC = re.compile(r"(?P<before>\bmachine\s+\S{1,100}\s+login\s+\S{1,100}\s+password\s+)\S+")
_BEARER = re.compile(r"\b(?P<kind>Bearer)\s+(?=[A-Za-z._~+/=-]{0,40}[0-9])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether what has this name should not be written down.

    >>> [is_secret(name) for name in ("api_key", "wandbApiKey", "HF_TOKEN", "max_tokens", "tokenizer", "pad_token")]
    [True, True, True, False, False, False]
    """
    return bool(_secret_words(name))


def _secret_words(name: str) -> set[str]:
    """What in a name says that it is of a secret."""
    if name.lower().strip("-") in _SIGNATURES:
        return {name}
    words = [word.lower() for word in _WORDS.findall(name)]
    pairs = [f"{one} {two}" for one, two in pairwise(words)]
    found = {word for word in words if _SECRET.fullmatch(word) or _PASSWORD.fullmatch(word)}
    if words[-1:] == ["pass"] and not any(map(_OF_A_COURSE.fullmatch, pairs[-1:])):
        found.add("pass")
    if words[-1:] == ["pw"] and not any(map(_OF_A_LAYER.fullmatch, pairs[-1:])):
        found.add("pw")
    found |= {pair for pair in pairs if _SECRET_PAIR.fullmatch(pair)}
    is_vocabulary = found == {"token"} and any(map(_OF_A_VOCABULARY.fullmatch, pairs))
    return set() if is_vocabulary else found


def redact_text(text: str) -> str:
    """The text without the secrets that can be told from it.

    >>> redact_text("push to https://me:hunter2@example.org/?token=abc&page=2 with AKIAABCDEFGHIJKLMNOP")
    'push to https://[redacted]@example.org/?token=[redacted]&page=2 with [redacted]'
    """
    for _ in range(ROUNDS):
        before, text = text, _hide(text)
        if text == before:
            break
    return whole_text(text)


def whole_text(text: str) -> str:
    """A text that every file and sink can take: half of a surrogate pair, as in a file's odd name, is spelt out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _hide(text: str) -> str:
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\g<name>\g<sign>{HIDDEN}", text)
    text = _BEARER.sub(rf"\g<kind> {HIDDEN}", text)
    text = _BASIC.sub(_hide_basic, text)
    text = _KNOWN.sub(HIDDEN, text)
    text = _WANDB_KEY.sub(rf"\g<before>{HIDDEN}", text)
    text = _CURL_USER.sub(rf"\g<before>{HIDDEN}", text)
    text = _NETRC.sub(rf"\g<before>{HIDDEN}", text)
    text = _HOOK.sub(rf"\g<place>{HIDDEN}", text)
    text = _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _UNTIL_A_SLASH.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _hide_values(_hide_values(text, _NAMED), _OPTION)


def _hide_basic(found: re.Match[str]) -> str:
    """``Basic dXNlcjpwYXNz`` is a user and a password; ``Basic training`` is not."""
    code = found["code"].rstrip("=")
    try:
        decoded = b64decode(code + "=" * (-len(code) % 4), altchars=b"-_" if set(code) & set("-_") else None)
        is_user = ":" in decoded.decode() and decoded.decode().isprintable()
    except ValueError:
        is_user = False
    return f"{found['kind']} {HIDDEN}" if is_user else found[0]


def _hide_values(text: str, pattern: re.Pattern[str]) -> str:
    """Without what stands behind a secret's name; what stands behind another is searched, too: ``env=token=abc``."""
    parts: list[str] = []
    done = start = 0
    while found := pattern.search(text, start):
        start = found.end()
        value = _VALUE.match(text, start) if is_secret(found["name"]) else None
        if value is None or value[0] in (HIDDEN, HIDDEN[:-1]) or _is_sentence(found["name"], found["sign"], value[0]):
            continue
        quote = next((char for char in value[0][:3] if char in "\"'"), "")
        parts += [text[done:start], quote, HIDDEN, quote]
        done = start = value.end()
    return "".join([*parts, text[done:]])


def _is_sentence(name: str, sign: str, value: str) -> bool:
    """``the next token: apple`` and ``pass: 3 of 4``, ``pass=0.73``, ``password_field=False``."""
    if _counts(name, value) or value in _NO_VALUE:
        return True
    if sign != ": " or name.lower() not in ("pass", "token"):
        return False
    return value.isalpha() or (name.lower() == "pass" and value.isdigit())


def _counts(name: str, value: str) -> bool:
    """``--pass 2`` and ``token=42``: of so few digits is no secret."""
    return name.lower().lstrip("-") in ("pass", "token") and _FEW.fullmatch(value) is not None


def redact(value: Any, name: str = "") -> Any:
    """A tree of plain values without secrets; ``None`` and ``True`` are none, and a number only as a password.

    >>> redact({"lr": 0.1, "wandb": {"key": "abc"}, "data": {"password": ["x"]}, "token": None})
    {'lr': 0.1, 'wandb': {'key': '[redacted]'}, 'data': {'password': ['[redacted]']}, 'token': None}
    """
    if isinstance(value, Mapping):
        shown = {_redact_key(key): its for key, its in value.items()}  # judged as it is shown: twice is as once
        names = {key: _below(name, str(key)) for key in shown} | _names_in_record(shown)
        return {
            key: HIDDEN if _is_wandb_key(f"{name}.{key}", its) else redact(its, names[key])
            for key, its in shown.items()
        }
    if isinstance(value, str | bytes | bytearray):
        if value and is_secret(name) and not _is_special_token(name, value):
            return HIDDEN
        return redact_text(value) if isinstance(value, str) else value
    if isinstance(value, Sequence | Set):
        return _redact_items(list(value), name, is_pair=isinstance(value, tuple))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return HIDDEN if any(map(_PASSWORD.fullmatch, _secret_words(name))) else value
    return value


def _redact_items(items: list[Any], name: str, *, is_pair: bool) -> list[Any]:
    """A list: of values, a pair of a name and its value, or a command line.

    ``is_pair``: two items are a pair, as in a tuple and in a list of pairs. In another list the second may be a word.
    """
    if is_secret(name):
        return [redact(item, name) for item in items]
    if all(isinstance(item, list | tuple) and len(item) == 2 for item in items):
        return [_redact_items(list(item), name, is_pair=True) for item in items]
    if len(items) == 2 and _hides_in_pair(items[0], items[1]) and (is_pair or not _is_word(items[1])):
        return [redact(items[0], name), HIDDEN]
    found: list[Any] = []
    option, said = "", name  # the option before, and all words before
    for item in items:
        text = item if isinstance(item, str) else ""
        is_option = _OPTION_NAME.fullmatch(text) is not None
        found.append(redact(item, name) if is_option else _redact_item(item, option, said, name))
        option, said = text if is_option else "", f"{said} {text[:100]}"[-300:]
    return found


def _redact_item(item: Any, option: str, said: str, name: str) -> Any:
    """One value of a list; ``option`` stands before it."""
    if _is_wandb_key(said, item):
        return HIDDEN
    if isinstance(item, str) and option in _CURL_USERS and re.search(r"\bcurl\b", said):
        item = _CURL_USER.sub(rf"\g<before>{HIDDEN}", f"curl {option} {item}").removeprefix(f"curl {option} ")
    if not is_secret(option) or (isinstance(item, str) and (item in _NO_VALUE or _counts(option, item))):
        return redact(item, name)
    return redact(item, option)


def _hides_in_pair(name: Any, value: Any) -> bool:
    """Whether a value is a secret because the one before it, or the head of its column, names one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("-") or value == HIDDEN:
        return False
    if not isinstance(value, str | bytes | bytearray | int | float) or (isinstance(value, str) and value in _NO_VALUE):
        return False
    if _secret_words(name) - _AMBIGUOUS:
        return bool(redact(value, name) == HIDDEN)
    return is_secret(name) and isinstance(value, str) and _RANDOM.fullmatch(value) is not None


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 32 and _WORD.fullmatch(value) is not None


def _names_in_record(record: Mapping[Any, Any]) -> dict[Any, str]:
    """``{"name": "password", "value": x}``: the name of ``value``, if there is one that says secret."""
    keys = {str(key).lower(): key for key in record}
    name = next((record[keys[key]] for key in _NAME_KEYS if key in keys), None)
    if not isinstance(name, str) or not is_secret(name) or not _NAME.fullmatch(name.lstrip("-")):
        return {}
    return {keys[key]: name for key in _VALUE_KEYS if key in keys}


def _is_wandb_key(said: str, value: Any) -> bool:
    """Whether a value is a key of W&B: 40 hexadecimal digits, as of a commit, where W&B is named and no commit is."""
    if not isinstance(value, str) or not _HEX_KEY.fullmatch(value) or not _WANDB.search(said):
        return False
    return not {word.lower() for word in _WORDS.findall(said)} & set(_NO_KEY.split("|"))


def redact_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The rows of a table without the secrets of its columns.

    >>> redact_table(["user", "password"], [["me", "hunter2"]])
    [['me', '[redacted]']]
    """
    heads = [column if is_secret(column) else "" for column in columns]
    lower = [column.lower() for column in columns]
    is_record = bool({*_NAME_KEYS} & {*lower} and {*_VALUE_KEYS} & {*lower})  # a column of names, and one of values
    found = []
    for row in rows:
        named = _names_in_record(dict(zip(columns, row, strict=True))) if is_record else {}
        its = [named.get(column, head) for column, head in zip(columns, heads, strict=True)]
        pairs = zip(its, row, strict=True)
        found.append([HIDDEN if _hides_in_pair(head, cell) else redact(cell) for head, cell in pairs])
    return found


def _below(name: str, key: str) -> str:
    """What is in a secret is secret; and a ``key`` of ``wandb`` is a ``wandb.key``."""
    if is_secret(name):
        return name
    whole = f"{name}.{key}"
    return whole if len(_WORDS.findall(key)) == 1 and not is_secret(key) and is_secret(whole) else key


def _redact_key(key: Any) -> Any:
    return redact_text(key) if isinstance(key, str) else key


def _is_special_token(name: str, value: str | bytes | bytearray) -> bool:
    """``boi_token="<image>"`` is no secret."""
    if not isinstance(value, str) or _secret_words(name) != {"token"}:
        return False
    return len(value) < 32 and (value[0], value[-1]) in (("<", ">"), ("[", "]"))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets: ``--token abc``, ``--token=abc`` and ``token=abc``.

    >>> redact_arguments(["train.py", "--token", "abc", "--lr", "0.1", "--api-key=xyz"])
    ['train.py', '--token', '[redacted]', '--lr', '0.1', '--api-key=[redacted]']
    """
    found: list[str] = []
    hidden = ""  # the option before, if its value is a secret
    for argument in arguments:
        if hidden and re.fullmatch(r"-\w?|--.*", argument, re.DOTALL) is None:  # "-abc" is a value, "-v" an option
            found.append(argument if _counts(hidden, argument) or argument in _NO_VALUE else HIDDEN)
            hidden = ""
            continue
        name, sign, value = argument.partition("=")
        secret = re.fullmatch(r"[-+]*[\w./-]+", name) is not None and is_secret(name) and not _counts(name, value)
        shown = f"{name}={HIDDEN}" if secret and sign and value not in _NO_VALUE else redact_text(argument)
        found.append(HIDDEN if _is_wandb_key(" ".join(arguments[: len(found)])[-300:], argument) else shown)
        hidden = name if secret and not sign and argument.startswith("-") else ""
    return found
