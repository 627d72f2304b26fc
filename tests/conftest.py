"""The tier of each test, its CPU time, and what one test must not leave to the next one."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import cache, partial
from inspect import unwrap
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


# -- tiers ----------------------------------------------------------------------------------------
#
# Every test belongs to one tier: fast, processes, browser, trackers or slow. `make test` runs the fast tier.
# The first rule that fits decides: SMOKE, a pattern in PATHS, a fixture in FIXTURES, a child process, else fast.

SMOKE = {
    "tests/chaos/test_kills.py::test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened[0]",
    "tests/chaos/test_signals.py::test_in_the_forward_of_a_step[0]",
    "tests/loop/test_remote.py::test_a_run_resumes_from_an_address_as_from_a_local_path[run]",
    "tests/distributed/test_right_numbers.py::test_losses_accuracies_and_gradients_are_those_of_the_whole_window[2-ddp]",
    "tests/report/test_browser_report.py::test_every_chart_is_there_and_drawn",
}
"""Tests of other tiers that the fast tier keeps: one per topic."""

PATHS = {
    "tests/benchmarks/test_smoke.py::*": "slow",
    "tests/callbacks/saving/test_export_model.py::*onnx]": "slow",
    "tests/callbacks/saving/test_upload.py::*": "trackers",
    "tests/callbacks/watch/test_progress_everywhere.py::*": "processes",
    "tests/chaos/*": "processes",
    "tests/cli/test_verify_resume_*": "processes",
    "tests/contracts/test_callbacks.py::*[[]HistoryPlot-0-resume]": "slow",
    "tests/distributed/test_examples.py::*": "processes",
    "tests/distributed/test_torchrun.py::*": "processes",
    "tests/docs/test_pages.py::test_page_runs[[]docs/*": "slow",
    "tests/interop/*": "interop",
    "tests/loop/test_compile.py::*": "slow",
    "tests/loop/test_damaged_state.py::test_any_value_*[[]all]": "slow",
    "tests/loop/test_feed_workers.py::test_a_worker_that_hangs_*": "processes",
    "tests/loop/test_remote.py::*": "trackers",
    "tests/loop/test_remote_folder.py::*": "trackers",
    "tests/records/test_redact.py::test_a_long_text_*": "slow",
    "tests/report/test_page.py::test_very_many_curves_*": "slow",
    "tests/preflight/*[[]sink_without_a_server]": "trackers",
    "tests/sinks/test_mlflow.py::*": "trackers",
    "tests/sinks/test_names.py::*": "trackers",
    "tests/sinks/test_wandb.py::*": "trackers",
    "tests/*[[]MLflow*": "trackers",
    "tests/*[[]WandB*": "trackers",
}
"""The tier of folders, files and tests, by a pattern for their node ids."""

FIXTURES = {"browser": "browser"}
"""The tier of every test that uses the fixture."""

STARTS_PROCESS = {
    "Popen",
    "RankServer",
    "fork",
    "mailbox",
    "multiprocessing",
    "run_script",
    "start_script",
    "subprocess",
}
"""Names in a test, a helper of the tests or a fixture that show that it starts a child process."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m fast``, do not import files that have no fast test: they import trackers and other large packages."""
    if config.option.markexpr != "fast" or collection_path.suffix != ".py":
        return None
    if not collection_path.is_relative_to(HERE):
        return None
    path = collection_path.relative_to(HERE.parent).as_posix()
    is_other = any(fnmatchcase(f"{path}::", pattern) for pattern in PATHS)
    return True if is_other and not any(test.startswith(path) for test in SMOKE) else None


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        item.add_marker(tier_of(item))


def pytest_collection_finish() -> None:
    """Keep the objects of all imports and tests out of every later garbage collection, which would look at each."""
    gc.collect()
    gc.freeze()


def tier_of(item: pytest.Function) -> str:
    if item.nodeid in SMOKE:
        return "fast"
    for pattern, tier in PATHS.items():
        if fnmatchcase(item.nodeid, pattern):
            return tier
    for fixture, tier in FIXTURES.items():
        if fixture in item.fixturenames:
            return tier
    return "processes" if starts_process(item) else "fast"


def starts_process(item: pytest.Function) -> bool:
    """True if the test, one of its arguments or a fixture that it uses starts a child process."""
    fixtures = (fixture.func for found in item._fixtureinfo.name2fixturedefs.values() for fixture in found)
    arguments = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(
        helper_starts_process(helper) for used in (item.function, *fixtures, *arguments) for helper in helpers_in(used)
    )


