"""The log passes MLPerf's own checker, also after a crash and a resume, and says what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mlperf_logging import mllog
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks.watch.mlperf_log import MLPerfLog, line
from hookline.errors import ArgumentError, MetricError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, crash_at, fit, press_ctrl_c, sgd


def log(benchmark: str = "bert", **options: Any) -> MLPerfLog:
    return MLPerfLog(benchmark, **{"organization": "Us", "platform": "one", "monitor": "val/loss"} | options)


fit_logged = partial(fit, val=tiny_data(2, last=5), optimizer=partial(sgd, lr=0.25), seed=3)


def written(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "mlperf" / "result_0.txt").read_text().splitlines()
    assert all(text.startswith(":::MLLOG ") for text in lines)
    return [json.loads(text.removeprefix(":::MLLOG ")) for text in lines]


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in its.items() if key != "time_ms"} for its in written(folder)]


def values(folder: Path, key: str) -> list[Any]:
    return [its["value"] for its in written(folder) if its["key"] == key]


def check(path: Path, ruleset: str) -> subprocess.CompletedProcess[str]:
    """The checker that submissions must pass, in a process of its own."""
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", ruleset, path.name]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("ruleset", "benchmark"), [("4.1.0", "bert"), ("5.1.0", "retinanet")])
def test_the_checker_of_mlperf_takes_the_log_and_misses_what_is_cut_out_of_it(
    ruleset: str, benchmark: str, tmp_path: Path
) -> None:
    fit_logged(log(benchmark, target=100.0), folder=tmp_path / "run")
    path = tmp_path / "run" / "mlperf" / "result_0.txt"
    done = check(path, ruleset)
    assert done.returncode == 0, done.stdout + done.stderr
    path.write_text("".join(text for text in path.read_text().splitlines(True) if "run_stop" not in text))
    assert check(path, ruleset).returncode == 1


def test_a_log_of_the_closed_division_passes_with_the_lines_that_its_benchmark_wants(tmp_path: Path) -> None:
    extra = {
        "global_batch_size": 256,
        "gradient_accumulation_steps": 1,
        "opt_name": "lamb",
        "opt_base_learning_rate": 0.0004,
        "opt_epsilon": 1e-6,
        "opt_lamb_epsilon": 1e-6,
        "opt_learning_rate_training_steps": 100,
        "opt_learning_rate_warmup_steps": 10,
        "num_warmup_steps": 10,
        "start_warmup_step": 0,
        "opt_lamb_beta_1": 0.9,
        "opt_lamb_beta_2": 0.999,
        "opt_lamb_weight_decay_rate": 0.01,
        "max_sequence_length": 512,
        "opt_gradient_accumulation_steps": 1,
        "opt_lamb_learning_rate_decay_poly_power": 1.0,
        "train_samples": 1000,
    }
    fit_logged(log(division="closed", target=100.0, extra=extra), folder=tmp_path / "run")
    done = check(tmp_path / "run" / "mlperf" / "result_0.txt", "4.1.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert values(tmp_path / "run", "opt_name") == ["lamb"]
    assert values(tmp_path / "run", "train_samples") == [1000]


@pytest.mark.parametrize("value", [None, 1, 0.5, "text", True])
def test_a_line_is_letter_by_letter_what_the_library_of_mlperf_writes(value: Any) -> None:
    ours = line("INTERVAL_START", "epoch_start", value, {"epoch_num": 1}, 1_700_000_000_000)
    assert ours == mllog.mllog._encode_log(
        "", 1_700_000_000_000, "INTERVAL_START", "epoch_start", value, {"epoch_num": 1}
    )


def test_a_value_that_json_does_not_know_is_null() -> None:
    text = line("POINT_IN_TIME", "eval_accuracy", float("nan"), {}, 0)
    assert json.loads(text.removeprefix(":::MLLOG "))["value"] is None


def test_the_lines_tell_the_run_in_its_order(tmp_path: Path) -> None:
    result = fit_logged(log(), folder=tmp_path)
    lines = written(tmp_path)
    keys = [its["key"] for its in lines]
    assert keys[:7] == [
        "init_start", "cache_clear", "submission_benchmark", "submission_org", "submission_division",
        "submission_status", "submission_platform",
    ]  # fmt: skip
    begin = keys.index("init_stop")
    epoch = ["block_start", "epoch_start", "epoch_stop", "block_stop", "eval_start", "eval_accuracy", "eval_stop"]
    rest = [key for key in keys[begin:] if key not in ("train_samples", "eval_samples")]
    assert rest == ["init_stop", "run_start", *epoch, *epoch, "run_stop"]
    assert values(tmp_path, "eval_accuracy") == pytest.approx(result.history["val/loss"])
    numbers = [its["metadata"]["epoch_num"] for its in lines if its["key"].startswith(("epoch_", "eval_st"))]
    assert numbers == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [its["metadata"]["samples_count"] for its in lines if its["key"] == "eval_accuracy"] == [32, 64]
    times = [its["time_ms"] for its in lines]
    assert times == sorted(times)
    assert values(tmp_path, "seed") == [3]
    assert (values(tmp_path, "opt_name"), values(tmp_path, "opt_base_learning_rate")) == (["sgd"], [0.25])


def test_samples_are_those_of_the_datasets_or_else_counted(tmp_path: Path) -> None:
    fit_logged(log(), folder=tmp_path / "lists")
    assert values(tmp_path / "lists", "train_samples") == [32]
    assert values(tmp_path / "lists", "eval_samples") == [13]
    assert values(tmp_path / "lists", "global_batch_size") == []
    x, y = (torch.cat(parts) for parts in zip(*tiny_data(), strict=True))
    loader = DataLoader(TensorDataset(x, y), batch_size=5, drop_last=True)
    fit_logged(log(), train=loader, accumulate=3, folder=tmp_path / "loader")
    assert values(tmp_path / "loader", "train_samples") == [32]
    assert values(tmp_path / "loader", "global_batch_size") == [15]
    assert values(tmp_path / "loader", "gradient_accumulation_steps") == [3]


# -- how it ends -----------------------------------------------------------------------------------


def status(folder: Path) -> str:
    (last,) = [its for its in written(folder) if its["key"] == "run_stop"]
    assert written(folder)[-1] == last
    return str(last["metadata"]["status"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": 100.0}, "success"),
        ({"target": 0.0}, "aborted"),
        ({"target": 0.0, "mode": "max"}, "success"),
        ({}, "success"),
    ],
)
def test_a_run_is_a_success_if_it_has_reached_its_target(options: Any, expected: str, tmp_path: Path) -> None:
    fit_logged(log(**options), folder=tmp_path)
    assert status(tmp_path) == expected


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_a_run_that_is_stopped_before_its_planned_end_is_a_success_only_with_its_target(
    how: str, tmp_path: Path
) -> None:
    leave = at_step(6, press_ctrl_c if how == "interrupt" else lambda run: run.stop("it gets no better"))
    for target, expected in ((None, "aborted"), (100.0, "success")):
        folder = tmp_path / expected
        fit_logged(log(target=target), leave, folder=folder)
        assert status(folder) == expected


def test_a_run_that_fails_is_aborted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_logged(log(), crash_at(5, "train_step_start"), folder=tmp_path)
    assert status(tmp_path) == "aborted"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    fit_logged(log(target=100.0), Checkpointer("1st"), folder=folder, max_duration="3ep")
    return folder


@pytest.mark.parametrize("step", [1, 4, 6])
def test_after_a_crash_and_a_resume_the_log_is_that_of_a_run_that_was_not_stopped(
    step: int, whole: Path, tmp_path: Path
) -> None:
    options: Any = {"max_duration": "3ep", "folder": tmp_path}
    with pytest.raises(RuntimeError, match="planted"):
        fit_logged(log(target=100.0), Checkpointer("1st"), crash_at(step, "train_step_start"), **options)
    fit_logged(log(target=100.0), Checkpointer("1st"), resume="auto", **options)
    assert without_times(tmp_path) == without_times(whole)
    assert status(tmp_path) == "success"


def test_a_run_that_is_made_longer_has_one_log_with_one_end(tmp_path: Path) -> None:
    fit_logged(log(), folder=tmp_path / "whole", max_duration="3ep")
    trainer = Trainer(callbacks=[log()], folder=tmp_path / "run", max_duration="2ep", device="cpu", seed=3)
    fit_more = partial(
        fit, trainer=trainer, model=TinyModel(), val=tiny_data(2, last=5), optimizer=partial(sgd, lr=0.25)
    )
    fit_more()
    fit_more(extend="1ep")
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")


def test_a_resume_without_the_log_of_before_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_logged(log(), Checkpointer("1st"), crash_at(3, "train_step_start"), folder=tmp_path)
    (tmp_path / "mlperf" / "result_0.txt").unlink()
    with pytest.raises(SetupError, match="has 0 lines, and the resumed run had written"):
        fit_logged(log(), Checkpointer("1st"), folder=tmp_path, resume="auto")


# -- what can go wrong ---------------------------------------------------------------------------


def test_caches_are_cleared_before_the_run_and_this_is_said(tmp_path: Path) -> None:
    calls: list[str] = []
    start = LambdaCallback(on_train_start=lambda run: calls.append("train"))
    fit_logged(start, log(cache_clear=lambda: calls.append("clear")), folder=tmp_path / "one")
    fit_logged(log(), folder=tmp_path / "two")
    assert calls == ["clear", "train"]
    assert (values(tmp_path / "one", "cache_clear"), values(tmp_path / "two", "cache_clear")) == ([True], [False])


def test_a_log_of_another_run_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "results" / "result_0.txt"
    fit_logged(log(path=path))
    before = path.read_text()
    assert before.count("run_start") == 1
    with pytest.raises(SetupError, match="a log is of one run only"):
        fit_logged(log(path=path))
    assert path.read_text() == before


def test_without_a_folder_or_with_one_that_cannot_be_written_the_run_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"this run has none \(folder=False\)"):
        fit_logged(log())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        fit_logged(log(path=tmp_path / "file" / "result_0.txt"))


def test_a_metric_that_nobody_logs_is_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="val/accuracy"):
        fit_logged(log(monitor="val/accuracy"), folder=tmp_path)
    assert values(tmp_path, "run_start") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"benchmark": ""}, "benchmark=''"),
        ({"organization": " "}, "organization=' '"),
        ({"platform": ""}, "platform=''"),
        ({"division": "ajar"}, r"MLPerfLog\(division='ajar'\): must be 'open' or 'closed'\."),
        ({"status": "done"}, r"MLPerfLog\(status='done'\): must be 'onprem', 'cloud', 'preview' or 'research'\."),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_made(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        log(**options)


def test_a_target_whose_direction_is_not_known_needs_a_mode() -> None:
    with pytest.raises(ArgumentError, match="mode"):
        log(monitor="val/thing", target=1.0)
    assert log(monitor="val/thing", target=1.0, mode="max").mode == "max"
