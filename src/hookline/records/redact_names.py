"""Rules for names and values of secrets. ``redact.py`` applies them to structures and text.

- A name is a secret's name (``is_secret``) by its words: ``api_key``, ``HF_TOKEN``, ``db_password``.
- A value with a secret's name is hidden (``is_hidden``). Exceptions: ``None``, ``True``, special tokens such as
  ``<pad>``, and numbers. A fraction is never hidden. An integer is hidden only if the name ends in a word for
  password, as ``db_password`` does. A string of more than three digits is not a number: ``token=123456``.
- A name that is only an item of a list, or the head of a column, proves less (``is_hidden_after``). Ordinary words
  stay, so that ``["password", "email"]`` can be two classes. A name with two meanings, such as ``token`` or ``pass``,
  hides only values that look random.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

HIDDEN = "[redacted]"
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
"""The words of a name: ``wandbApiKey`` has three."""

_PASSWORD = re.compile(r"[a-z]*(passcode|passphrase|passwd|password|pwd)s?")
"""``PGPASSWORD`` is one word."""
_SECRET = re.compile(
    r"[a-z]*apikeys?|[a-z]*secrets?|(access|account|anthropic|aws|hf|openai|private|secret|ssh|wandb)keys?|"
    r"(access|api|auth|bot|gh|github|gitlab|hf|hub|oauth|refresh|secret|session|wandb)tokens?|"
    r"(admin|db|ftp|ldap|mail|mysql|pg|redis|root|smtp|sql|ssh|user)pass|"
    r"auth|authorization|bearer|cookies?|cred|creds|credentials?|dsn|jwt|psk|token|webhooks?"
)
_AMBIGUOUS = frozenset(
    {"auth", "bearer", "cookie", "cookies", "cred", "pass", "psk", "pw", "pws", "token", "webhook", "webhooks"}
)
"""A list item or column with such a name may mean something else: ``("token", "the")``."""
_SECRET_PAIR = re.compile(
    r"(access|account|anthropic|api|aws|comet|deploy|encryption|hf|license|master|openai|private|sas|signing|ssh|"
    r"storage|subscription|wandb) keys?|(access|api|auth|bearer|hf|refresh) tokens|connection strings?"
)
"""``api_key`` is a secret; ``sort_key`` and ``max_tokens`` are not secrets."""
_OF_A_COURSE = re.compile(
    r"(all|backward|band|by|each|every|filter|final|first|forward|high|last|low|multi|n|num|one|second|single|third|"
    r"two) pass"
)
"""``db_pass`` is a secret; ``low_pass`` and ``second_pass`` are not secrets."""
_OF_A_LAYER = re.compile(r"(conv|depthwise|dw|kernel) pw")
"""``db_pw`` is a secret; ``conv_pw``, a pointwise convolution, is not a secret."""
_OF_A_VOCABULARY = re.compile(
    r"(audio|average|avg|bad|bos|class|cls|distill|distillation|dummy|empty|end|eoi|eos|eot|first|image|label|last|mask|"
    r"max|mean|memory|min|n|next|num|pad|padding|patch|per|pool|prefix|prompt|register|sep|separator|soft|special|start|"
    r"stop|suffix|text|think|total|unk|unknown|video|vision|visual|word) token|"
    r"token (acc|accuracy|budget|count|dim|drop|dropout|emb|embedding|embeddings|freq|frequency|ids?|index|keep|"
    r"learner|len|length|level|limit|loss|mask|masking|merge|merging|mixer|mixing|mlp|norm|pooling|prob|pruning|ratio|"
    r"reduction|sampling|selection|shift|shuffle|size|weighting|weights?|types?)"
)
"""``pad_token="<pad>"``, ``token_type="word"`` and ``max_token=512`` are not secrets."""
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-amz-credential", "x-amz-security-token"})

_NAME = re.compile(r"[\w./-]{1,100}(?: [\w./-]{1,100})?")
"""``db.password`` and ``user password`` can be names; a sentence cannot."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}|\d{0,3}\.\d{1,9})(?:e[-+]?\d{1,3})?")
"""A string that counts or measures something: ``pass=0.73``, ``token: 42``."""
_NO_VALUE = frozenset({"", "True", "False", "None", "true", "false", "null", "none"})
_SPECIAL_TOKEN = re.compile(r"""<[^<>]{0,30}>|\[[^\[\]"',\s]{0,30}\]""")
_PART_OF_WORD = r"(?:[A-Za-z][a-z]{0,19}|[A-Z]{1,8}|\d{1,3})"
_WORD = re.compile(rf"(?=[A-Za-z]){_PART_OF_WORD}(?:[ _./-]{_PART_OF_WORD}){{0,2}}")
"""An ordinary word: ``["secret", "public"]`` are two classes, not a name and its secret."""
_CODE = re.compile(r"[A-Za-z0-9_+/=.~-]{8,}")
_DIGIT_BEFORE_LETTER = re.compile(r"[0-9][A-Za-z]")


