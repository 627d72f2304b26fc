"""SIGKILL at random moments of a run that saves every two steps: nothing is lost, nothing half written is used.

Twelve kills in the suite, two hundred with ``HOOKLINE_CHAOS=1``. The seed of a failure is in its message;
``HOOKLINE_CHAOS_SEED`` chooses others.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hookline.checkpoint.names import is_ours

CHAOS = bool(os.environ.get("HOOKLINE_CHAOS"))
GROUPS = 8 if CHAOS else 2
KILLS = 25 if CHAOS else 6
IN_ONE_RUN = 7
"""After so many kills a run may finish, so that there are finished runs to compare."""
SEED = int(os.environ.get("HOOKLINE_CHAOS_SEED", "0"))
AIMED = 0.6
"""The share of kills that wait for a save to begin."""
ONE_SAVE, ONE_RUN = 0.004, 0.6
"""Seconds, about: a kill comes at a random moment of them."""


@dataclass
class Count:
    """What a group of kills has come to."""

    kills: int = 0
    inside_a_save: int = 0
    finished: int = 0


def under_way(folder: Path) -> set[str]:
    """Temporaries and trash of ours."""
    try:
        return {name for name in os.listdir(folder / "checkpoints") if is_ours(name)}
    except FileNotFoundError:
        return set()


def killed_once(lab: Any, folder: Path, plan: dict[str, Any], chance: random.Random, count: Count) -> bool:
    """Start the run and kill it, more often than not inside a save. Whether it was over before."""
    stale, steps = under_way(folder), [found.about.step for found in lab.checkpoints(folder)]
    child = lab.start(folder, **plan)
    if chance.random() < AIMED:
        wait_for_a_save(child, folder, stale, chance.randint(1, 4))
        time.sleep(chance.random() * ONE_SAVE)
    else:
        time.sleep(chance.random() * ONE_RUN)
    code = child.kill()
    if code != -signal.SIGKILL:
        assert code == 0, child.output
        return True
    usual = ("this run is finished", "resumed from ")
    assert [line for line in child.output.splitlines() if not line.startswith(usual)] == []
    count.kills += 1
    count.inside_a_save += bool(under_way(folder) - stale)
    now = [found.about.step for found in lab.checkpoints(folder)]
    assert max(now, default=0) >= max(steps, default=0), "a checkpoint that was there is lost"
    return False


def wait_for_a_save(child: Any, folder: Path, stale: set[str], number: int) -> None:
    """Until so many saves were seen, or the run is over."""
    seen = set(stale)
    for _ in range(number):
        if not child.wait_for(lambda: bool(under_way(folder) - seen)):
            return
        seen.update(under_way(folder))


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    group: int, lab: Any, tmp_path: Path
) -> None:
    count, chance = Count(), random.Random(f"{SEED} {group}")
    plan = {"seed": 1 + group % 4, "background": group % 2 == 1, "patience": 1 + group % 3}
    while count.kills < KILLS:
        folder, mine = tmp_path / f"run-{count.finished}", chance.randrange(2**31)
        print(f"HOOKLINE_CHAOS_SEED={SEED}: group {group}, run {count.finished}, seed {mine}")
        here = random.Random(mine)
        over = False
        for _ in range(min(IN_ONE_RUN, KILLS - count.kills)):
            over = killed_once(lab, folder, plan, here, count)
            if over:
                break
        if not over:
            lab.run(folder, **plan)
        assert under_way(folder) == set(), "something stale is left"
        lab.check_same(folder, lab.undisturbed(**plan))
        count.finished += 1
    print(count)
    assert count.kills == KILLS
    if KILLS >= 20:  # of a few kills all may miss; how many hit depends on the machine
        assert count.inside_a_save >= count.kills / 8, count
