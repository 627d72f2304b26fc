"""What ``hookline watch`` shows of runs that grow, go back, appear and vanish; and what it never finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.cli.main import main
from hookline.records import EventRow, ImageRow, MetricRow, Record, to_json
from hookline.records.run_file import RunFile, SessionEntry
from hookline.report import serve_runs, serve_site
from hookline.report.serve_runs import Glance, Runs
from hookline.testing import TinyModel, tiny_data

Watch = Callable[[Path], Any]


def line(name: str, step: int, value: float, kind: Any = "step") -> bytes:
    return (to_json(MetricRow(name, step, step // 10, value, kind, step / 10)) + "\n").encode()


def write(folder: Path, *rows: Record, how: str = "a") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open(how) as file:
        file.writelines(to_json(row) + "\n" for row in rows)


def rows(*steps: int) -> list[MetricRow]:
    return [MetricRow("train/loss", step, step // 10, 1 / (1 + step), "step", step / 10) for step in steps]


def about(folder: Path, *sessions: SessionEntry, project: str = "digits") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    RunFile(project, folder.name, "id", "2030-01-01T00:00:00+00:00", sessions=sessions).write(folder)


def steps_of(data: dict[str, Any], name: str = "train/loss") -> list[int]:
    """The steps of a curve: the page has them as differences."""
    found, at = [], 0
    for difference in data["curves"][0][name]["x"]:
        at += difference
        found.append(at)
    return found


# -- finding -----------------------------------------------------------------------------------------


def test_runs_are_found_by_either_file_at_most_three_folders_deep(tmp_path: Path) -> None:
    write(tmp_path / "a", *rows(1))
    about(tmp_path / "p" / "b")
    write(tmp_path / "p" / "q" / "c", *rows(1))
    write(tmp_path / "p" / "q" / "r" / "too-deep", *rows(1))
    write(tmp_path / "a" / "checkpoints" / "not-one", *rows(1))
    (tmp_path / "empty").mkdir()
    assert [folder.name for folder in Runs(tmp_path).find().values()] == ["a", "b", "c"]


def test_the_given_folder_may_be_a_run_itself(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "mine", *rows(1, 2))
    assert [run["name"] for run in watch(tmp_path / "mine").list()] == ["mine"]


def test_a_link_that_leads_outside_is_not_followed(tmp_path: Path, watch: Watch) -> None:
    inside, outside = tmp_path / "runs", tmp_path / "outside"
    write(inside / "own", *rows(1))
    write(outside / "secret", *rows(1))
    about(outside / "secret", project="secret")
    (inside / "linked-run").symlink_to(outside / "secret")
    (inside / "linked-folder").symlink_to(outside)
    for file in ("metrics.jsonl", "run.json"):
        (inside / f"linked-{file}").mkdir()
        (inside / f"linked-{file}" / file).symlink_to(outside / "secret" / file)
    for file in ("run.json", "events.jsonl"):
        write(inside / f"half-{file}", *rows(1))
        (outside / "secret" / file).touch()
        (inside / f"half-{file}" / file).symlink_to(outside / "secret" / file)
    assert [run["name"] for run in watch(inside).list()] == ["own"]


def test_a_run_whose_file_becomes_a_link_to_the_outside_is_gone(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "runs" / "own", *rows(1))
    write(tmp_path / "secret", *rows(1))
    served = watch(tmp_path / "runs")
    name = served.list()[0]["id"]
    assert served.ask(f"/show?run={name}").status == 200
    (tmp_path / "runs" / "own" / "metrics.jsonl").unlink()
    (tmp_path / "runs" / "own" / "metrics.jsonl").symlink_to(tmp_path / "secret" / "metrics.jsonl")
    assert [served.ask(f"{page}?run={name}").status for page in ("/show", "/data")] == [404, 404]


def test_a_link_inside_shows_its_run_once_and_circles_end(tmp_path: Path) -> None:
    write(tmp_path / "project" / "own", *rows(1))
    (tmp_path / "again").symlink_to(tmp_path / "project" / "own")
    (tmp_path / "project" / "up").symlink_to(tmp_path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert [folder.name for folder in Runs(tmp_path).find().values()] == ["own"]


def test_a_picture_outside_of_the_run_is_not_sent(tmp_path: Path, watch: Watch, samples: ModuleType) -> None:
    folder, picture = tmp_path / "runs" / "mine", samples.picture(8, 8)
    (folder / "media").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(picture)
    (folder / "media" / "own.png").write_bytes(picture)
    (folder / "media" / "link.png").symlink_to(tmp_path / "secret.png")
    files = ["../../secret.png", str(tmp_path / "secret.png"), "media/link.png", "media", "metrics.jsonl"]
    write(folder, *(ImageRow(file, 1, 0, 0.1, 8, 8, file=file) for file in (*files, "media/own.png")))
    served = watch(tmp_path / "runs")
    images = served.ask(f"/data?run={served.list()[0]['id']}").json()["images"]
    assert [image["name"] for image in images if "data:image/png" in str(image)] == ["media/own.png"]


# -- the list ----------------------------------------------------------------------------------------


def test_the_list_says_how_each_run_stands(tmp_path: Path, watch: Watch) -> None:
    started = "2030-01-01T00:00:00+00:00"
    about(tmp_path / "digits" / "ended", SessionEntry(started, 0, "failed", started, 90, 9, 1.0, "ValueError: no"))
    write(tmp_path / "digits" / "ended", *rows(10, 90), MetricRow("val/loss", 90, 9, 0.25, "eval", 9.0))
    write(tmp_path / "bare", *rows(10, 20))
    bare, ended = watch(tmp_path).list()
    assert (bare["name"], bare["status"], bare["step"], bare["epoch"]) == ("bare", "unknown", 20, 2)
    assert (ended["project"], ended["name"], ended["status"]) == ("digits", "ended", "failed")
    assert (ended["step"], ended["epoch"], ended["reason"]) == (90, 9, "ValueError: no")
    assert list(ended["metrics"].items()) == [("val/loss", "0.25"), ("train/loss", "0.01099")]


def test_runs_of_the_same_name_are_told_apart_by_their_paths(
    tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with ``folder=`` and without a name is called by the last part of its path."""
    folders = [tmp_path / "runs" / path for path in ("a/x/llm", "b/x/llm", "b/other")]
    for folder in folders:
        config = {"made_in": str(folder)}
        trainer = hl.Trainer(max_duration="1ep", folder=folder, config=config, callbacks=[hl.ProgressBar(style=None)])
        trainer.fit(TinyModel(), tiny_data(1), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    listed = watch(tmp_path / "runs").list()
    assert sorted(run["name"] for run in listed) == ["llm (a/x/llm)", "llm (b/x/llm)", "other"]
    assert main(["compare", *map(str, folders), "--table"]) == 0
    printed = capsys.readouterr().out
    assert "llm (a/x/llm)" in printed
    assert "llm (b/x/llm)" in printed


def test_a_real_run_is_listed_while_it_trains_and_when_it_has_ended(tmp_path: Path, watch: Watch) -> None:
    served = watch(tmp_path)
    seen = []

    @hl.on("epoch_end")
    def look(run: hl.Run) -> None:
        seen.append(served.list()[0])

    folder = tmp_path / "digits" / "real"
    trainer = hl.Trainer(max_duration="2ep", log_every="1st", folder=folder, name="digits/real", callbacks=[look])
    trainer.fit(TinyModel(), tiny_data(), tiny_data(1), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    (ended,) = served.list()
    assert [run["status"] for run in (*seen, ended)] == ["running", "running", "finished"]
    assert 0 < seen[0]["step"] < seen[1]["step"] == ended["step"]
    assert {"val/loss", "train/loss"} <= set(ended["metrics"])
    data = served.ask(f"/data?run={ended['id']}").json()
    assert steps_of(data) == list(range(1, ended["step"] + 1))


HUGE = b'{"kind": "step", "name": "a", "step": 1, "epoch": 1, "value": 1' + b"0" * 400 + b', "seconds": 0}\n'
TYPES = b'{"kind": "step", "name": 5, "step": "x", "epoch": [], "value": 1, "seconds": 0}\n'
SESSION = b'"sessions": [{"started": 1, "last_step": "x"}]}'
STATUS = b'{"started": "", "status": {}}]}'
ODD_RUNS = {
    "garbage": (b"\x00\xff\n{}\n[]\n[1]\nnull\n" + line("a", 1, 2.0)[:-9] + b"\n", b"{"),
    "types": (TYPES, b"[]"),
    "deep": (b"[" * 100_000 + b"\n", b"[" * 100_000),
    "huge": (HUGE, b""),
    "wrong": (b"", b'{"format": 1, "project": 1, "name": [], "run_id": 2, "started": 3, ' + SESSION),
    "status": (b"", b'{"format": 1, "project": "", "name": "", "run_id": "", "started": "", "sessions": [' + STATUS),
    "empty": (b"", b""),
}


def test_files_that_say_nothing_neither_end_the_server_nor_hide_other_runs(tmp_path: Path, watch: Watch) -> None:
    for name, (metrics, run) in ODD_RUNS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_bytes(metrics)
        (tmp_path / name / "run.json").write_bytes(run)
    served = watch(tmp_path)
    found = served.list()
    assert len(found) == len(ODD_RUNS)
    assert served.ask("/").status == 200
    replies = {
        (run["name"], page): served.ask(f"{page}?run={run['id']}") for run in found for page in ("/show", "/data")
    }
    assert {where: reply.body[:200] for where, reply in replies.items() if reply.status != 200} == {}


def test_a_named_pipe_in_one_run_does_not_hold_up_the_others(tmp_path: Path, watch: Watch, samples: ModuleType) -> None:
    """Also one that takes the place of a file after the run was found."""
    names = ("metrics.jsonl", "events.jsonl", "run.json")
    for name in ("whole", *names):
        samples.make_run(tmp_path / name, 20, media=False, name=name)
    served = watch(tmp_path)
    assert len(served.list()) == 4
    for name in names:
        (tmp_path / name / name).unlink()
        os.mkfifo(tmp_path / name / name)
    found = {run["name"]: run["id"] for run in served.list()}
    assert len(found) == 4
    for run in found.values():
        assert served.ask(f"/show?run={run}").status in (200, 404)
    assert served.ask(f"/show?run={found['whole']}").status == 200


def test_two_hundred_runs_are_listed_and_any_of_them_opens(tmp_path: Path, watch: Watch) -> None:
    for at in range(200):
        write(tmp_path / f"project{at % 5}" / f"run{at:03d}", *rows(*range(10, 200, 10)))
    served = watch(tmp_path)
    found = served.list()
    assert len({run["id"] for run in found}) == 200
    assert {run["step"] for run in found} == {190}
    assert all(served.ask(f"/data?run={run['id']}").json()["page"] == "report" for run in found[::20])


def test_a_line_of_the_list_says_how_far_a_run_is_and_evaluations_come_first(
    samples: ModuleType, tmp_path: Path
) -> None:
    folder = samples.make_run(tmp_path / "run", 60, status="running", media=False)
    gap = MetricRow("gap/loss", 100, 10, 0.1, "eval", 1.0)
    write(folder, gap, MetricRow("test/loss", 100, 10, 0.5, "eval", 1.0))
    summary = Glance(folder, "x").look()
    assert (summary.epoch, summary.goal) == (10, {"unit": "epochs", "value": 10})
    assert list(summary.metrics) == ["val/loss", "val/acc", "test/loss", "gap/loss"]
    (folder / "metrics.jsonl").write_text("")
    write(folder, *rows(10), MetricRow("train/loss_epoch", 10, 1, 0.5, "epoch", 1.0))
    write(folder, MetricRow("speed/steps_per_second", 10, 1, 9.0, "step", 1.0))
    assert list(Glance(folder, "x").look().metrics) == ["train/loss"]  # not the same twice, nor the machine's


def test_a_long_file_is_not_read_whole_for_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_runs, "TAIL", 1_000)
    first = MetricRow("only/at_the_start", 1, 0, 1.0, "step", 0.1)
    write(tmp_path, first, *rows(*range(10, 1000, 10)))
    summary = Glance(tmp_path, "x").look()
    assert (summary.step, list(summary.metrics)) == (990, ["train/loss"])


# -- runs that change --------------------------------------------------------------------------------


def test_a_line_that_is_being_written_is_shown_once_it_is_whole(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "live", *rows(10))
    served, file = watch(tmp_path), tmp_path / "live" / "metrics.jsonl"
    address = f"/data?run={served.list()[0]['id']}"
    for part in (line("train/loss", 20, 0.5)[:30], line("train/loss", 20, 0.5)[30:-1]):
        with file.open("ab") as stream:
            stream.write(part)
        served.ask(address)
    with file.open("ab") as stream:
        stream.write(b"\n" + line("train/loss", 30, 0.4))
    data = served.ask(address).json()
    assert steps_of(data) == [10, 20, 30]
    assert data["notes"] == [note for note in data["notes"] if "could not be read" not in note]
    assert served.list()[0]["step"] == 30


def test_only_the_version_comes_back_when_nothing_is_new(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "live", *rows(10))
    served = watch(tmp_path)
    for address in ("/data?", f"/data?run={served.list()[0]['id']}&"):
        first = served.ask(f"{address}since=").json()
        assert set(served.ask(f"{address}since={first['version']}").json()) == {"version"}
        write(tmp_path / "live", *rows(20))
        second = served.ask(f"{address}since={first['version']}").json()
        assert second["version"] != first["version"]
        assert second["page"] in ("report", "watch")
        write(tmp_path / "live", *rows(10), how="w")


def test_a_page_that_takes_long_to_make_is_made_less_often(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the server would take a processor from the training that it shows."""
    clock = iter([0.0, 10.0, 11.0, 99.0, 101.0, 101.0, 101.0])  # asked, made from 0 to 10; asked at 11, 99 and 101
    monkeypatch.setattr(serve_site, "monotonic", lambda: next(clock))
    write(tmp_path / "live", *rows(10))
    served = watch(tmp_path)
    monkeypatch.setattr(serve_site, "REST", 9)
    address = f"/data?run={served.list()[0]['id']}&since="
    version = served.ask(address).json()["version"]
    write(tmp_path / "live", *rows(20))
    assert [set(served.ask(address + version).json()) for _ in range(2)] == [{"version"}] * 2
    assert steps_of(served.ask(address + version).json()) == [10, 20]


def test_an_event_alone_makes_a_page_new(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "live", *rows(10))
    served = watch(tmp_path)
    address = f"/data?run={served.list()[0]['id']}&since="
    version = served.ask(address).json()["version"]
    (tmp_path / "live" / "events.jsonl").write_text(to_json(EventRow("exception", 10, 1, 1.0, "OSError: gone")) + "\n")
    assert served.ask(address + version).json()["events"]["rows"][0]["text"] == "OSError: gone"


def test_a_run_that_was_resumed_from_an_earlier_step_is_read_anew(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "live", *rows(10, 20, 30, 40))
    served = watch(tmp_path)
    address = f"/data?run={served.list()[0]['id']}"
    assert steps_of(served.ask(address).json()) == [10, 20, 30, 40]
    write(tmp_path / "live", *rows(10, 20), how="w")
    assert steps_of(served.ask(address).json()) == [10, 20]
    assert served.list()[0]["step"] == 20


def test_a_run_that_went_back_and_on_again_between_two_looks_has_no_old_rows(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "live", *rows(10, 20, 30, 40), MetricRow("old", 40, 4, 1.0, "step", 4.0))
    served = watch(tmp_path)
    address = f"/data?run={served.list()[0]['id']}"
    served.ask(address)
    write(tmp_path / "live", *rows(10, 20), *rows(*range(21, 60)), how="w")
    data = served.ask(address).json()
    assert steps_of(data) == [10, 20, *range(21, 60)]
    assert "old" not in data["curves"][0]
    assert "old" not in served.list()[0]["metrics"]


def test_runs_appear_and_vanish_while_one_watches(tmp_path: Path, watch: Watch) -> None:
    served = watch(tmp_path)
    assert served.list() == []
    write(tmp_path / "new", *rows(10))
    write(tmp_path / "other", *rows(10))
    new, other = (run["id"] for run in served.list())
    both = f"/data?run={new}&run={other}"
    assert len(served.ask(both).json()["runs"]) == 2
    shutil.rmtree(tmp_path / "new")
    assert [run["name"] for run in served.list()] == ["other"]
    assert served.ask(f"/data?run={new}").status == 404
    assert served.ask(f"/show?run={new}").status == 404
    left = served.ask(both).json()
    assert (left["page"], len(left["runs"])) == ("compare", 1)


def test_a_run_made_anew_under_the_same_name_shows_its_new_rows(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "mine", *rows(10, 20))
    served = watch(tmp_path)
    address = f"/data?run={served.list()[0]['id']}"
    served.ask(address)
    shutil.rmtree(tmp_path / "mine")
    write(tmp_path / "mine", MetricRow("val/acc", 5, 1, 0.5, "eval", 1.0), EventRow("end", 5, 1, 1.0))
    assert list(served.ask(address).json()["curves"][0]) == ["val/acc"]


def test_nothing_is_written_into_the_folder(tmp_path: Path, watch: Watch, samples: ModuleType) -> None:
    samples.make_run(tmp_path / "a", 60)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    served = watch(tmp_path)
    name = served.list()[0]["id"]
    served.ask("/")
    served.ask(f"/show?run={name}")
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_more_runs_than_can_be_compared_are_refused(tmp_path: Path, watch: Watch) -> None:
    for at in range(22):
        write(tmp_path / f"run{at}", *rows(10))
    served = watch(tmp_path)
    names = [run["id"] for run in served.list()]
    most = served.ask("/data").json()["most"]
    for count, status in ((most, 200), (most + 1, 404)):
        assert served.ask("/data?" + "&".join(f"run={name}" for name in names[:count])).status == status


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is hidden from root")
def test_a_folder_that_may_not_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path / "open", *rows(1))
    write(tmp_path / "shut" / "hidden", *rows(1))
    (tmp_path / "shut").chmod(0)
    try:
        assert [folder.name for folder in Runs(tmp_path).find().values()] == ["open"]
    finally:
        (tmp_path / "shut").chmod(0o700)