def is_secret(name: str) -> bool:
    """True if values with this name are secrets.

    >>> [is_secret(name) for name in ("api_key", "wandbApiKey", "HF_TOKEN", "max_tokens", "tokenizer", "pad_token")]
    [True, True, True, False, False, False]
    """
    return bool(_secret_words(name))


def is_name_of_secret(value: object) -> bool:
    """True if a value is the name of a secret, as in ``{"name": "password", "value": "x"}``."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None and is_secret(value)


def is_several_secrets(name: str) -> bool:
    """True if a secret's name is in the plural: ``--secrets a b``."""
    last = _words(name)[-1:]
    return is_secret(name) and any(word.endswith("s") and not word.endswith("pass") for word in last)


def is_hidden(name: str, value: Any) -> bool:
    """True if a string or number is a secret because of its name.

    >>> [is_hidden("token", "abc"), is_hidden("token", 42), is_hidden("token", "42"), is_hidden("password", 42)]
    [True, False, False, True]
    """
    found = _secret_words(name)
    if not found or isinstance(value, bool) or not isinstance(value, str | bytes | bytearray | int | float):
        return False
    if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        is_fraction = isinstance(value, float) or "." in str(value)
        return not is_fraction and any(map(_PASSWORD.fullmatch, _words(name)[-1:]))
    if not isinstance(value, str):
        return bool(value)
    return value not in _NO_VALUE and not (found == {"token"} and _SPECIAL_TOKEN.fullmatch(value))


def is_hidden_in_column(head: str, value: Any) -> bool:
    """True if a value is a secret because of the head of its column."""
    if not _NAME.fullmatch(head) or not is_hidden(head, value):
        return False
    return bool(_secret_words(head) - _AMBIGUOUS) or _is_random(value)


def is_hidden_after(name: str, value: Any) -> bool:
    """True if a value is a secret because the item before it is a secret's name.

    >>> [is_hidden_after("password", "hunter2"), is_hidden_after("password", "email"), is_hidden_after("token", "x1")]
    [True, False, False]
    """
    is_word = isinstance(value, str) and _WORD.fullmatch(value) is not None
    return not is_word and is_hidden_in_column(name, value)


def is_hidden_in_record(name: str, value: Any) -> bool:
    """True if the ``value`` of a record ``{"name": name, "value": value}`` is a secret."""
    return is_hidden_after(name, value) if name.lower() in _AMBIGUOUS else is_hidden(name, value)


def _words(name: str) -> list[str]:
    """Return the words of a name without its number: ``pw1`` is ``pw``."""
    words = [word.lower() for word in WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    return words


def _secret_words(name: str) -> set[str]:
    """Return the words that make a name the name of a secret."""
    if not name:
        return set()
    if name.lower().strip("-") in _SIGNATURES:
        return {name}
    words = _words(name)
    pairs = [f"{one} {two}" for one, two in pairwise(words)]
    found = {word for word in words if _SECRET.fullmatch(word) or _PASSWORD.fullmatch(word)}
    if words[-1:] == ["pass"] and not any(map(_OF_A_COURSE.fullmatch, pairs[-1:])):
        found.add("pass")
    if words[-1:] in (["pw"], ["pws"]) and not any(map(_OF_A_LAYER.fullmatch, pairs[-1:])):
        found.add("pw")
    found |= {pair for pair in pairs if _SECRET_PAIR.fullmatch(pair)}
    is_vocabulary = found == {"token"} and any(map(_OF_A_VOCABULARY.fullmatch, pairs))
    return set() if is_vocabulary else found


def _is_random(value: Any) -> bool:
    """True if a value is a code such as ``a1b2c3d4``, and not a name such as ``resnet50``."""
    if not isinstance(value, str) or not _CODE.fullmatch(value):
        return False
    return len(_DIGIT_BEFORE_LETTER.findall(value)) >= 2
