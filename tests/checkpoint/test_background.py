"""A save in the background holds the state of its moment, loses no error, and needs one copy of memory."""

from __future__ import annotations

import doctest
import gc
import os
import signal
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from hookline.checkpoint import Store, background, copies
from hookline.checkpoint.background import BackgroundWriter
from hookline.checkpoint.compare import compare
from hookline.checkpoint.copies import Copies
from hookline.checkpoint.snapshot import About, Snapshot
from hookline.errors import HooklineWarning, StateError
from hookline.testing import run_script, start_script

LIMIT = 200
"""Seconds after which a wait is taken for a hang."""


def snapshot(weights: dict[str, Tensor], state: Any = None, *, step: int = 1) -> Snapshot:
    return Snapshot(About(step, 0, step, step, 0.0, "run"), weights, state)


class Gated:
    """A ``write`` that begins, waits for the gate and then notes what the snapshot holds."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.log: list[Any] = []

    def __call__(self, snapshot: Snapshot) -> int:
        self.log.append(("begin", snapshot.about.step))
        self.begun.set()
        if not self.gate.wait(LIMIT):
            raise TimeoutError("nobody opened the gate")
        self.log.append(("end", snapshot.about.step))
        self.held = {name: tensor.clone() for name, tensor in snapshot.weights.items()}
        self.state = snapshot.state
        return snapshot.about.step


def failing(snapshot: Snapshot) -> int:
    raise OSError(28, f"planted at step {snapshot.about.step}")


# -- what is written -------------------------------------------------------------------------------


def test_what_training_changes_after_submit_does_not_reach_the_file() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    history, counters = [1.0, 2.0], {"deep": [{"n": 1}]}
    write = Gated()
    writer = BackgroundWriter(write)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moment = optimizer.state[model.weight]["exp_avg"].clone()
    state = {"optimizer": optimizer.state_dict(), "history": history, "counters": counters}
    writer.submit(snapshot(model.state_dict(), state))
    optimizer.step()
    history.append(3.0)
    counters["deep"][0]["n"] = 2
    assert not torch.equal(model.weight, before["weight"])
    write.gate.set()
    writer.close()
    assert all(torch.equal(write.held[name], before[name]) for name in before)
    assert torch.equal(write.state["optimizer"]["state"][0]["exp_avg"], moment)
    assert write.state["history"] == [1.0, 2.0]
    assert write.state["counters"] == {"deep": [{"n": 1}]}


def test_metrics_and_environment_are_those_of_the_moment() -> None:
    metrics, environment = {"loss": 1.0}, {"threads": {"torch": 1}}
    seen: list[About] = []
    writer = BackgroundWriter(lambda given: seen.append(given.about))
    about = About(1, 0, 1, 1, 0.0, "run", metrics=metrics, environment=environment)
    copied = Copies().of(Snapshot(about, {}))
    metrics["loss"], environment["threads"]["torch"] = 2.0, 9
    assert (copied.about.metrics, copied.about.environment) == ({"loss": 1.0}, {"threads": {"torch": 1}})
    writer.submit(Snapshot(about, {}))
    writer.close()
    assert seen[0].step == 1


def test_weights_only_stay_weights_only() -> None:
    assert Copies().of(snapshot({"w": torch.ones(1)})).state is None


def test_each_checkpoint_on_disk_is_the_state_of_its_own_step(tmp_path: Path) -> None:
    """With a real store, while training continues."""
    model = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    store = Store(tmp_path)
    writer = BackgroundWriter(store.save)
    expected: list[Snapshot] = []
    for step in range(1, 7):
        model(torch.randn(8, 30)).sum().backward()
        optimizer.step()
        now = snapshot(model.state_dict(), {"optimizer": optimizer.state_dict(), "step": step}, step=step)
        writer.submit(now)
        expected.append(deepcopy(now))
    writer.close()
    saved = store.checkpoints()
    assert [checkpoint.about.step for checkpoint in saved] == [1, 2, 3, 4, 5, 6]
    for checkpoint, wanted in zip(saved, expected, strict=True):
        assert compare(wanted, store.load(checkpoint)) == []


def test_a_parameter_that_is_copied_is_no_part_of_a_graph() -> None:
    parameter = nn.Parameter(torch.ones(2))
    made = Copies()
    for _ in range(2):
        copied = made.of(snapshot({"w": parameter})).weights["w"]
        assert (copied.requires_grad, copied.grad_fn) == (False, None)


# -- one at a time ---------------------------------------------------------------------------------


def test_a_second_save_waits_for_the_first() -> None:
    write = Gated()
    writer = BackgroundWriter(write)
    writer.submit(snapshot({"w": torch.ones(2)}, step=1))
    assert write.begun.wait(LIMIT)
    writer.poll()  # returns although the save is not done
    threading.Timer(0.05, write.gate.set).start()
    writer.submit(snapshot({"w": torch.zeros(2)}, step=2))
    writer.close()
    assert write.log == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]


def test_done_is_called_once_with_the_result_in_the_callers_thread() -> None:
    calls: list[tuple[int, str]] = []
    write = Gated()
    write.gate.set()
    writer = BackgroundWriter(write)
    writer.submit(snapshot({}, step=7), lambda step: calls.append((step, threading.current_thread().name)))
    writer.wait()
    writer.poll()
    writer.wait()
    writer.close()
    assert calls == [(7, threading.current_thread().name)]


def test_done_of_the_save_before_is_called_before_the_next_copy() -> None:
    calls: list[str] = []
    weight = torch.ones(1)
    held: list[float] = []
    writer = BackgroundWriter(lambda given: held.append(given.weights["w"].item()))
    writer.submit(snapshot({"w": weight}), lambda _: calls.append("first"))
    writer.submit(snapshot({"w": weight + 1}), lambda _: calls.append("second"))
    assert calls == ["first"]
    writer.close()
    assert (calls, held) == (["first", "second"], [1.0, 2.0])


# -- errors ----------------------------------------------------------------------------------------


def settle_by_polling(writer: BackgroundWriter[Any]) -> None:
    for thread in threading.enumerate():
        if thread.name == "hookline-save":
            thread.join(LIMIT)
    writer.poll()


@pytest.mark.parametrize(
    "ask",
    [
        lambda writer: writer.wait(),
        lambda writer: writer.close(),
        lambda writer: writer.submit(snapshot({}, step=2)),
        settle_by_polling,
    ],
    ids=["wait", "close", "submit", "poll"],
)
def test_an_error_is_raised_by_the_next_call_and_only_once(ask: Callable[[BackgroundWriter[int]], None]) -> None:
    writer = BackgroundWriter(failing)
    writer.submit(snapshot({}, step=41))
    with pytest.raises(OSError, match="planted at step 41") as raised:
        ask(writer)
    assert raised.value.__notes__ == ["in the background save of step 41"]
    writer.poll()
    writer.wait()
    writer.close()


def test_after_a_failed_save_the_next_one_is_written() -> None:
    written: list[int] = []

    def write(given: Snapshot) -> None:
        if given.about.step == 1:
            raise OSError("planted")
        written.append(given.about.step)

    writer = BackgroundWriter(write)
    writer.submit(snapshot({}, step=1))
    with pytest.raises(OSError, match="planted"):
        writer.submit(snapshot({}, step=2))
    writer.submit(snapshot({}, step=3))
    writer.close()
    assert written == [3]


def test_a_system_exit_in_the_thread_is_not_swallowed() -> None:
    def write(_given: Snapshot) -> None:
        raise SystemExit(3)

    writer = BackgroundWriter(write)
    writer.submit(snapshot({}))
    with pytest.raises(SystemExit):
        writer.close()


def test_an_error_that_nobody_asks_for_is_told_when_the_writer_goes() -> None:
    writer = BackgroundWriter(failing)
    writer.submit(snapshot({}))
    for thread in threading.enumerate():
        if thread.name == "hookline-save":
            thread.join(LIMIT)
    held = [writer]
    del writer
    with pytest.warns(HooklineWarning, match=r"background save of a checkpoint failed.*planted at step 1.*close\(\)"):
        held.clear(), gc.collect()  # the error's traceback holds the writer, and the writer the error


def test_a_state_that_cannot_be_copied_is_refused_with_its_path_and_nothing_is_in_flight() -> None:
    writer = BackgroundWriter(failing)
    with pytest.raises(StateError, match=r"state\.callbacks\.1\.lock is a lock and cannot be copied"):
        writer.submit(snapshot({}, {"callbacks": [{}, {"lock": threading.Lock()}]}))
    writer.close()


# -- memory ----------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Counts the bytes of new memory that operations hand out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {tensor.data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        # set_ hands out the memory of its second argument, a storage
        if isinstance(result, Tensor) and "set_" not in str(func) and result.data_ptr() not in known:
            self.bytes += result.nbytes
        return result


def model_and_moments() -> dict[str, Tensor]:
    return {f"layer{index}.weight": torch.randn(64, index + 1) for index in range(20)}


def test_the_first_copy_takes_the_size_of_the_tensors_and_the_next_ones_take_nothing() -> None:
    weights, state = model_and_moments(), {"moments": list(model_and_moments().values())}
    size = sum(tensor.nbytes for tensor in [*weights.values(), *state["moments"]])
    made = Copies()
    with Allocations() as first:
        made.of(snapshot(weights, state))
    assert size == first.bytes == made.size
    for _ in range(3):
        weights = {name: tensor * 2 for name, tensor in weights.items()}  # other memory, the same shapes
        with Allocations() as later:
            copied = made.of(snapshot(weights, state))
        assert later.bytes == 0
        assert all(torch.equal(copied.weights[name], weights[name]) for name in weights)


def test_all_saves_of_a_writer_lie_in_the_same_memory() -> None:
    addresses: list[list[int]] = []
    writer = BackgroundWriter(lambda given: addresses.append([t.data_ptr() for t in given.weights.values()]))
    for _ in range(4):
        writer.submit(snapshot(model_and_moments()))
    writer.close()
    assert addresses[0] == addresses[1] == addresses[2] == addresses[3]


def test_state_that_appears_later_does_not_move_what_was_there() -> None:
    """As the moments of Adam do, which are made by the first step."""
    made, weights = Copies(), model_and_moments()
    before = [tensor.data_ptr() for tensor in made.of(snapshot(weights, {})).weights.values()]
    copied = made.of(snapshot(weights, {"moments": [torch.ones(5)]}))
    assert [tensor.data_ptr() for tensor in copied.weights.values()] == before
    assert made.of(snapshot(weights, {})).weights.keys() == weights.keys()
    assert made.size == sum(tensor.nbytes for tensor in weights.values())  # what went away is given back


def test_a_tensor_of_another_size_gets_another_buffer() -> None:
    made = Copies()
    made.of(snapshot({"w": torch.zeros(1000)}))
    copied = made.of(snapshot({"w": torch.arange(10.0)}))
    assert torch.equal(copied.weights["w"], torch.arange(10.0))
    assert made.size == 40


def test_a_small_view_of_a_large_storage_costs_its_own_size() -> None:
    made = Copies()
    copied = made.of(snapshot({"w": torch.zeros(1_000_000)[4:8]}))
    assert made.size == 16
    assert copied.weights["w"].untyped_storage().nbytes() == 16


def test_close_gives_the_memory_back() -> None:
    writer = BackgroundWriter(lambda given: None)
    writer.submit(snapshot(model_and_moments()))
    writer.close()
    assert writer._copies.size == 0


# -- every kind of tensor --------------------------------------------------------------------------


def test_tied_weights_are_copied_once_and_stay_tied() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    made = Copies()
    copied = made.of(snapshot(model.state_dict(), {"again": model[0].weight, "t": model[0].weight.data.t()}))
    first, second = copied.weights.values()
    assert copied.state is not None
    shared = {t.data_ptr() for t in (first, second, copied.state["again"], copied.state["t"])}
    assert shared == {first.data_ptr()}
    assert made.size == 60
    assert torch.equal(copied.state["t"], model[0].weight.t())
    assert not copied.state["again"].requires_grad


@settings(deadline=None)
@given(st.data())
def test_views_of_one_storage_are_equal_and_overlap_as_before(data: st.DataObject) -> None:
    base = torch.arange(96, dtype=torch.int16)
    views: dict[str, Tensor] = {}
    for name in "abcd":
        dtype = data.draw(st.sampled_from([torch.int16, torch.int64, torch.uint8, torch.complex64]))
        whole = base.view(dtype)
        shape = data.draw(st.lists(st.integers(1, 3), max_size=3))
        stride = [data.draw(st.integers(0, 4)) for _ in shape]
        reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if reach < whole.numel():
            offset = data.draw(st.integers(0, whole.numel() - reach - 1))
            views[name] = whole.as_strided(shape, stride, offset)
    made = Copies()
    copied = made.of(snapshot(views)).weights
    for name, view in views.items():
        found = copied[name]
        assert (found.shape, found.stride(), found.dtype) == (view.shape, view.stride(), view.dtype)
        assert torch.equal(found, view)
        for other in views:
            assert found.data_ptr() - copied[other].data_ptr() == view.data_ptr() - views[other].data_ptr()
    assert made.size <= base.nbytes


DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not str(d).startswith("torch.q")}, key=str
)
"""All but those of the quantized tensors, which are deprecated."""


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_every_dtype_is_copied_to_the_bit() -> None:
    for dtype in DTYPES:
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.randint(0, 256, (6 * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        tensor = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 0, (2, 3), (3, 1))
        copied = Copies().of(snapshot({"w": tensor})).weights["w"]
        assert (copied.dtype, copied.shape) == (dtype, tensor.shape)
        assert bytes(copied.untyped_storage().tolist()) == bytes(raw.tolist()), dtype
        assert copied.data_ptr() != tensor.data_ptr(), dtype


class Own(Tensor):
    """A subclass as users make them."""


ODD = {
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0),
    "empty with a shape": torch.empty(3, 0, 2),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "expanded": torch.ones(1).expand(4, 4),
    "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "sparse": torch.eye(3).to_sparse(),
    "parameter": nn.Parameter(torch.arange(3.0)),
    "subclass": torch.arange(4.0).as_subclass(Own),
}


@pytest.mark.parametrize("tensor", ODD.values(), ids=ODD)
def test_odd_tensors_are_copied_equal_and_apart(tensor: Tensor) -> None:
    copied = Copies().of(snapshot({}, {"t": tensor})).state
    assert copied is not None
    found = copied["t"]
    assert (found.shape, found.dtype, found.layout) == (tensor.shape, tensor.dtype, tensor.layout)
    assert torch.equal(found.to_dense(), tensor.detach().to_dense())
    if tensor.layout is torch.strided and tensor.numel():
        assert found.data_ptr() != tensor.data_ptr()


def test_containers_keep_their_type_and_share_no_memory_with_the_originals() -> None:
    state = {
        "ordered": OrderedDict(a=torch.ones(2)),
        "queue": deque([torch.ones(1)], maxlen=3),
        "pair": (torch.zeros(1), "text"),
        "read-only": MappingProxyType({"n": [1]}),
        "numbers": [1, 2.5, None, True, b"bytes", 1 + 2j],
        "keys": {0: torch.full((1,), 7.0), "0": torch.full((1,), 8.0)},
        "a.b": torch.full((1,), 1.0),
        "a": {"b": torch.full((1,), 2.0)},
    }
    copied = Copies().of(snapshot({}, state)).state
    assert copied is not None
    for tensor in (state["ordered"]["a"], state["queue"][0], state["pair"][0]):  # type: ignore[index]
        tensor.fill_(99.0)
    assert type(copied["ordered"]) is OrderedDict
    assert copied["ordered"]["a"].tolist() == [1.0, 1.0]
    assert (copied["queue"].maxlen, copied["queue"][0].item()) == (3, 1.0)
    assert (copied["pair"][0].item(), copied["pair"][1]) == (0.0, "text")
    assert copied["read-only"] == {"n": [1]}
    assert copied["numbers"] == [1, 2.5, None, True, b"bytes", 1 + 2j]
    assert (copied["keys"][0].item(), copied["keys"]["0"].item()) == (7.0, 8.0)
    assert (copied["a.b"].item(), copied["a"]["b"].item()) == (1.0, 2.0)


# -- processes, signals and the end of the program -------------------------------------------------


def test_worker_processes_can_be_forked_while_a_save_is_in_flight() -> None:
    write = Gated()
    writer = BackgroundWriter(write)
    writer.submit(snapshot({"w": torch.ones(3)}))
    assert write.begun.wait(LIMIT)
    batches = list(DataLoader(range(8), batch_size=2, num_workers=2, multiprocessing_context="fork"))  # type: ignore[arg-type]
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    write.gate.set()
    writer.close()
    assert write.held["w"].tolist() == [1.0, 1.0, 1.0]


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    write = Gated()
    writer = BackgroundWriter(write)
    writer.submit(snapshot({"w": torch.ones(3)}))
    assert write.begun.wait(LIMIT)
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)  # a child that hangs is killed, and the test fails
        writer.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    write.gate.set()
    writer.close()
    assert write.log[-1] == ("end", 1)


SLOW_WRITER = """
import signal, sys, threading, time
from pathlib import Path
import torch
from hookline.checkpoint.background import BackgroundWriter
from hookline.checkpoint.snapshot import About, Snapshot

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
folder = Path(sys.argv[1])
gate = folder / "gate"

