"""No secret reaches a file, and what is none stays readable."""

from __future__ import annotations

import doctest
import string
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline.events import Callback
from hookline.records import redact as module
from hookline.records import redact_names as names_module
from hookline.records.plain import public
from hookline.records.redact import HIDDEN, redact, redact_arguments, redact_table, redact_text
from hookline.records.redact_names import is_secret
from tests.support import fit

SECRET_NAMES = [
    "api_key",
    "apikey",
    "API_KEYS",
    "wandbApiKey",
    "WANDB_API_KEY",
    "x-api-key",
    "wandb.key",
    "openai_key",
    "aws_secret_access_key",
    "aws_access_key_id",
    "AccountKey",
    "private_key",
    "privateKey",
    "ssh-key",
    "token",
    "HF_TOKEN",
    "hfToken",
    "GITHUB_TOKEN_PROD",
    "access_token",
    "id_token",
    "new_access_token",
    "authToken",
    "authtoken",
    "refresh_tokens",
    "password",
    "db.password",
    "DB_PASSWD",
    "smtpPassword",
    "PGPASSWORD",
    "MYSQL_PWD",
    "dbpasswd",
    "clientsecret",
    "wandbapikey",
    "hftoken",
    "pass",
    "db_pass",
    "db.pass",
    "smtppass",
    "passphrase",
    "client_secret",
    "secrets",
    "credentials",
    "Authorization",
    "set-cookie",
    "webhook_url",
    "sig",
    "X-Amz-Signature",
    "pws",
    "pwds",
    "pw1",
    "password2",
    "master_key",
    "connection_string",
    "dsn",
]
HARMLESS_NAMES = [
    "tokenizer",
    "tokenizer_name",
    "max_tokens",
    "max_new_tokens",
    "max_token",
    "n_token",
    "num_tokens",
    "token_count",
    "key_dim",
    "passes",
    "n_pass",
    "low_pass",
    "forward_pass",
    "bypass",
    "tokens_per_second",
    "pad_token",
    "pad_token_id",
    "padToken",
    "eos_token",
    "mask_token",
    "token_type",
    "token_dropout",
    "token_accuracy",
    "next_token_loss",
    "image_token",
    "token_mixer",
    "token_merge",
    "token_ratio",
    "token-budget",
    "class_token",
    "eot_token",
    "vision_token",
    "author",
    "authority",
    "sort_key",
    "primary_key",
    "image_key",
    "keyboard",
    "monkey",
    "key",
    "keys",
    "secretary",
    "compass",
    "lr",
    "",
    "日本",
]
SECRETS = [
    "sk-proj-abcdEFGH1234ijklMNOP5678",
    "sk-ant-api03-abcdefghijkl_mnop-qrst",
    "sk_live_abcdefghijklmnop1234",
    "gsk_abcdefghijklmnopqrst",
    "nvapi-abcdefghijklmnopqrst_0123456789",
    "r8_abcdefghijklmnopqrstuvwxyz0123456789A",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0_abcdefghijklmnop",
    "glpat-abcdefghij_klmnopqrst",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "wandb_v1_abcdefghijklmnop_qrstuvwxyz",
    "xoxb-1234567890-abcdefghij",
    "AKIAABCDEFGHIJKLMNOP",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz012345",
    "ya29.a0AfH6SMBabcdefghijklmnop",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi-AgEIcHlwaS5vcmcCJDabcdefghij",
    "dapi0123456789abcdef0123456789abcdef",
    "SG.abcdefghijklmnopqrst.abcdefghijklmnopqrstuvwxyz",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
]
HARMLESS_TEXTS = [
    "sketch-book",
    "task-0123456789-abcdefghijkl",
    "sk-learn-logistic-regression-pipeline",
    "sk-learn-based-approach-2024-version",
    "pass: 0.73, pass=0.73, token: 42, token=5",
    "e8e97931c0ffee1c0ffee1c0ffee1c0ffee1c0ff",
    "commit d8a90b0, dirty",
    "loss: 0.25, acc: 0.91",
    "The key: practise every day; the second key: sleep.",
    "Basic training resumed after 3 epochs",
    "Bearer authentication. It failed",
    "the next token: apple",
    "max_tokens=512 tokenizer=gpt2 pad_token=<pad>",
    "max_token='512' --max-token 512 --pass 2 --token 42",
    "https://example.org/page?id=3#token",
    "https://example.org:8080/a@b",
    "s3://bucket/runs/first",
    "me@example.org wrote: hello",
    "12:30:05 started",
    "pass: 3 of 4, pass: 1000 of 2000, second pass: done, pass=3, passes=4",
    "https://[::1]:80/a@b and kafka://a:9092,b:9092/x@y",
    "{'lr': 0.1, 'betas': (0.9, 0.999)}",
    "hf_hub_download",
    "C:\\runs\\first",
    "",
]


