"""The tutorial on fine-tuning runs as a script: docs/tutorials/fine_tuning.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookline.testing import run_script

pytest.importorskip("transformers", reason="`make interop` runs this file")
pytest.importorskip("peft")
SCRIPT = Path(__file__).parents[2] / "docs" / "tutorials" / "fine_tuning.py"


def test_both_ways_of_fine_tuning_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_script(SCRIPT.read_text(), env={"HF_HUB_OFFLINE": "1"}, timeout=550)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"trained weights: (\d+), accuracy: ([\d.]+)", done.stdout)
    (all_weights, full), (adapter_weights, adapter) = found
    assert float(full) > 0.7  # 0.48 is the fraction of the most frequent class
    assert float(adapter) > 0.55
    assert int(adapter_weights) < int(all_weights) / 10
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
