"""A signal at every kind of moment: the run leaves with a checkpoint, and goes on from it as if nothing had been.

One seed for each moment in the suite, five with ``HOOKLINE_CHAOS=1``, and there every hook.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hookline.events.spec import EVENTS
from hookline.testing import run_script

CHAOS = bool(os.environ.get("HOOKLINE_CHAOS"))
SEEDS = range(5) if CHAOS else range(1)
TERMINATED = 128 + signal.SIGTERM
PER_EPOCH = 11
EARLY = ("on_setup", "on_model_ready", "on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start")
LATE = ("on_train_end", "on_fit_end", "on_teardown")
IN_A_STEP = (
    "forward",
    "window",
    "on_train_step_start",
    "on_backward_end",
    "on_gradients_ready",
    "on_optimizer_step_end",
)
NEVER = ("step_skipped", "rollback", "forward", "predict", "disabled", "exception", "interrupt", "preempt", "stop")
"""Hooks that this run does not come to, and those that a signal brings about."""
HOOKS = [
    event.hook
    for event in EVENTS
    if event.hook not in (*EARLY, *LATE) and not any(word in event.name for word in (*NEVER, "failed", "rejected"))
]


def signalled(lab: Any, folder: Path, code: int, **plan: Any) -> Any:
    """A run that a signal ends, with this exit code; hooks were sent to the very last, and nothing is left of it."""
    child = lab.start(folder, **plan)
    assert child.finish() == code, child.output
    assert (folder / "signalled.json").exists(), "the point was never reached"
    assert lab.events(child)[-1] == "teardown", lab.events(child)
    assert lab.events(child).count("teardown") == 1
    assert child.left_behind() == []
    return child


def check_age(lab: Any, folder: Path, *, point: str = "") -> None:
    """The newest checkpoint lies between two steps: before an evaluation that was left, after a step."""
    about, then = lab.newest(folder).about, lab.told(folder, "signalled.json")
    assert then["step"] <= about.step <= then["step"] + 1
    assert about.exact
    if point in IN_A_STEP:
        assert about.step == then["step"] + 1, "the step was not finished"
    if point == "val evaluation":
        assert about.step == then["step"]


def check_signal(lab: Any, folder: Path, *, code: int = TERMINATED, **plan: Any) -> Any:
    """Signalled, saved, resumed: the same as without the signal."""
    child, point = signalled(lab, folder, code, **plan), plan["signal"]["point"]
    check_age(lab, folder, point=point)
    assert ("preempt" in lab.events(child)) == (point not in LATE)
    check_resume(lab, folder, **plan)
    return child


def check_resume(lab: Any, folder: Path, **plan: Any) -> None:
    calm = {key: value for key, value in plan.items() if key not in ("signal", "requeue")}
    again = lab.run(folder, **calm)
    assert [what.split()[0] for what in lab.events(again)] == ["loaded", "teardown"]
    lab.check_same(folder, lab.undisturbed(**calm))


def test_a_script_exits_with_the_code_of_the_signal(tmp_path: Path) -> None:
    """A whole interpreter, from its start to its end; the runs below are forked."""
    script = """
        import os, signal, sys, torch
        import hookline as hl
        from hookline.testing import TinyModel, tiny_data
        late = hl.LambdaCallback(on_backward_end=lambda run: signal.raise_signal(signal.SIGTERM))
        hl.fit(
            TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, max_duration="9ep",
            folder=sys.argv[1], callbacks=[late],
        )
    """
    done = run_script(script, args=[tmp_path])
    assert done.returncode == TERMINATED, done.stderr
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["step-00000001"]


# -- ten moments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_forward_of_a_step(seed: int, lab: Any, tmp_path: Path) -> None:
    at = random.Random(seed).randint(1, 33)
    check_signal(lab, tmp_path, seed=seed, signal={"point": "forward", "at": at})


@pytest.mark.parametrize("seed", SEEDS)
def test_between_two_batches_of_a_window_which_is_finished_first(seed: int, lab: Any, tmp_path: Path) -> None:
    at = random.Random(seed).randint(1, 20)
    plan = {"seed": seed, "accumulate": 4, "signal": {"point": "window", "at": at}}
    signalled(lab, tmp_path, TERMINATED, **plan)
    check_age(lab, tmp_path, point="window")
    assert lab.newest(tmp_path).about.batch % PER_EPOCH in (0, 4, 8), "half a window was saved"
    check_resume(lab, tmp_path, **plan)


@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_middle_of_an_evaluation(seed: int, lab: Any, tmp_path: Path) -> None:
    at = 1 + seed % 5
    plan = {"seed": seed, "patience": 9, "signal": {"point": "val evaluation", "at": at}}
    signalled(lab, tmp_path, TERMINATED, **plan)
    check_age(lab, tmp_path, point="val evaluation")
    then = lab.told(tmp_path, "signalled.json")["step"]
    assert lab.newest(tmp_path).about.pending_eval
    assert then not in [row["step"] for row in lab.rows(tmp_path) if row["name"] == "val/loss"]
    check_resume(lab, tmp_path, **plan)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "background"])
def test_while_a_checkpoint_is_written(seed: int, background: bool, lab: Any, tmp_path: Path) -> None:
    at = random.Random(seed).randint(1, 60)
    check_signal(lab, tmp_path, seed=seed, background=background, signal={"point": "save", "at": at})


@pytest.mark.parametrize("hook", HOOKS if CHAOS else random.Random(1).sample(HOOKS, 4))
def test_in_the_hook_of_a_callback(hook: str, lab: Any, tmp_path: Path) -> None:
    if hook == "on_checkpoint_loaded":
        early = {"point": "forward", "at": 5}
        signalled(lab, tmp_path, TERMINATED, seed=3, signal=early)
        (tmp_path / "signalled.json").unlink()
    at = 1 + HOOKS.index(hook) % 3
    at = 1 if hook == "on_checkpoint_loaded" else at
    check_signal(lab, tmp_path, seed=3, signal={"point": hook, "at": at})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_while_the_loader_never_gives_a_batch(seed: int, workers: int, lab: Any, tmp_path: Path) -> None:
    """The whole group gets it, as from a cluster; a worker that sleeps for ever is ended."""
    at = 5 + 3 * seed if workers else 12 + 7 * seed  # each worker counts for itself, anew in each epoch
    plan = {"seed": seed, "workers": workers, "signal": {"point": "data", "at": at, "wait": True}}
    child = lab.start(tmp_path, **plan)
    assert child.wait_for((tmp_path / "signalled.json").exists), child.output
    if workers:  # a worker is ahead of the run, which will wait for it
        time.sleep(0.3 * (1 + seed))
    child.send(signal.SIGTERM, group=True)
    assert child.finish() == TERMINATED, child.output
    assert lab.events(child) == ["preempt", "teardown"]
    assert child.left_behind() == []
    if not workers:  # a worker does not know the step
        check_age(lab, tmp_path)
    check_resume(lab, tmp_path, **plan)


@pytest.mark.parametrize("point", [*EARLY, "sanity check"] if CHAOS else ["on_setup", "sanity check"])
@pytest.mark.parametrize("seed", SEEDS)
def test_before_the_first_step(seed: int, point: str, lab: Any, tmp_path: Path) -> None:
    check_signal(lab, tmp_path, seed=seed, signal={"point": point, "at": 1})


@pytest.mark.parametrize("point", LATE if CHAOS else ["on_fit_end"])
@pytest.mark.parametrize("seed", SEEDS)
def test_after_the_last_step(seed: int, point: str, lab: Any, tmp_path: Path) -> None:
    check_signal(lab, tmp_path, seed=seed, signal={"point": point, "at": 1})


TWICE = ["forward", "val evaluation", "save", "on_backward_end", "on_step_settled", "on_fit_end", "on_setup"]


@pytest.mark.parametrize("point", TWICE if CHAOS else ["forward", "save"])
@pytest.mark.parametrize("seed", SEEDS)
def test_twice_leaves_at_once_and_what_was_saved_before_is_good(
    seed: int, point: str, lab: Any, tmp_path: Path
) -> None:
    at = 1 if point in ("on_fit_end", "on_setup") else 1 + 3 * seed if "eval" not in point else 1
    plan = {"seed": seed, "signal": {"point": point, "at": at, "times": 2}}
    signalled(lab, tmp_path, TERMINATED, **plan)
    saved = lab.checkpoints(tmp_path)
    again = lab.run(tmp_path, seed=seed)
    assert bool(saved) == any(what.startswith("loaded") for what in lab.events(again))
    lab.check_same(tmp_path, lab.undisturbed(seed=seed))


# -- more of SIGTERM ---------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["forward", "on_backward_end", "val evaluation", "save"] if CHAOS else ["forward"])
@pytest.mark.parametrize("loader", [{}, {"persistent_workers": True}], ids=["new workers", "workers that stay"])
def test_to_the_whole_group_with_workers_that_must_not_die_in_the_middle(
    loader: dict[str, Any], point: str, lab: Any, tmp_path: Path
) -> None:
    plan = {"seed": 4, "workers": 2, "eval_workers": 2, "loader": loader}
    check_signal(lab, tmp_path, **plan, signal={"point": point, "at": 2, "group": True})


def test_in_the_test_at_the_end_which_is_made_after_the_resume(lab: Any, tmp_path: Path) -> None:
    plan = {"seed": 5, "test": True, "signal": {"point": "test evaluation", "at": 1}}
    signalled(lab, tmp_path, TERMINATED, **plan)
    check_age(lab, tmp_path)
    check_resume(lab, tmp_path, **plan)


@pytest.mark.parametrize("point", ["forward", "val evaluation", "on_backward_end", "on_eval_start", "on_step_settled"])
def test_without_a_checkpointer_it_is_saved_all_the_same(point: str, lab: Any, tmp_path: Path) -> None:
    plan = {"seed": 6, "checkpointer": False, "signal": {"point": point, "at": 3}}
    signalled(lab, tmp_path, TERMINATED, **plan)
    check_age(lab, tmp_path, point=point)
    again = lab.run(tmp_path, seed=6, checkpointer=False)
    assert lab.events(again)[0].startswith("loaded")
    assert lab.told(tmp_path, "result.json") == lab.told(lab.undisturbed(seed=6, checkpointer=False), "result.json")
    assert lab.rows(tmp_path) == lab.rows(lab.undisturbed(seed=6, checkpointer=False))


def test_again_and_again_at_every_third_step(lab: Any, tmp_path: Path) -> None:
    for _ in range(5):
        signalled(lab, tmp_path, TERMINATED, seed=7, signal={"point": "forward", "at": 4})
        check_age(lab, tmp_path, point="forward")
    check_resume(lab, tmp_path, seed=7)


def test_an_earlier_handler_of_the_user_is_called_once_and_is_there_again(lab: Any, tmp_path: Path) -> None:
    plan = {"seed": 8, "kind": "earlier handler", "signal": {"point": "forward", "at": 3}}
    signalled(lab, tmp_path, TERMINATED, **plan)
    assert lab.told(tmp_path, "after.json") == {"there again": True}
    assert (tmp_path / "earlier.txt").read_text() == "15\n15\n", "once by the run, once after it"


def test_a_fit_in_a_thread_changes_no_handler(lab: Any, tmp_path: Path) -> None:
    lab.run(tmp_path, seed=9, kind="thread")
    assert lab.told(tmp_path, "after.json") == {"steps": 2, "same handlers": True}


@pytest.mark.parametrize("kind", ["evaluate", "predict"])
def test_in_an_evaluation_or_a_prediction_alone(kind: str, lab: Any, tmp_path: Path) -> None:
    signalled(lab, tmp_path, TERMINATED, seed=10, kind=kind, signal={"point": "any evaluation", "at": 1})


# -- the own loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "at"),
    [("forward", 7), ("val evaluation", 2), ("save", 20), ("on_backward_end", 3), ("on_eval_end", 1), ("on_setup", 1)],
)
def test_in_an_own_loop(point: str, at: int, lab: Any, tmp_path: Path) -> None:
    check_signal(lab, tmp_path, seed=11, kind="own loop", signal={"point": point, "at": at})


def test_between_two_batches_of_a_window_in_an_own_loop(lab: Any, tmp_path: Path) -> None:
    plan = {"seed": 11, "kind": "own loop", "accumulate": 4, "signal": {"point": "window", "at": 5}}
    check_signal(lab, tmp_path, **plan)


# -- other signals -----------------------------------------------------------------------------------

INTERRUPTED = ["forward", "val evaluation", "save", "on_backward_end", "on_step_settled", "on_train_epoch_end"]


@pytest.mark.parametrize("point", INTERRUPTED if CHAOS else ["forward", "val evaluation"])
def test_ctrl_c_once_saves_so_that_a_new_process_goes_on_exactly(point: str, lab: Any, tmp_path: Path) -> None:
    plan = {"seed": 12, "signal": {"point": point, "at": 2, "number": signal.SIGINT}}
    signalled(lab, tmp_path, 0, **plan)
    assert lab.told(tmp_path, "result.json")["interrupted"]
    check_age(lab, tmp_path, point=point)
    check_resume(lab, tmp_path, **plan)


@pytest.mark.parametrize("point", INTERRUPTED if CHAOS else ["forward"])
def test_ctrl_c_twice_is_a_keyboard_interrupt_and_what_was_saved_is_good(point: str, lab: Any, tmp_path: Path) -> None:
    plan = {"seed": 12, "signal": {"point": point, "at": 3, "number": signal.SIGINT, "times": 2}}
    child = signalled(lab, tmp_path, -signal.SIGINT, **plan)
    assert "KeyboardInterrupt" in child.output
    lab.checkpoints(tmp_path)
    lab.run(tmp_path, seed=12)
    lab.check_same(tmp_path, lab.undisturbed(seed=12))


@pytest.mark.parametrize("point", ["forward", "val evaluation", "save"] if CHAOS else ["forward"])
def test_the_signal_of_slurm_requeues_once_after_the_checkpoint(point: str, lab: Any, tmp_path: Path) -> None:
    usr1 = {"point": point, "at": 3, "number": signal.SIGUSR1}
    signalled(lab, tmp_path, 128 + signal.SIGUSR1, seed=13, requeue=True, signal=usr1)
    check_age(lab, tmp_path, point=point)
    assert (tmp_path / "requeued.txt").read_text() == f"{lab.newest(tmp_path).name}\n"
    again = lab.run(tmp_path, seed=13)
    assert lab.events(again)[0].startswith("loaded")
    lab.check_same(tmp_path, lab.undisturbed(seed=13))