def test_a_name_that_says_secret_hides_its_value_wherever_it_stands() -> None:
    assert [name for name in SECRET_NAMES if not is_secret(name)] == []
    wrong = []
    for name in SECRET_NAMES:
        arguments = ["x", f"--{name}", "hunter2", f"--{name}=hunter2", f"{name}=hunter2"]
        texts = (f"{name}=hunter2", f'"{name}": "hunter2 and more"', f"{name} = 'hunter2'", f"--{name} hunter2")
        wrong += [text for text in texts if "hunter2" in redact_text(text)]
        if (
            redact({name: "hunter2"}) != {name: HIDDEN}
            or redact({"a": [{name: ["hunter2", "x"]}]}) != {"a": [{name: [HIDDEN, HIDDEN]}]}
            or redact({name: {"deeper": {"lr": "hunter2"}}}) != {name: {"deeper": {"lr": HIDDEN}}}
            or "hunter2" in str(redact_arguments(arguments))
        ):
            wrong.append(name)
    assert wrong == []


def test_the_value_of_a_harmless_name_stays() -> None:
    assert [name for name in HARMLESS_NAMES if is_secret(name)] == []
    trees = [{name: "gpt2"} for name in HARMLESS_NAMES]
    assert list(map(redact, trees)) == trees
    texts = [f"{name}=gpt2" for name in HARMLESS_NAMES]
    assert list(map(redact_text, texts)) == texts
    lines = [[f"--{name}", "gpt2", f"--{name}=gpt2"] for name in HARMLESS_NAMES]
    assert list(map(redact_arguments, lines)) == lines


def test_a_known_prefix_is_hidden_in_any_place() -> None:
    wrong = []
    for secret in SECRETS:
        texts = (secret, f"got {secret}.", f"('{secret}',)", f"https://example.org/{secret}/x", f"my_{secret}")
        wrong += [text for text in texts if secret in redact_text(text)]
        if redact({"note": secret, secret: [1]}) != {"note": HIDDEN, HIDDEN: [1]}:
            wrong.append(secret)
        if redact_arguments(["run", secret]) != ["run", HIDDEN]:
            wrong.append(secret)
    assert wrong == []


def test_a_text_without_a_secret_stays_as_it_is() -> None:
    assert list(map(redact_text, HARMLESS_TEXTS)) == HARMLESS_TEXTS
    assert [redact({"note": [text]}) for text in HARMLESS_TEXTS] == [{"note": [text]} for text in HARMLESS_TEXTS]
    assert [redact_arguments([text]) for text in HARMLESS_TEXTS] == [[text] for text in HARMLESS_TEXTS]


