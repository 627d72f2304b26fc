"""Callbacks of other packages, with a package that is really installed as far as Python can tell."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import hookline as hl
from hookline.callbacks.plugins import from_plugins, installed
from hookline.cli.main import main
from hookline.errors import SetupError
from hookline.testing import TinyModel, run_script, tiny_data
from tests.support import CE

MODULE = """
import hookline as hl

print("imported")


class Hello(hl.Callback):
    def on_setup(self, run):
        print("hello from", __name__)


def one():
    return Hello()


def several():
    return [Hello(), hl.LRMonitor()]


def wrong():
    return ["text"]


def broken():
    raise LookupError("planted")
"""
POINTS = """[hookline.callbacks]
company = {module}:several
team = {module}:one
wrong = {module}:wrong
broken = {module}:broken
gone = {module}_gone:nothing
"""


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str = POINTS) -> str:
    name = f"offers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    info = tmp_path / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(points.format(module=name))
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return install(tmp_path, monkeypatch)


def test_packages_are_listed_without_importing_them(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    found = {plugin.name: plugin for plugin in installed()}
    assert set(found) == {"company", "team", "wrong", "broken", "gone"}
    assert found["team"].target == f"{package}:one"
    assert found["team"].package == f"{package} 1.2"
    assert main(["callbacks"]) == 0
    printed = capsys.readouterr().out
    assert "company" in printed
    assert "EarlyStopping" in printed
    assert "imported" not in printed


def test_what_the_command_says_to_type_makes_a_trainer_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = install(tmp_path, monkeypatch, points="[hookline.callbacks]\nour company's = {module}:several\n")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)  # where its run has a folder
    assert main(["callbacks"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("To use them: "))
    trainer = eval(line.removeprefix("To use them: "), {"hl": importlib.import_module("hookline")})
    trainer.evaluate(TinyModel(), tiny_data(1), loss=CE)
    assert f"hello from {name}" in capsys.readouterr().out


def test_import_hookline_is_all_that_is_needed_to_have_them() -> None:
    done = run_script(
        """
        import hookline as hl
        print(hl.callbacks.from_plugins(), hl.callbacks.plugins.installed(), "from_plugins" in dir(hl.callbacks))
        """
    )
    assert done.stdout.split() == ["[]", "[]", "True"], done.stderr


def test_the_name_without_callbacks_says_where_it_is() -> None:
    with pytest.raises(AttributeError, match=r"did you mean hl\.callbacks\.from_plugins\?"):
        _ = hl.from_plugins  # type: ignore[attr-defined]


def test_a_class_is_a_factory_like_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, points="[hookline.callbacks]\nhello = {module}:Hello\n")
    (made,) = from_plugins("hello")
    assert type(made).__name__ == "Hello"


def test_the_named_ones_are_made(package: str) -> None:
    names = [type(callback).__name__ for callback in from_plugins("company", "team")]
    assert names == ["Hello", "LRMonitor", "Hello"]


def test_a_name_that_nobody_offers_is_an_error_with_a_suggestion(package: str) -> None:
    with pytest.raises(SetupError, match="as 'compny'; did you mean 'company'"):
        from_plugins("compny")


def test_a_factory_that_fails_or_gives_something_else_is_named(package: str) -> None:
    with pytest.raises(SetupError, match=f"{package}:wrong of {package} 1.2, which offers callbacks as 'wrong'"):
        from_plugins("wrong")
    with pytest.raises(LookupError, match="planted") as caught:
        from_plugins("broken")
    assert f"in {package}:broken of {package} 1.2" in caught.value.__notes__[0]
    with pytest.raises(ModuleNotFoundError):
        from_plugins("gone")
