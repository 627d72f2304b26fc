"""Secrets are not written down: keys and tokens by name, by known prefix, in addresses and in arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

HIDDEN = "[redacted]"

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_WORDS = frozenset(
    [
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "secrets",
        "token",
    ]
)
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("account", "key"), ("sas", "key")})
_OF_A_VOCABULARY = frozenset(["bos", "cls", "eos", "mask", "pad", "sep", "special", "unk", "end", "start", "stop"])
"""``pad_token="<pad>"`` is no secret."""

_PREFIXES = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic
    r"gh[oprsu]_[A-Za-z0-9]{16,}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{16,}",
    r"glpat-[A-Za-z0-9_-]{16,}",  # GitLab
    r"hf_[A-Za-z0-9]{16,}",  # Hugging Face
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{30,}",  # Google
    r"ya29\.[A-Za-z0-9_-]{16,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[A-Za-z0-9_-]{16,}",
    r"dapi[a-f0-9]{32}",  # Databricks
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
_KNOWN = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_PREFIXES) + ")")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_IN_ADDRESS = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<who>[^\s/?#@]+)@")
_NAMED = re.compile(r"""(?P<name>[A-Za-z][\w.-]*)(?P<sign>["']?\s*[=:]\s*["']?)(?P<value>(?!//)[^\s"'&,;}\])]+)""")
_HEADER = re.compile(r"\b(?P<kind>Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-amz-credential", "x-amz-security-token"})


def is_secret(name: str) -> bool:
    """Whether what has this name should not be written down.

    >>> [is_secret(name) for name in ("api_key", "wandbApiKey", "HF_TOKEN", "max_tokens", "tokenizer", "pad_token")]
    [True, True, True, False, False, False]
    """
    if name.lower() in _SIGNATURES:
        return True
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(pair in _SECRET_PAIRS for pair in pairwise(words)):
        return True
    found = _SECRET_WORDS.intersection(words)
    return bool(found) and not (found == {"token"} and _OF_A_VOCABULARY.intersection(words))


def redact_text(text: str) -> str:
    """The text without the secrets that can be told from it.

    >>> redact_text("push to https://me:hunter2@example.org/?token=abc&page=2 with AKIAABCDEFGHIJKLMNOP")
    'push to https://[redacted]@example.org/?token=[redacted]&page=2 with [redacted]'
    """
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\g<kind> {HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    text = _IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _NAMED.sub(_hide_named, text)


def _hide_named(found: re.Match[str]) -> str:
    if not is_secret(found["name"]) or found["value"] in (HIDDEN, "Bearer", "Basic", HIDDEN.rstrip("]")):
        return found[0]
    return f"{found['name']}{found['sign']}{HIDDEN}"


def redact(value: Any, name: str = "") -> Any:
    """A tree of plain values without secrets; numbers and ``None`` are none.

    >>> redact({"lr": 0.1, "api_key": "abc", "data": {"password": ["x"]}, "token": None})
    {'lr': 0.1, 'api_key': '[redacted]', 'data': {'password': ['[redacted]']}, 'token': None}
    """
    if isinstance(value, Mapping):
        return {key: redact(its, f"{name}.{key}" if is_secret(name) else str(key)) for key, its in value.items()}
    if isinstance(value, str | bytes):
        if value and is_secret(name):
            return HIDDEN
        return redact_text(value) if isinstance(value, str) else value
    if isinstance(value, Sequence):
        return [redact(its, name) for its in value]
    return value


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets: ``--token abc`` and ``--token=abc``.

    >>> redact_arguments(["train.py", "--token", "abc", "--lr", "0.1", "--api-key=xyz"])
    ['train.py', '--token', '[redacted]', '--lr', '0.1', '--api-key=[redacted]']
    """
    found: list[str] = []
    hide = False
    for argument in arguments:
        if hide and not argument.startswith("-"):
            found.append(HIDDEN)
            hide = False
            continue
        name, sign, _ = argument.partition("=")
        secret = argument.startswith("-") and is_secret(name.lstrip("-"))
        found.append(f"{name}={HIDDEN}" if secret and sign else redact_text(argument))
        hide = secret and not sign
    return found