def test_a_secret_in_an_address_a_header_or_a_quotation_is_hidden_and_the_rest_stays() -> None:
    table = [
        ("https://me:hunter2@example.org/x?page=2", "https://[redacted]@example.org/x?page=2"),
        ("https://me:hun@ter2@example.org", "https://[redacted]@example.org"),
        ("https://hunter2@example.org", "https://[redacted]@example.org"),
        ("https://me:hun/ter2@example.org/a@b", "https://[redacted]@example.org/a@b"),
        ("https://me:hun?ter#2@example.org", "https://[redacted]@example.org"),
        ("postgresql+psycopg://u:hunter2@db:5432/runs", "postgresql+psycopg://[redacted]@db:5432/runs"),
        ("https://h/?a=1&token=hunter2&b=2", "https://h/?a=1&token=[redacted]&b=2"),
        ("https://h/b?sv=1&sig=hunter2%3D&se=3", "https://h/b?sv=1&sig=[redacted]&se=3"),
        ("https://h/services/T00/B00/" + "hunter2" * 3, "https://h/services/T00/B00/[redacted]"),
        ("https://h/bot123:" + "hunter2" * 3 + "/send", "https://h/bot123:[redacted]/send"),
        ("AccountName=me;AccountKey=hunter2==;Suffix=net", "AccountName=me;AccountKey=[redacted];Suffix=net"),
        ("Authorization: Basic hunter2\nAccept: x", "Authorization: [redacted]\nAccept: x"),
        ("> Authorization: Digest a=b, hunter2", "> Authorization: [redacted]"),
        ("{'Authorization': 'Bearer hunter2', 'x': 1}", "{'Authorization': '[redacted]', 'x': 1}"),
        ("sent Bearer hunter2.abc-def", "sent Bearer [redacted]"),
        ("Cookie: a=1; b=hunter2\nnext", "Cookie: [redacted]\nnext"),
        ('password="hun ter2", lr=0.1', 'password="[redacted]", lr=0.1'),
        ("password='hunter\\'2' next", "password='[redacted]' next"),
        ("token=b'hunter2'", "token='[redacted]'"),
        ("password=a,hunter2 lr=0.1", "password=[redacted] lr=0.1"),
        ("f(password=hun;ter2,x,lr=0.1)", "f(password=[redacted],lr=0.1)"),
        ('password=hun)ter"2, b', "password=[redacted], b"),
        ("pass=hunter2", "pass=[redacted]"),
        ("--password -hunter2 -v", "--password [redacted] -v"),
        ("--password a,hunter2 x", "--password [redacted] x"),
        ("env=PGPASSWORD=hunter2", "env=PGPASSWORD=[redacted]"),
        ("{'env': 'PGPASSWORD=hunter2', 'b': 1}", "{'env': 'PGPASSWORD=[redacted]', 'b': 1}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nx", "[redacted]\nx"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", "[redacted]"),
        ("get(auth=('me', 'hunter2'), x=1)", "get(auth=[redacted], x=1)"),
        ("auth=('me', 'hunter2", "auth=[redacted]"),
        ("{'auth': ['me', ('a)', 'hunter2')], 'x': 1}", "{'auth': [redacted], 'x': 1}"),
        ('"auth": [\n  "me",\n  "hunter2"\n], "x": 1', '"auth": [redacted], "x": 1'),
        ("('password', 'hunter2')", "('password', '[redacted]')"),
        ("[('api_key', 'hunter2'), ('lr', 0.1)]", "[('api_key', '[redacted]'), ('lr', 0.1)]"),
        ("['--token', 'hunter2', '-v']", "['--token', '[redacted]', '-v']"),
        ('{"name": "API_KEY", "value": "hunter2"}', '{"name": "API_KEY", "value": "[redacted]"}'),
        ("Env(name='DB_PASSWORD', value='hunter2')", "Env(name='DB_PASSWORD', value='[redacted]')"),
        ("- name: DB_PASSWORD\n  value: hunter2\n", "- name: DB_PASSWORD\n  value: [redacted]\n"),
        ("mysql -u root -phunter2 db", "mysql -u root -p[redacted] db"),
        ("sshpass -p hunter2 ssh h", "sshpass -p [redacted] ssh h"),
        ("docker login -u me -p hunter2", "docker login -u me -p [redacted]"),
    ]
    expected = [shown for _, shown in table]
    assert [redact_text(text) for text, _ in table] == expected
    assert list(map(redact_text, expected)) == expected


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--token", "hunter2", "data"], ["--token", HIDDEN, "data"]),
        (["--token=hun=ter 2,x"], [f"--token={HIDDEN}"]),
        (["wandb.api_key=hun,ter 2"], [f"wandb.api_key={HIDDEN}"]),
        (["+logger/auth.token=hunter2"], [f"+logger/auth.token={HIDDEN}"]),
        (["--token", "--lr", "0.1"], ["--token", "--lr", "0.1"]),
        (["--pass", "2", "x", "pass=3"], ["--pass", "2", "x", "pass=3"]),
        (["--pass", "2468", "--token", "123456"], ["--pass", HIDDEN, "--token", HIDDEN]),
        (["--db-pass", "2468", "--password", "2"], ["--db-pass", HIDDEN, "--password", HIDDEN]),
        (["--db-pass", "2", "--pw", "0.3", "--psk", "0.3"], ["--db-pass", "2", "--pw", "0.3", "--psk", "0.3"]),
        (["--cred", "0.3", "--sig=0.3"], ["--cred", "0.3", "--sig=0.3"]),
        (["--secrets", "hunter2", "hunter3", "-v"], ["--secrets", HIDDEN, HIDDEN, "-v"]),
        (["--opts", "DB.PASSWORD", "hunter2", "LR", "0.1"], ["--opts", "DB.PASSWORD", HIDDEN, "LR", "0.1"]),
        (["password", "hunter2"], ["password", HIDDEN]),
        (["docker", "login", "-u", "me", "-p", "hunter2"], ["docker", "login", "-u", "me", "-p", HIDDEN]),
        (["mysql", "-phunter2", "-u", "root"], ["mysql", f"-p{HIDDEN}", "-u", "root"]),
        (["docker", "run", "-p", "8080:80"], ["docker", "run", "-p", "8080:80"]),
        (["train.py", "--dataset", "secret", "--lr", "0.1"], ["train.py", "--dataset", "secret", "--lr", "0.1"]),
        (["--password", "-hunter2", "-v"], ["--password", HIDDEN, "-v"]),
        (["--password", "-v", "-x"], ["--password", "-v", "-x"]),
        (["--env=PGPASSWORD=hunter2"], [f"--env=PGPASSWORD={HIDDEN}"]),
        (["--header", "Authorization: Bearer hunter2"], ["--header", f"Authorization: {HIDDEN}"]),
        (["--url", "https://me:hunter2@h/?token=hunter2&b=2"], ["--url", f"https://{HIDDEN}@h/?token={HIDDEN}&b=2"]),
        (["--tokenizer", "gpt2", "--max-tokens", "5"], ["--tokenizer", "gpt2", "--max-tokens", "5"]),
        ([], []),
    ],
)
def test_a_command_line_shows_everything_but_its_secrets(arguments: list[str], shown: list[str]) -> None:
    assert redact_arguments(arguments) == shown


