"""The buttons of ``hookline watch --control`` in a real browser, with a real run in another process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline.records.run_file import RunFile
from hookline.testing import start_script
from tests.support import saved_steps

SCRIPT = """
    import sys, time, torch, hookline as hl
    from hookline.testing import TinyModel, tiny_data

    slow = hl.LambdaCallback(on_train_step_start=lambda run: time.sleep(0.01))
    started = hl.LambdaCallback(on_train_start=lambda run: print("trains", flush=True))
    trainer = hl.Trainer(max_duration="1000000st", folder=sys.argv[1], progress=False, log_every="10st",
                         callbacks=[slow, started, hl.GradientClip(1.0)])
    result = trainer.fit(TinyModel(), tiny_data(8), tiny_data(1), loss=torch.nn.CrossEntropyLoss(),
                         optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    print(result.stop_reason)
"""


def test_the_buttons_work_with_the_keyboard(
    browse: Callable[..., Any], watch: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "first"
    with start_script(SCRIPT, args=[folder]) as script:
        script.wait_for("trains")
        served = watch(folder.parent, control="a-token")
        page = browse(served.server.url, server=served.address).page
        page.locator("#runs").get_by_role("link", name=re.compile("first$")).click()
        said = page.locator("#control output")
        page.get_by_role("button", name="Save").focus()
        page.keyboard.press("Enter")
        said.filter(has_text="save at step").wait_for()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        said.filter(has_text="eval at step").wait_for()
        page.locator("#settings-to-set").focus()
        page.keyboard.type("lr=0.05 norm=-1")
        page.keyboard.press("Enter")
        said.filter(has_text="GradientClip(norm=-1)").wait_for()
        page.keyboard.press("Control+a")
        page.keyboard.type("lr=0.05 norm=2")
        page.keyboard.press("Enter")
        said.filter(has_text="set lr=0.05 (was 0.1) GradientClip.norm=2 (was 1.0) from step").wait_for()
        page.locator("#timeline").filter(has_text="set lr=0.05").wait_for()  # The page is made again.
        assert page.locator("#settings-to-set").input_value() == "lr=0.05 norm=2"
        page.get_by_role("button", name="Stop").focus()
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name="Really stop?").is_visible()
        page.keyboard.press("Enter")
        said.filter(has_text="stop at step").wait_for()
        assert script.finish().stdout.split("\n")[1] == "hookline stop"
        page.get_by_role("group", name="Control this run").wait_for(state="hidden")
    commands = [(entry.command, bool(entry.refused)) for entry in RunFile.read(folder).control]
    assert commands == [("save", False), ("eval", False), ("set", True), ("set", False), ("stop", False)]
    assert RunFile.read(folder).control[0].step in saved_steps(folder)
