"""A child process that is forked in a hook leaves nothing in the run of its parent, however it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hookline.testing import run_script

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

way, folder, parent, codes = sys.argv[1], sys.argv[2], os.getpid(), []
forks = Forks()
forks.optional = way == "optional"
callbacks = [forks, Tells(), hl.Checkpointer("100st", at_end=False)]
trainer = hl.Trainer(max_duration="6st", folder=folder, callbacks=callbacks, log_every="1st", sinks=[hl.sinks.CSV()])
trainer.fit(TinyModel(), tiny_data(4), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
if os.getpid() != parent:
    os._exit(5)  # of a child whose optional callback failed
assert codes == [{"raises": 1, "optional": 5}.get(way, 3)], codes
assert open(folder + "/teardown.txt").read() == f"{parent} "
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("way", ["exits", "raises", "optional", "multiprocessing"])
def test_the_files_of_the_run_are_those_of_the_parent_alone(tmp_path: Path, way: str) -> None:
    done = run_script(SCRIPT, args=[way, tmp_path])
    assert done.returncode == 0, done.stderr
    names = [(row["name"], row["step"]) for row in rows(tmp_path / "metrics.jsonl")]
    assert [step for name, step in names if name == "train/loss"] == [1, 2, 3, 4, 5, 6]
    assert len(set(names)) == len(names)
    assert "child" not in str(names)
    assert [row["name"] for row in rows(tmp_path / "events.jsonl")] == ["start", "end"]
    assert (tmp_path / "metrics.csv").read_text().count('"train/loss",') == 6
    assert json.loads((tmp_path / "run.json").read_text())["sessions"][0]["status"] == "finished"
    assert not list(tmp_path.rglob("*child*"))
    assert not (tmp_path / "exception.txt").exists()
    assert not (tmp_path / "checkpoints").exists()
