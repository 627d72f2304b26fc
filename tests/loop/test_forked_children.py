"""A child process that is forked in a hook leaves nothing in the run of its parent, however it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookline.testing import run_script
from tests.support import json_lines

SCRIPT = """
import multiprocessing, os, sys, torch, warnings, hookline as hl
from hookline.testing import TinyModel, tiny_data

def act(way, run):
    run.log({"child": 1.0})
    run.log_text("child/text", "hello")
    run.log_image("child/image", torch.rand(3, 4, 4))
    if way != "optional":
        run.request_save()
    if way == "raises" or way == "optional":
        raise ValueError("in the child")
    sys.exit(3)

def fork(way, run):
    if way == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=act, args=(way, run))
        child.start()
        child.join()
        return child.exitcode
    child = os.fork()
    if child == 0:
        act(way, run)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

class Forks(hl.Callback):
    def on_train_step_end(self, run):
        if run.clock.step == 3:
            codes.append(fork(way, run))

class Tells(hl.Callback):
    def on_exception(self, run):
        (run.folder / "exception.txt").write_text("in " + str(os.getpid()))

    def on_teardown(self, run):
        with (run.folder / "teardown.txt").open("a") as file:
            file.write(str(os.getpid()) + " ")

parent = os.getpid()
for way in ("exits", "raises", "optional", "multiprocessing"):
    folder, codes, forks = f"{sys.argv[1]}/{way}", [], Forks()
    forks.optional = way == "optional"
    callbacks = [forks, Tells(), hl.Checkpointer("100st", at_end=False)]
    options = {"max_duration": "6st", "folder": folder, "log_every": "1st", "sinks": [hl.sinks.CSV()]}
    trainer = hl.Trainer(callbacks=callbacks, **options)
    trainer.fit(TinyModel(), tiny_data(4), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    if os.getpid() != parent:
        os._exit(5)  # of a child whose optional callback failed
    assert codes == [{"raises": 1, "optional": 5}.get(way, 3)], (way, codes)
    assert open(folder + "/teardown.txt").read() == f"{parent} "
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    done = run_script(SCRIPT, args=[folder])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("way", ["exits", "raises", "optional", "multiprocessing"])
def test_the_files_of_the_run_are_those_of_the_parent_alone(runs: Path, way: str) -> None:
    folder = runs / way
    names = [(row["name"], row["step"]) for row in json_lines(folder / "metrics.jsonl")]
    assert [step for name, step in names if name == "train/loss"] == [1, 2, 3, 4, 5, 6]
    assert len(set(names)) == len(names)
    assert "child" not in str(names)
    assert [row["name"] for row in json_lines(folder / "events.jsonl")] == ["start", "end"]
    assert (folder / "metrics.csv").read_text().count('"train/loss",') == 6
    assert json.loads((folder / "run.json").read_text())["sessions"][0]["status"] == "finished"
    assert not list(folder.rglob("*child*"))
    assert not (folder / "exception.txt").exists()
    assert not (folder / "checkpoints").exists()