@pytest.mark.parametrize("value", [0.3, 16, 0])
@pytest.mark.parametrize("name", ["pw", "psk", "cred", "token", "secret", "client_secret", "password_accuracy", "sig"])
def test_a_number_is_shown_in_every_form_unless_its_name_is_that_of_a_password(name: str, value: float) -> None:
    texts = [
        f"{name}={value}",
        f"{name}: {value}",
        f"--{name} {value}",
        f"{{'{name}': {value}}}",
        f"('{name}', {value})",
    ]
    assert list(map(redact_text, texts)) == texts
    trees: list[Any] = [{name: value}, {name: str(value)}, [name, value], {"name": name, "value": value}]
    assert list(map(redact, trees)) == trees
    assert redact_table([name, "pred"], [[value, 0]]) == [[value, 0]]
    assert redact_table(["name", "value"], [[name, value]]) == [[name, value]]
    lines = [[f"--{name}", str(value)], [f"{name}={value}"]]
    assert list(map(redact_arguments, lines)) == lines


def test_an_integer_with_the_name_of_a_password_is_hidden_in_every_form() -> None:
    texts = ["password=16", "password: 16", "--db-password 16", "{'password': 16}", "('password', 16)"]
    assert [text for text in texts if "16" in redact_text(text)] == []
    trees: list[Any] = [{"password": 16}, {"password": "16"}, ["password", 16], {"name": "password", "value": 16}]
    assert [tree for tree in trees if "16" in str(redact(tree))] == []
    assert redact_table(["password", "pred"], [[16, 0]]) == [[HIDDEN, 0]]


def test_a_fraction_is_never_a_password() -> None:
    tree = {"accuracy": {"password": 0.93, "email": 0.5}, "by_class": [{"class": "password", "val": 0.91}]}
    assert redact(tree) == tree
    assert redact_text("password: 0.93, email: 0.5") == "password: 0.93, email: 0.5"


def test_a_password_may_be_a_number_and_a_count_of_tokens_is_none() -> None:
    tree = {"db_password": 123456, "token": 512, "use_auth": True, "secret": None, "lr": 0.1}
    assert redact(tree) == {"db_password": HIDDEN, "token": 512, "use_auth": True, "secret": None, "lr": 0.1}


