"""The arguments, the state and the control that callbacks of transformers see, and the host that keeps their books."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Final

from hookline.errors import RegistrationError, SetupError
from hookline.interop.adapter import Host
from hookline.interop.facade import Facade, of_host
from hookline.interop.names import MetricNames
from hookline.interop.transformers.support import VERSIONS
from hookline.progress import Duration
from hookline.run import Run

NAMES: Final = MetricNames((("eval_", "val/"), ("test_", "test/")), bare="train/")
SWITCHES: Final = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


class TransformersHost(Host):
    """The books of what all callbacks of transformers share: logs, the best metric, the switches."""

    library = "Hugging Face"
    shows = "the arguments, state and control"
    state = ("best_metric", "best_step", "log_history")

    def _start(self) -> None:
        super()._start()
        self.best_metric: float | None = None
        self.best_step: int | None = None
        self.log_history: list[dict[str, Any]] = []
        self.logs: dict[str, Any] = {}
        """The logs for ``on_log``, and the ``metrics`` for ``on_evaluate``."""
        self.names = replace(NAMES, given=self.aliases)
        self.is_stopping = False
        self.switches = dict.fromkeys(("should_save", "should_evaluate", "should_log"), False)
        self._in_step = False
        self.epoch = 0.0
        self.max_steps = self.max_epochs = 0
        self._rate: Any = None
        self._loss = [0.0, 0, 0]  # The sum over steps, their number, and the last step that is in it.
        self._began = (0, 0, 0.0)  # The step, the sample and the seconds when training began.

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self.run_name: str | None = run.name
        self.args = _view(Arguments, "training_args", "TrainingArguments", self)
        self.has_own_args = True
        self.state_view = _view(State, "trainer_callback", "TrainerState", self)
        self.control = _view(Control, "trainer_callback", "TrainerControl", self)
        self._refresh(run)

    def use(self, args: Any) -> None:
        """Show the ``TrainingArguments`` of the user in place of those of the run.

        Args:
            args: The arguments.

        Raises:
            RegistrationError: If another callback of the run has come with other arguments.
        """
        if not self.has_own_args and args is not self.args:
            raise RegistrationError(
                f"hl.interop.adapt(args=…): {self.run.member.name} has other TrainingArguments than a callback before "
                f"it. Callbacks of one run share them: give both the same object."
            )
        self.args, self.has_own_args = args, False

    @property
    def best_metric_name(self) -> str | None:
        """Name of the metric of ``best_metric``, as transformers has it."""
        return with_prefix(self.args.metric_for_best_model)

    # -- switches --------------------------------------------------------------------------------

    def switch(self, name: str, value: bool) -> None:
        """Act on a switch of ``TrainerControl``, for the callback that is called now.

        Args:
            name: Name of the switch.
            value: Its new value.
        """
        author = self.run.member.name
        if name == "should_epoch_stop":
            if value:
                raise AttributeError(
                    f"{author} set control.should_epoch_stop: Hookline cannot leave an epoch. Stop training with "
                    f"control.should_training_stop, or limit epochs with hl.LimitBatches."
                )
        elif name == "should_training_stop":
            if value and not self.is_stopping:
                self.is_stopping = True
                self.run.stop(f"{author} set control.should_training_stop")
            elif not value and self.control.should_training_stop:
                raise AttributeError(
                    f"{author} set control.should_training_stop = False: Hookline cannot take back a request to stop."
                )
        else:
            # Transformers resets these switches when a step begins, so those that are set before have no effect.
            if value and self._in_step and not self.switches[name]:
                if name == "should_evaluate":
                    self.run.request_eval()
                elif name == "should_save":
                    self.run.request_save()
            self.switches[name] = value

    def take(self, control: Any) -> None:
        """Take over the switches of another ``TrainerControl`` that a hook has returned."""
        for name in SWITCHES:
            if getattr(control, name) != getattr(self.control, name):
                self.switch(name, getattr(control, name))

    # -- the books -------------------------------------------------------------------------------

    def _refresh(self, run: Run) -> None:
        """Take over the objects that hooks get by name: some are made only when a run has begun."""
        optimizer = next(iter(run.optimizers.values()), None)
        loaders = run.loaders
        self.keywords = {
            "model": run.model,
            "processing_class": None,
            "optimizer": optimizer,
            "lr_scheduler": run.schedulers[0].scheduler if run.schedulers else None,
            "train_dataloader": loaders.get("train"),
            "eval_dataloader": loaders.get("val" if run.stage == "train" else run.stage),
        }
        steps, epochs = _planned(run)
        # The length of an epoch is not known while it begins.
        self.max_steps, self.max_epochs = steps or self.max_steps, epochs or self.max_epochs
        if self.has_own_args:
            self.args.fill(run, optimizer)

    on_model_ready = _refresh

    def on_train_start(self, run: Run) -> None:
        self._refresh(run)
        clock = run.clock
        self.epoch = _epoch(run)
        self._began = clock.step, clock.sample, clock.seconds
        self._loss = [0.0, 0, clock.step]

    def on_train_epoch_start(self, run: Run) -> None:
        self._refresh(run)

    def on_train_step_start(self, run: Run) -> None:
        self._in_step = True
        if any(self.switches.values()):
            self.switches = dict.fromkeys(self.switches, False)

    def on_optimizer_step_end(self, run: Run) -> None:
        # The scheduler has not stepped yet: transformers logs this learning rate.
        self._rate = run.optimizer.param_groups[0]["lr"]

    def on_train_step_end(self, run: Run) -> None:
        self.epoch = _epoch(run)

    def on_metrics_ready(self, run: Run) -> None:
        found = run.metrics.new()
        logs = {
            self.names.theirs(name): value for name, value in found.items() if not name.startswith(("val/", "test/"))
        }
        if "train/loss" in found:
            step = run.clock.step
            self._loss[0] += found["train/loss"] * (step - self._loss[2])
            self._loss[1:] = [self._loss[1] + step - self._loss[2], step]
        if self._rate is not None:
            logs["learning_rate"] = float(self._rate)
        self._log(logs)

    def on_eval_start(self, run: Run) -> None:
        self._refresh(run)

    def on_eval_end(self, run: Run) -> None:
        stage, clock = run.stage, run.clock.eval
        logs = {
            self.names.theirs(name): value for name, value in run.metrics.new().items() if name.startswith(f"{stage}/")
        }
        prefix = "eval" if stage == "val" else "test"
        self._log(logs | _speed(prefix, clock.seconds, clock.sample, clock.batch))

    def around_eval(self, run: Run) -> Iterator[None]:
        """Change the best metric after all callbacks have compared with the one before."""
        yield
        value = self.logs.get(self.best_metric_name or "")
        if value is None or not run.is_training_run or run.stage != "val":
            return
        is_better = self.best_metric is None or (
            value > self.best_metric if self.args.greater_is_better else value < self.best_metric
        )
        if is_better:
            self.best_metric, self.best_step = value, run.clock.step

    def on_train_end(self, run: Run) -> None:
        step, sample, seconds = self._began
        clock, (total, steps, _) = run.clock, self._loss
        logs = _speed("train", clock.seconds - seconds, clock.sample - sample, clock.step - step)
        logs["total_flos"] = 0.0
        if steps:
            logs["train_loss"] = total / steps
        self._log(logs)

    def _log(self, logs: dict[str, Any]) -> None:
        self.logs = {**logs, "epoch": self.epoch}
        self.log_history.append({**self.logs, "step": self.run.clock.step})

    on_predict_start = on_eval_start

    def on_predict_end(self, run: Run) -> None:
        clock = run.clock.eval
        self.logs = _speed("test", clock.seconds, clock.sample, clock.batch)


class _View(Facade):
    """An object of a dataclass of transformers, with the values of the run.

    Args:
        host: The host of the run.
    """

    stands_for: ClassVar[str] = f"transformers (tested with {VERSIONS})"
    original: ClassVar[Any]
    """The dataclass."""
    _host: TransformersHost

    def __init__(self, host: TransformersHost) -> None:
        super().__init__(host)
        made = {its.name: its.default_factory() for its in fields(self.original) if its.default_factory is not MISSING}
        self._set(**made)

    def __deepcopy__(self, memo: object) -> Any:
        """Return an object of the dataclass itself, which has no effect on the run."""
        return self._plain()

    def _plain(self, **others: Any) -> Any:
        made = object.__new__(self.original)
        names = [its.name for its in fields(self.original) if its.name not in others]
        vars(made).update({name: deepcopy(getattr(self, name)) for name in names}, **others)
        return made


def _view(kind: type[_View], module: str, name: str, host: TransformersHost) -> Any:
    original = getattr(import_module(f"transformers.{module}"), name)
    return type(name, (kind, original), {"original": original})(host)


def _switch(name: str) -> property:
    """Return a switch of ``TrainerControl`` that can be set."""
    return property(
        lambda self: self._host.switches.get(name, False),
        lambda self, value: self._host.switch(name, value),
    )


class Control(_View):
    """``TrainerControl``: a switch acts when a callback sets it."""

    should_save = _switch("should_save")
    should_evaluate = _switch("should_evaluate")
    should_log = _switch("should_log")
    should_epoch_stop = _switch("should_epoch_stop")

    @property
    def should_training_stop(self) -> bool:
        host = self._host
        is_last = 0 < host.max_steps <= host.run.clock.step
        return host.is_stopping or is_last or host.run.ending is not None

    @should_training_stop.setter
    def should_training_stop(self, value: bool) -> None:
        self._host.switch("should_training_stop", value)


class State(_View):
    """``TrainerState``: the progress of the run."""

    epoch = of_host("epoch")
    global_step = of_host("run.clock.step")
    max_steps = of_host("max_steps")
    num_train_epochs = of_host("max_epochs")

    @property
    def logging_steps(self) -> int:
        return _in_steps(self._host.run.log_every, 1)

    @property
    def eval_steps(self) -> int:
        return _in_steps(self._host.run.eval_every, 1)

    train_batch_size = of_host("args.per_device_train_batch_size")
    num_input_tokens_seen = of_host("run.clock.token")
    log_history = of_host("log_history")
    best_metric = of_host("best_metric")
    best_global_step = of_host("best_step")

    @property
    def is_world_process_zero(self) -> bool:
        return self._host.run.rank == 0

    is_local_process_zero = is_world_process_zero

    @property
    def stateful_callbacks(self) -> dict[str, Any]:
        return {}


class Arguments(_View):
    """``TrainingArguments``: what the run knows, and the defaults of transformers for everything else."""

    def fill(self, run: Run, optimizer: Any) -> None:
        """Take over what the run knows.

        Args:
            run: The run.
            optimizer: Its first optimizer, or ``None``.
        """
        utils = import_module("transformers.trainer_utils")
        strategy, limit = utils.IntervalStrategy, run.max_duration
        group = optimizer.param_groups[0] if optimizer is not None else {}
        self._set(
            project=run.project,
            num_train_epochs=float(limit.value) if limit is not None and limit.unit == "ep" else 0.0,
            max_steps=int(limit.value) if limit is not None and limit.unit == "st" else -1,
            per_device_train_batch_size=_batch_size(run, "train"),
            per_device_eval_batch_size=_batch_size(run, "val"),
            gradient_accumulation_steps=run.accumulate,
            learning_rate=float(group.get("lr", 0.0)),
            weight_decay=float(group.get("weight_decay", 0.0)),
            optim=type(optimizer).__name__ if optimizer is not None else "none",
            lr_scheduler_type=type(run.schedulers[0].scheduler).__name__ if run.schedulers else "constant",
            max_grad_norm=0.0,
            bf16=run.precision == "bf16",
            fp16=run.precision == "fp16",
            logging_strategy=_strategy(strategy, run.log_every, strategy.EPOCH),
            logging_steps=_in_steps(run.log_every, 1),
            eval_strategy=_strategy(strategy, run.eval_every, strategy.NO),
            eval_steps=_in_steps(run.eval_every, 1),
            save_strategy=utils.SaveStrategy.NO,
            metric_for_best_model="loss",
            greater_is_better=False,
            seed=run.config.get("seed", 42),
            report_to=[],
            disable_tqdm=False,
            do_train=run.is_training_run,
            do_eval="val" in run.loaders,
            do_predict=run.entry_point == "predict",
            local_rank=run.rank if run.world_size > 1 else -1,
        )

    @property
    def output_dir(self) -> str:
        run = self._host.run
        if not run.has_folder:
            raise SetupError(
                f"{run.member.name} reads args.output_dir to write files, but the run has no folder. Write "
                f"hl.fit(…, folder='…')."
            )
        folder = run.folder / "transformers"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _plain(self, **others: Any) -> Any:
        return super()._plain(**others) if self._host.run.has_folder else super()._plain(output_dir=None, **others)

    def to_dict(self) -> dict[str, Any]:
        return self._plain().to_dict()  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return str(self._plain())

    __repr__ = __str__

    @property
    def run_name(self) -> str | None:
        return self._host.run_name

    @run_name.setter
    def run_name(self, value: str | None) -> None:
        self._host.run_name = value

    device = of_host("run.device")

    _setup_devices = device

    @property
    def n_gpu(self) -> int:
        return int(self._host.run.device.type == "cuda")

    _n_gpu = n_gpu

    world_size = of_host("run.world_size")
    process_index = of_host("run.rank")

    local_process_index = process_index

    @property
    def parallel_mode(self) -> Any:
        modes = import_module("transformers.training_args").ParallelMode
        return modes.DISTRIBUTED if self._host.run.world_size > 1 else modes.NOT_DISTRIBUTED

    @property
    def should_log(self) -> bool:
        return self._host.run.rank == 0

    should_save = should_log

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        return self.per_device_eval_batch_size


def with_prefix(metric: str | None) -> str | None:
    """Return the name of a metric of an evaluation with its prefix, as transformers completes it."""
    return metric if metric is None or metric.startswith("eval_") else f"eval_{metric}"


def _epoch(run: Run) -> float:
    batches, length = run.clock.passes
    return batches / length


def _planned(run: Run) -> tuple[int, int]:
    """Return the number of steps and epochs of the whole training, 0 if they are not known."""
    limit, batches = run.max_duration, run.num_batches("train")
    if limit is None or limit.unit not in ("ep", "st"):
        return 0, 0
    per_epoch = math.ceil(batches / run.accumulate) if batches else 0
    if limit.unit == "ep":
        return math.ceil(limit.value * per_epoch), math.ceil(limit.value)
    return int(limit.value), math.ceil(limit.value / per_epoch) if per_epoch else 0


def _in_steps(every: Duration | None, default: int) -> int:
    return int(every.value) if every is not None and every.unit == "st" else default


def _strategy(strategies: Any, every: Duration | None, without: Any) -> Any:
    if every is None:
        return without
    return strategies.EPOCH if every.unit == "ep" else strategies.STEPS


def _batch_size(run: Run, stage: str) -> int:
    loader = run.loaders.get(stage)
    first = next(iter(loader.values()), None) if isinstance(loader, Mapping) else loader
    return getattr(first, "batch_size", None) or 1


def _speed(prefix: str, seconds: float, samples: int, steps: int) -> dict[str, Any]:
    return {
        f"{prefix}_runtime": round(seconds, 4),
        f"{prefix}_samples_per_second": round(samples / max(seconds, 1e-9), 3),
        f"{prefix}_steps_per_second": round(steps / max(seconds, 1e-9), 3),
    }
