"""Models that are spread over ranks: hybrid, tensor-parallel, in half precision; what goes with them, and what not."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

CASES = "cases_of_strategies.py:"


@pytest.fixture(scope="module")
def reference(ranks: Any) -> dict[str, Any]:
    (found,) = ranks.values(f"{CASES}reference", 1)
    return dict(found)


def test_hybrid_sharding_trains_as_one_process_does(ranks: Any, reference: dict[str, Any]) -> None:
    found = ranks.values(f"{CASES}hybrid", 4)
    for its in found:
        assert its["weights"] == pytest.approx(reference["24"]["weights"], abs=1e-6)
        assert its["losses"] == pytest.approx(reference["24"]["losses"], abs=1e-6)
    assert all(0.3 < its["share"] < 0.7 for its in found), "each holds half of it, and not all or a quarter"


def test_tensor_parallel_trains_as_one_process_does(ranks: Any, reference: dict[str, Any]) -> None:
    for its in ranks.values(f"{CASES}tensor_parallel", 4):
        assert its["weights"] == pytest.approx(reference["12"]["weights"], abs=1e-6)
        assert its["losses"] == pytest.approx(reference["12"]["losses"], abs=1e-6)


def test_fsdp_computes_in_half_precision_and_keeps_whole_weights(ranks: Any, reference: dict[str, Any]) -> None:
    """Of eight bits: about as one process does that has all of them."""
    for its in ranks.values(f"{CASES}half", 2):
        assert its["seen"] == ["torch.bfloat16"]
        assert its["kept"] == "torch.float32"
        assert its["losses"] == pytest.approx(reference["12"]["losses"], rel=0.01)
        apart = [abs(one - other) for one, other in zip(its["weights"], reference["12"]["weights"], strict=True)]
        assert 1e-6 < statistics.mean(apart) < 1e-3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("fp16", "use precision='bf16'"),
        ("wrapped", "pass the bare model"),
        ("used optimizer", "has made steps before the model was sharded"),
        ("sharded with ddp", "use strategy='fsdp' or 'auto'"),
        ("parallel without a mesh", "hl.FSDP(mesh=mesh['dp'])"),
        ("export", "hookline checkpoints consolidate"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(ranks: Any, what: str, words: str) -> None:
    told = ranks.run(f"{CASES}refused", 2, what=what)
    assert all(its.code == 1 for its in told)
    assert all(words in its.text for its in told), [its.text for its in told]
    assert told[0].error == "SetupError"


@pytest.mark.parametrize("shard", ["by us", "by the user"])
def test_an_optimizer_that_was_made_before_sharding_moves_the_weights(
    ranks: Any, reference: dict[str, Any], shard: str
) -> None:
    for its in ranks.values(f"{CASES}made_before", 2, shard=shard):
        assert its["spread"]
        assert its["moved"] > 100
        assert its["weights"] == pytest.approx(reference["12"]["weights"], abs=1e-6)


CALLBACKS = ["EMA", "SWA", "EarlyStopping", "GradientClip", "GradientMonitor", "Freeze", "Freeze until"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_reads_or_writes_weights_and_gradients_does_as_in_one_process(ranks: Any, strategy: str) -> None:
    case = f"{CASES}with_callbacks"
    (alone,) = ranks.values(case, 1, names=CALLBACKS, strategy="auto")
    for found in ranks.values(case, 2, names=CALLBACKS, strategy=strategy):
        for name in CALLBACKS:
            its, expected = found[name], alone[name]
            assert its["weights"] == pytest.approx(expected["weights"], abs=1e-6), name
            assert its["metrics"].keys() == expected["metrics"].keys(), name
            for metric, values in expected["metrics"].items():
                assert its["metrics"][metric] == pytest.approx(values, abs=1e-5), (name, metric)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_best_weights_are_one_whole_file(ranks: Any, tmp_path: Path, strategy: str) -> None:
    found = ranks.values(f"{CASES}best", 2, folder=str(tmp_path), strategy=strategy)
    written = load_file(tmp_path / "best.safetensors")
    flat = [float(x) for value in written.values() for x in value.double().flatten()]
    assert found[0]["weights"] == found[1]["weights"]
    assert sorted(flat) == sorted(found[0]["weights"])