def test_what_lies_in_a_table_has_its_name_too() -> None:
    """``--wandb.key x`` is hidden; so is the same in a tree."""
    given = {"log": [{"wandb": {"key": "hunter2", "project": "a"}}], "db": {"pass": "hunter2", "port": 5432}}
    shown = {"log": [{"wandb": {"key": HIDDEN, "project": "a"}}], "db": {"pass": HIDDEN, "port": 5432}}
    assert redact(given) == shown
    harmless = {"attention": {"key": "linear", "keys": ["a"]}, "openai": {"key_format": "x"}, "hf": {"max_tokens": "9"}}
    assert redact(harmless) == harmless


@given(above=st.lists(st.sampled_from(HARMLESS_NAMES), max_size=3), name=st.sampled_from(SECRET_NAMES))
def test_a_secret_is_hidden_however_deep_it_lies(above: list[str], name: str) -> None:
    tree: Any = {name: "hunter2", "lr": 0.1}
    for key in above:
        tree = {key: [tree]}
    assert "hunter2" not in str(redact(tree))
    assert "0.1" in str(redact(tree))


@given(names=st.lists(st.sampled_from(HARMLESS_NAMES), min_size=1, max_size=4))
def test_harmless_names_in_one_another_hide_nothing(names: list[str]) -> None:
    tree: Any = "gpt2"
    for key in names:
        tree = {key: tree}
    assert redact(tree) == tree


@given(start=st.text(string.ascii_letters, min_size=1, max_size=12), digits=st.integers(0, 10**6))
def test_a_key_with_digits_amid_its_letters_is_hidden(start: str, digits: int) -> None:
    secret = f"sk-{start}{digits}abcdefghijklmnop"
    assert secret not in redact_text(f"got {secret}")


@pytest.mark.parametrize("text", ["pass=1234", "token=1234", "token: 123456", "pass: hunter2", "token=0.5x"])
def test_a_number_that_may_be_a_secret_is_hidden(text: str) -> None:
    assert redact_text(text).endswith(HIDDEN)


def test_a_special_token_is_shown_and_a_password_in_brackets_is_not() -> None:
    assert redact({"boi_token": "<image>", "password": "<hunter2>"}) == {"boi_token": "<image>", "password": HIDDEN}


def test_bytes_and_sets_hide_secrets_too_and_what_was_given_is_not_changed() -> None:
    given: dict[str, Any] = {"password": b"hunter2", "hosts": {"https://u:p@h"}, "raw": b"ok"}
    assert redact(given) == {"password": HIDDEN, "hosts": [f"https://{HIDDEN}@h"], "raw": b"ok"}
    assert given["password"] == b"hunter2"


# -- by structure --------------------------------------------------------------------------------------