def write(snapshot):
    print("writing", flush=True)
    while not gate.exists():
        time.sleep(0.01)
    (folder / "file").write_text(str(snapshot.weights["w"].tolist()))

def submit(writer, step=1):
    writer.submit(Snapshot(About(step, 0, 0, 0, 0.0, "run"), {"w": torch.ones(2)}))
"""


def test_an_error_of_the_program_is_shown_and_the_save_still_completes(tmp_path: Any) -> None:
    source = SLOW_WRITER + "\nsubmit(BackgroundWriter(write))\nraise ValueError('planted')\n"
    with start_script(source, args=[tmp_path]) as script:
        script.wait_for("writing")
        while "ValueError: planted" not in script.stderr:  # shown before the save is done
            assert script.process.poll() is None, script.stderr
        assert not (tmp_path / "file").exists()
        (tmp_path / "gate").touch()
        done = script.finish()
    assert done.returncode == 1
    assert (tmp_path / "file").read_text() == "[1.0, 1.0]"


def test_an_error_that_nobody_asked_for_is_on_stderr_at_the_end_of_the_program() -> None:
    source = SLOW_WRITER + "\nwriter = BackgroundWriter(lambda snapshot: 1 / 0)\nsubmit(writer)\n"
    done = run_script(source, args=["."])
    assert "The background save of a checkpoint failed: ZeroDivisionError" in done.stderr


def test_an_interrupt_while_waiting_loses_nothing(tmp_path: Any) -> None:
    source = (
        SLOW_WRITER
        + """
writer = BackgroundWriter(write)
submit(writer)
for attempt in range(3):
    try:
        print(f"waiting {attempt}", flush=True)
        writer.close()
        break
    except KeyboardInterrupt:
        print(f"interrupted {attempt}", flush=True)
print("file" if (folder / "file").exists() else "no file", writer._copies.size, flush=True)
"""
    )
    with start_script(source, args=[tmp_path]) as script:
        script.wait_for("writing")
        for attempt in range(2):
            script.wait_for(f"waiting {attempt}")
            script.send(signal.SIGINT)
            script.wait_for(f"interrupted {attempt}")
        script.wait_for("waiting 2")
        (tmp_path / "gate").touch()
        done = script.finish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("file 0\n")


def test_the_examples_are_right() -> None:
    assert doctest.testmod(background).failed == 0
    assert doctest.testmod(copies).failed == 0