@cache
def helper_starts_process(helper: FunctionType | type) -> bool:
    """True if the function or class, or a helper of the tests that it uses, starts a child process."""
    waiting, seen = [helper], set()
    while waiting:
        helper = waiting.pop()
        if helper in seen:
            continue
        seen.add(helper)
        if isinstance(helper, type):
            waiting += [found for value in vars(helper).values() for found in helpers_in(value)]
            waiting += [base for base in helper.__bases__ if is_of_tests(base)]
            continue
        names = names_in(helper.__code__)
        if names & STARTS_PROCESS:
            return True
        for value in (helper.__globals__[name] for name in names & helper.__globals__.keys()):
            attributes = vars(value) if isinstance(value, ModuleType) and is_of_tests(value) else {}
            for used in (value, *(attributes[name] for name in names & attributes.keys())):
                waiting += helpers_in(used)
    return False


def helpers_in(value: Any) -> list[FunctionType | type]:
    """The functions and classes of the tests that a value is or holds: a decorated one, a method, a table of them."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return [helper for item in value for helper in helpers_in(item)]
    if isinstance(value, property | partial | staticmethod | classmethod):
        value = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", None)
    value = unwrap(value) if callable(value) else value
    if isinstance(value, FunctionType) and hasattr(value, "hypothesis"):
        value = value.hypothesis.inner_test
    helper = value if isinstance(value, FunctionType | type) else type(value)
    return [helper] if is_of_tests(helper) else []


def is_of_tests(value: Any) -> bool:
    """True for a module, function or class that is defined below ``tests/``."""
    module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
    return str(getattr(module, "__file__", None)).startswith(f"{HERE}{os.sep}")


def names_in(code: CodeType) -> set[str]:
    """The names that a function uses, with those of the functions and classes inside it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


# -- CPU time -------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-limit", type=float, help="list the tests whose function takes more CPU seconds than this")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the test function only: its fixtures may be shared, and the first test would pay for all."""
    start = cpu_seconds()
    try:
        yield
    finally:
        item.user_properties[:] = [("cpu", cpu_seconds() - start)]


def cpu_seconds() -> float:
    """Of this process and of its child processes that have ended."""
    return sum(os.times()[:4])


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """With a limit, run a test that exceeds it once more: the second run pays for no import and no first-use set-up."""
    limit = item.config.getoption("--cpu-limit")
    if limit is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if dict(item.user_properties).get("cpu", 0) > limit and all(report.passed for report in reports):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    limit = config.getoption("--cpu-limit")
    if limit is None:
        return
    passed = [report for report in terminalreporter.stats.get("passed", ()) if report.when == "call"]
    times = sorted(((dict(report.user_properties).get("cpu", 0.0), report.nodeid) for report in passed), reverse=True)
    over = [(seconds, name) for seconds, name in times if seconds > limit]
    terminalreporter.section(f"{len(over)} tests above {limit} s of CPU time, imports and first-use set-up excluded")
    for seconds, name in over:
        terminalreporter.write_line(f"{seconds:6.1f} s  {name}")


# -- isolation ------------------------------------------------------------------------------------

WITH_PREFLIGHT = {"docs", "preflight", "test_examples.py"}
"""Folders and files of tests that train with a pre-flight."""
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def usual_signals() -> None:
    """Restore the default signal handlers: a library that a test used may have left its own.

    A shell script that starts the tests in the background lets them ignore Ctrl-C.
    """
    if threading.current_thread() is threading.main_thread():
        for number, usual in USUAL.items():
            if signal.getsignal(number) is not usual:
                signal.signal(number, usual)


@pytest.fixture(autouse=True)
def usual_numbers() -> None:
    """Seed torch, as pytest-randomly seeds Python and NumPy."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True, scope="module")  # Before the runs that the fixtures of a module make.
def usual_preflight(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switch the pre-flight on in its own tests, in examples and in pages: it must find nothing there."""
    if "torch" not in sys.modules or request.path.relative_to(HERE).parts[0] not in WITH_PREFLIGHT:
        yield
        return
    from tests.support.defaults import set_preflight

    set_preflight(True)
    yield
    set_preflight(False)


@pytest.fixture(scope="session")
def hold_port() -> Iterator[Callable[[], int]]:
    """A function that returns a port of the loopback address at which nothing listens.

    The port stays bound, so that no other process takes it. A server may bind it too, because servers reuse addresses.
    """
    with ExitStack() as held:

        def hold() -> int:
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port: int = holder.getsockname()[1]
            return port

        yield hold