WANDB_KEY = "0123456789abcdef0123456789abcdef01234567"
BASIC = b64encode(b"me:hunter2").decode()
PLANTED: list[tuple[Any, str]] = [
    (["--token", "hunter2"], "hunter2"),
    (["train.py", "--lr", 0.1, "--password", "hunter2"], "hunter2"),
    (["--password", 123456], "123456"),
    (["--api-key", "hunter2", "--lr", "0.1"], "hunter2"),
    (["-token", "hunter2"], "hunter2"),
    (("password", "hunter2"), "hunter2"),
    (["password", "hunter2"], "hunter2"),
    (["password", "hunter2", "lr", 0.1], "hunter2"),
    (("lr", 0.1, "db.password", "hunter2"), "hunter2"),
    (("passphrase", "correct horse battery staple"), "horse"),
    (["--secrets", "hunter3", "hunter2", "--lr", 0.1], "hunter2"),
    (["secret", "HuntTer"], "HuntTer"),
    (["api_key", "hunter2"], "hunter2"),
    ([("user", "me"), ("db_password", "hunter2")], "hunter2"),
    ({"env": [["PGPASSWORD", "hunter2"], ["HOME", "/root"]]}, "hunter2"),
    (("token", "a1b2c3d4e5"), "a1b2c3d4e5"),
    ([("Authorization", "a1b2c3d4e5")], "a1b2c3d4e5"),
    ({"name": "password", "value": "hunter2"}, "hunter2"),
    ({"env": [{"name": "HF_TOKEN", "value": "hunter2"}]}, "hunter2"),
    ({"key": "client_secret", "value": "hunter2"}, "hunter2"),
    ({"Name": "db_password", "Value": "hunter2"}, "hunter2"),
    ({"header": "Authorization", "content": "hunter2"}, "hunter2"),
    ({"name": "password", "value": {"deeper": ["hunter2"]}}, "hunter2"),
    ({"name": "password", "value": 123456}, "123456"),
    ({"k": "password", "v": "hunter2"}, "hunter2"),
    ({"id": "password", "value": "hunter"}, "hunter"),
    ({"parameter": "api_key", "value": "hunter2"}, "hunter2"),
    ({"type": "password", "value": "hunter2"}, "hunter2"),
    ({"value": "hunter2", "name": "API_KEY"}, "hunter2"),
    ({"name": "password", "values": ["hunter2"]}, "hunter2"),
    ({"name": "password", "default": "hunter2", "help": "of the database"}, "hunter2"),
    ({"name": "password", "valueFrom": {"x": "hunter2"}}, "hunter2"),
    ({"setting": "password", "is": "hunter2"}, "hunter2"),
    ({"columns": ["user", "password"], "rows": [["me", "hunter2"]]}, "hunter2"),
    ({"columns": ["user", "password"], "index": [0], "data": [("me", "hunter2")]}, "hunter2"),
    (["mysql", "-u", "root", "-p", "hunter2"], "hunter2"),
    (["sshpass", "-phunter2", "ssh"], "hunter2"),
    (["curl", "-u", "me:hunter2", "https://h"], "hunter2"),
    (["/usr/bin/curl", "-s", "--user", "me:hunter2"], "hunter2"),
    (["curl", "--proxy-user", "me:hunter2"], "hunter2"),
    ("curl -u me:hunter2 https://h", "hunter2"),
    ("curl -sS --user me:hunter2 https://h", "hunter2"),
    ("curl --user=me:hunter2 https://h", "hunter2"),
    ("curl -ume:hunter2 https://h", "hunter2"),
    ("$ curl 'https://h' -u 'me:hunter2'", "hunter2"),
    (f"sent Basic {BASIC}", BASIC),
    (f"basic {BASIC}", BASIC),
    ({"headers": [f"Basic {BASIC}"]}, BASIC),
    ({"headers": {"X-Proxy": f"Basic {BASIC}"}}, BASIC),
    ({"pw": "hunter2"}, "hunter2"),
    ({"db_pw": "hunter2"}, "hunter2"),
    ({"userPw": "hunter2"}, "hunter2"),
    ({"psk": "hunter2"}, "hunter2"),
    ({"wifiPSK": "hunter2"}, "hunter2"),
    ({"creds": "hunter2"}, "hunter2"),
    ({"aws-creds": {"a": "hunter2"}}, "hunter2"),
    ({"jwt": "hunter2"}, "hunter2"),
    ("pw=hunter2", "hunter2"),
    ("creds: hunter2", "hunter2"),
    ("--psk hunter2", "hunter2"),
    ({"wandb": WANDB_KEY}, WANDB_KEY),
    ({"wandb_login": WANDB_KEY}, WANDB_KEY),
    ({"wandb": {"login": WANDB_KEY}}, WANDB_KEY),
    ({"wandb": ["login", WANDB_KEY]}, WANDB_KEY),
    (["wandb", "login", WANDB_KEY], WANDB_KEY),
    (["--wandb", WANDB_KEY], WANDB_KEY),
    ({"logger": "wandb", "key": WANDB_KEY}, WANDB_KEY),
    (f"wandb login --host=https://wandb.example.org {WANDB_KEY}", WANDB_KEY),
    (f"wandb login {WANDB_KEY}", WANDB_KEY),
    (f"your Weights & Biases key is {WANDB_KEY}.", WANDB_KEY),
    (f"machine api.wandb.ai\n  login user\n  password {WANDB_KEY}\n", WANDB_KEY),
    ("machine h login me password hunter2", "hunter2"),
    (f"WANDB: {WANDB_KEY}", WANDB_KEY),
]
HARMLESS: list[Any] = [
    {"tokens": 1000},
    {"token_count": 5, "max_tokens": 512, "tokenizer": "gpt2"},
    {"password_field": False},
    {"use_auth": True, "token": None},
    ["--tokenizer", "gpt2"],
    ["--max-tokens", "512"],
    ["--use-password", "True"],
    ["--token", "42"],
    ["--lr", "0.1", "-v"],
    ["python", "-u", "train.py"],
    ["docker", "run", "-u", "1000:1000"],
    ["docker", "run", "-u", "nobody:nogroup"],
    ["curl", "-u", "1000:1000"],
    ["curl", "https://h:80/x"],
    ["token", "mask"],
    ["token", "label"],
    ["auth", "users"],
    ["pass", "fail"],
    {"classes": ["secret", "public"]},
    {"columns": ["password", "user_name"]},
    ["psk", "qam"],
    ["psk", "qam16"],
    ["pw", "dw"],
    ["cred", "debit"],
    ["key", "value"],
    ["a", "b"],
    ["lr", 0.1],
    ["max_tokens", 512],
    [["the", 0.5], ["token", 0.25]],
    {"name": "adam", "value": "x"},
    {"name": "token", "label": "noun"},
    {"name": "max_tokens", "value": 512},
    {"key": "val/loss", "value": 0.5},
    {"name": "A sentence about the token", "value": "x"},
    {"conv_pw": "x", "dw_pw": 3},
    {"pwm": 3, "power": 2, "credit": "x", "credibility": 0.5},
    {"modulation": "psk"},
    {"classes": ["password", "email"]},
    ["credentials", "labels"],
    [["password", "phone"]],
    ["user", "password", "feature_1", "phone number"],
    ["char", "token", "word2vec-300"],
    {"level": "token", "model": "resnet50"},
    {"name": "password_accuracy", "value": 0.93},
    {"name": "secret", "value": 12},
    {"name": "token", "value": "the"},
    {"columns": ["secret", "pred"], "rows": [[1, 0]]},
    {"columns": ["user", "password"], "rows": 3},
    {"auth_mode": "none", "num_secrets": "5"},
    {"wandb": {"dataset": WANDB_KEY}},
    {"logger": "wandb", "dataset": WANDB_KEY},
    f"wandb run {WANDB_KEY}",
    f"wandb login is done, commit {WANDB_KEY}",
    "docker run -p 8080:80 image",
    "{'type': 'password', 'column2': 'x'}",
    "token=(1, 2), token: <eos>",
    {"commit": WANDB_KEY},
    {"git": {"commit": WANDB_KEY}},
    {"wandb": {"commit": WANDB_KEY}},
    {"wandb_run_sha": WANDB_KEY},
    {"wandb": {"project": "digits", "entity": "me"}},
    {"sha256": WANDB_KEY + "0123456789abcdef01234567"},
    {"wandb": WANDB_KEY + "0123456789abcdef01234567"},
    ["git", "checkout", WANDB_KEY],
    f"commit {WANDB_KEY}",
    f"wandb 0.17 at commit {WANDB_KEY}",
    f"model {WANDB_KEY} loaded",
    "Basic training resumed after 3 epochs",
    "Basic trainings: 4",
    "Basic blocks of a ResNet",
    "curl of the vector field u:v",
    "curl https://h -o file:name",
    "the machine has a login and a password",
    "password_field=False",
    "--use-password False",
    "use_auth_token=None",
    "tokens=1000 token_count=3",
]


def test_a_secret_is_hidden_by_the_structure_that_it_stands_in() -> None:
    wrong = []
    for value, secret in PLANTED:
        shown, deeper = redact(value), redact({"a": [{"b": value}]})
        if secret in str(shown) or HIDDEN not in str(shown) or redact(shown) != shown or secret in str(deeper):
            wrong.append((value, shown, deeper))
    assert wrong == []


def test_what_only_looks_like_a_secret_stays() -> None:
    assert [redact(value) for value in HARMLESS] == list(HARMLESS)
    assert [redact({"a": [{"b": value}]}) for value in HARMLESS] == [{"a": [{"b": value}]} for value in HARMLESS]


def test_a_tuple_follows_the_rules_of_a_list() -> None:
    given = {"login": ("password", "hunter2"), "classes": ("password", "email"), "sizes": (1, 2)}
    assert public(given) == {"login": ["password", HIDDEN], "classes": ["password", "email"], "sizes": [1, 2]}
    pairs = [("password", "hunter2"), ("credentials", "labels")]
    assert public({"pairs": pairs}) == {"pairs": [["password", HIDDEN], ["credentials", "labels"]]}


def test_a_secret_in_a_structure_that_was_written_as_text_reaches_no_file_of_a_run(tmp_path: Path) -> None:
    config = {"notes": "connect with auth=('me', 'hunter2')", "env": '{"name": "API_KEY", "value": "hunter2"}'}
    fit(folder=tmp_path / "run", config=config)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"connect with auth=[redacted]" in path.read_bytes() for path in files)
    assert [path.name for path in files if b"hunter2" in path.read_bytes()] == []


class OfClasses(Callback):
    def __init__(self, classes: list[str]) -> None:
        self.classes = classes


def test_two_callbacks_with_other_classes_have_other_state_keys() -> None:
    one, other = OfClasses(["secret", "public"]), OfClasses(["secret", "internal"])
    assert one.state_key == "OfClasses(classes=['secret', 'public'])"
    assert one.state_key != other.state_key


def test_a_table_hides_the_columns_that_name_a_secret() -> None:
    columns = ["user", "password", "api_key", "score"]
    assert redact_table(columns, [["me", "hunter2", "abc", 0.5]]) == [["me", HIDDEN, HIDDEN, 0.5]]
    assert redact_table(["user", "password"], [["me", 123456], ["you", None]]) == [["me", HIDDEN], ["you", None]]
    assert redact_table(["name", "value"], [["lr", "0.1"], ["db_password", "hunter2"]])[1] == ["db_password", HIDDEN]
    assert redact_table(["param", "value"], [["password", "hunter"]]) == [["password", HIDDEN]]
    assert redact_table(["user password"], [["hunter2"]]) == [[HIDDEN]]
    words = [["the", 0.5], ["token", 0.25]]
    assert redact_table(["token", "probability"], words) == words
    assert redact_table(["user", "token"], [["me", "a1b2c3d4e5"]]) == [["me", HIDDEN]]


SIGNS = [
    "://",
    "--",
    "://u:p@",
    "Bearer ",
    "Authorization: ",
    "=b'",
    "\\'",
    "hunter2",
    "://x@",
    "@",
    HIDDEN,
    HIDDEN[:-1],
    "curl -u ",
    "curl -u me:",
    "wandb ",
    f"Basic {BASIC}",
    WANDB_KEY,
    "machine h login me password ",
    "'password', '",
    "auth=('",
    "mysql -p",
    "name: password\nvalue: ",
    "', ",
]
FRAGMENTS = st.sampled_from([*SECRET_NAMES, *HARMLESS_NAMES, *SECRETS, *HARMLESS_TEXTS, *SIGNS, *string.printable])
TEXTS = st.lists(FRAGMENTS | st.text(max_size=5), max_size=8).map("".join)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.integers(), inner, max_size=4),
    max_leaves=10,
)


@given(text=TEXTS)
@example(text="token=[redacted]x")
@example(text="AKIAABCDEFGHIJKLMNOPsk-proj-abcdEFGH1234ijklMNOP5678")
@example(text='password="[redacted]')
def test_what_was_redacted_once_stays_as_it_is(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once


@given(tree=TREES)
def test_any_tree_is_redacted_without_an_error_and_only_once(tree: Any) -> None:
    once = redact(tree)
    assert repr(redact(once)) == repr(once)


@given(arguments=st.lists(TEXTS))
def test_any_command_line_keeps_its_length(arguments: list[str]) -> None:
    once = redact_arguments(arguments)
    assert len(once) == len(arguments)
    assert redact_arguments(once) == once


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a.b-",
        "sk-",
        "eyJaaaaaaaa-",
        "token: '",
        "--a ",
        "://",
        "a@",
        "a  :",
        "Bearer ",
        "authorization :",
        "a=",
        "token=a,",
        "a://b:",
        "password=a)",
        "wandb ",
        "curl ",
        "curl -u ",
        "Basic ",
        "machine a login b ",
        "token=(",
        "token=(\n",
        "'password', ",
        "mysql -p ",
        ": password,\nvalue",
        f"wandb {WANDB_KEY} ",
    ],
)
def test_a_long_text_is_read_once_and_not_by_its_square(part: str) -> None:
    """A megabyte in an error message must not stop a run: by its square this would take hours."""
    redact_text(part * (1_000_000 // len(part)))


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == doctest.testmod(names_module).failed == 0
