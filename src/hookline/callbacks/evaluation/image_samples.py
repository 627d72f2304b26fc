"""``ImageSamples``: pictures of what the model was given, and what it made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from hookline.callbacks.evaluation.tiles import Tile, as_pictures, in_rows, overlay, sheet
from hookline.errors import MetricError, NotAvailableError, RegistrationError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.run.targets import TARGET_KEYS, find_target

if TYPE_CHECKING:
    from hookline.run import Run

STAGES = ("train", "val", "test")
MOST = 64
INPUTS = ("image", "images", "pixel_values", "inputs", "input", "x")
OUTPUTS = ("logits", "out", "outputs", "predictions")
"""Under one of these a dict has what is looked for."""


class ImageSamples(Callback):
    """Logs ``val/samples``: the first ``count`` pictures of an evaluation, with what the model says about them.

    Classes: the predicted one stands under each picture, in a green frame if it is right and a red one if not. Masks
    of classes: three rows, with the pictures, the true masks and the predicted ones. Outputs that are pictures: a row
    below. Labels are in the caption, and, if Pillow is installed, in the picture.

    It fires at the first batch of each loader of the first evaluation after each ``every``; with ``stage="train"``
    when metrics are ready. Pictures are the first part of a batch that is a tuple, or ``"image"``, ``"pixel_values"``
    or ``"x"`` of one that is a dict; targets the last part, or ``"labels"``, ``"mask"``, … of a dict; a prediction is
    the largest of ``run.outputs``. For anything else give functions of ``run``: ``inputs`` and ``targets`` for
    tensors, ``predictions`` for a class or a text for each picture, ``masks`` for masks of classes. ``classes`` are
    the names of the classes. With ``normalize`` a picture with values outside of 0 to 1 is scaled to them.

    >>> import torch
    >>> from tempfile import mkdtemp
    >>> from pathlib import Path
    >>> from hookline.loop import Trainer
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    >>> data = [(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))]
    >>> folder = mkdtemp()
    >>> samples = ImageSamples(classes=("cat", "dog", "owl"))
    >>> trainer = Trainer(max_duration="2ep", callbacks=[samples], folder=folder)
    >>> result = trainer.fit(model, data, data, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    >>> sorted(path.name for path in Path(folder, "media/val/samples").iterdir())
    ['step-00000001.png', 'step-00000002.png']
    """

    writes = ()  # it logs no metric
    optional = True
    ranks = "zero"

    state = ("_schedule",)
    shares_state = True

    def __init__(
        self,
        every: str | Duration = "1ep",
        count: int = 8,
        stage: Literal["train", "val", "test"] = "val",
        *,
        inputs: Callable[[Run], Any] | None = None,
        targets: Callable[[Run], Any] | None = None,
        predictions: Callable[[Run], Any] | None = None,
        masks: Callable[[Run], Any] | None = None,
        classes: Sequence[str] = (),
        normalize: bool = True,
    ) -> None:
        if stage not in STAGES:
            raise RegistrationError(f"ImageSamples(stage={stage!r}): use one of {', '.join(STAGES)}")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
            raise RegistrationError(f"ImageSamples(count={count!r}): give a number from 1 to {MOST}")
        self.every = Duration.parse(every, "ImageSamples(every=…)")
        self.count = count
        self.stage = stage
        self.inputs = inputs
        self.targets = targets
        self.predictions = predictions
        self.masks = masks
        self.classes = tuple(classes)
        self.normalize = normalize
        self._schedule: Schedule | None = None
        self._is_due = self._is_wanted = False

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        has_length = self.every.unit != "dur" or run.max_duration is not None
        self._schedule = Schedule(self.every.of(run.max_duration)) if has_length else None
        if self._schedule is not None:
            self._schedule.fired(run.clock)  # a second fit has the pictures of the first
        self._is_due = self._is_wanted = False

    def on_metrics_ready(self, run: Run) -> None:
        if self.stage == "train" and self._fires(run):
            self._log(run)

    def on_eval_start(self, run: Run) -> None:
        self._is_due = run.stage == self.stage and self._fires(run)

    def on_eval_loader_start(self, run: Run) -> None:
        self._is_wanted = self._is_due

    def on_eval_batch_end(self, run: Run) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self._log(run)

    def _fires(self, run: Run) -> bool:
        """Whether it is due; always for a test, and for an evaluation that is no part of training."""
        if self._schedule is None or run.stage == "test" or not run.is_training_run:
            return True
        if not self._schedule.due(run.clock):
            return False
        self._schedule.fired(run.clock)
        return True

    # -- what ----------------------------------------------------------------------------------

    def _log(self, run: Run) -> None:
        given = self.inputs(run) if self.inputs else _part(run.batch, 0, INPUTS)
        pictures = as_pictures(self._first(given), normalize=self.normalize) if isinstance(given, Tensor) else None
        if pictures is None:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise MetricError(
                f"ImageSamples: {shape} is no batch of pictures, which has the shape (count, channels, height, width) "
                f"and 1, 3 or 4 channels; say where they are: ImageSamples(inputs=lambda run: run.batch['image'])"
            )
        targets = self._first(self.targets(run) if self.targets else _target(run.batch))
        outputs = self._first(_part(_outputs(run), 0, OUTPUTS))
        true, predicted = self._masks(run, pictures, targets, outputs)
        if predicted is not None:
            self._log_masks(run, pictures, true, predicted)
        else:
            self._log_labels(run, pictures, targets, outputs)

    def _masks(self, run: Run, pictures: Tensor, targets: Any, outputs: Any) -> tuple[Tensor | None, Tensor | None]:
        """The true and the predicted masks, if it is masks that are predicted."""
        true = targets.squeeze(1) if isinstance(targets, Tensor) and targets.ndim == 4 else targets
        if not isinstance(true, Tensor) or true.ndim != 3 or true.is_floating_point():
            true = None
        if self.masks is not None:
            found = self._first(self.masks(run))
            if not isinstance(found, Tensor) or found.ndim != 3 or len(found) != len(pictures):
                raise MetricError("ImageSamples(masks=…): give a tensor of classes in the shape (count, height, width)")
            return true, found
        if true is None or not isinstance(outputs, Tensor) or outputs.ndim != 4:
            return None, None
        # One channel is a mask of one class, as logits.
        return true, outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()

    def _log_masks(self, run: Run, pictures: Tensor, true: Tensor | None, predicted: Tensor) -> None:
        rows = [[Tile(picture, "picture") for picture in pictures]]
        for masks, label in ((true, "true"), (predicted, "predicted")):
            if masks is not None:
                rows.append([Tile(overlay(p, mask), label) for p, mask in zip(pictures, masks, strict=True)])
        shown = sorted(
            {number for masks in (true, predicted) if masks is not None for number in masks.flatten().tolist()}
        )
        names = ", ".join(self._name(number) for number in shown)
        run.log_image("samples", sheet(rows), caption=f"pictures, {'true, ' * (true is not None)}predicted: {names}")

    def _log_labels(self, run: Run, pictures: Tensor, targets: Any, outputs: Any) -> None:
        predicted = self._texts(self.predictions(run) if self.predictions else _largest(outputs), len(pictures))
        true = self._texts(targets if _is_column(targets, len(pictures)) else None, len(pictures))
        can_be_right = not (isinstance(targets, Tensor) and targets.is_floating_point())
        tiles = [_tile(*parts, can_be_right=can_be_right) for parts in zip(pictures, predicted, true, strict=True)]
        drawn = as_pictures(outputs, normalize=self.normalize) if isinstance(outputs, Tensor) else None
        rows = in_rows(tiles) if drawn is None else [tiles, [Tile(picture) for picture in drawn]]
        run.log_image("samples", sheet(rows), caption=", ".join(tile.label for tile in tiles if tile.label))

    def _texts(self, items: Any, count: int) -> list[str]:
        """A text for each picture, which is empty if nothing is known."""
        if items is None:
            return [""] * count
        texts = [self._name(item) for item in self._first(items)]
        if len(texts) != count:
            raise MetricError(f"ImageSamples: {len(texts)} predictions for {count} pictures; give one for each")
        return texts

    def _first(self, values: Any) -> Any:
        """The first of a batch; tensors without their history and device."""
        if isinstance(values, Tensor):
            return values[: self.count].detach().cpu() if values.ndim else values.detach().cpu()
        return values[: self.count] if isinstance(values, list | tuple) else values

    def _name(self, item: Any) -> str:
        value = item.item() if isinstance(item, Tensor) and item.numel() == 1 else item
        if isinstance(value, int) and 0 <= value < len(self.classes):
            return str(self.classes[value])
        return f"{value:.3g}" if isinstance(value, float) else str(value)


def _part(whole: Any, place: int, keys: Sequence[str]) -> Any:
    """A part of a batch or of outputs: by position, or by a likely name; alone it is the whole, if it comes first."""
    if isinstance(whole, Mapping) or any(hasattr(whole, key) for key in keys):
        found = [whole.get(key) if isinstance(whole, Mapping) else getattr(whole, key, None) for key in keys]
        return next((value for value in found if value is not None), None)
    if isinstance(whole, tuple | list):
        return whole[place] if whole and (place == 0 or len(whole) > 1) else None
    return whole if place == 0 else None


def _target(batch: Any) -> Any:
    """By the rule that the loss goes by; an object has it as an attribute."""
    of_object = not isinstance(batch, Mapping | tuple | list)
    return _part(batch, -1, TARGET_KEYS) if of_object else find_target(batch)


def _outputs(run: Run) -> Any:
    try:
        return run.outputs
    except NotAvailableError:  # an own loop need not say what it computed
        return None


def _tile(picture: Tensor, predicted: str, true: str, *, can_be_right: bool) -> Tile:
    if not predicted or not true:
        return Tile(picture, predicted or true)
    is_right = predicted == true
    return Tile(picture, predicted if is_right else f"{predicted} (is {true})", is_right if can_be_right else None)


def _largest(outputs: Any) -> Any:
    """The class of each sample, or its number; ``None`` if the outputs are something else."""
    if not isinstance(outputs, Tensor) or outputs.ndim > 2 or not outputs.ndim:
        return None
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return list(outputs.argmax(1)) if outputs.is_floating_point() else None
    return list(outputs.reshape(-1))


def _is_column(targets: Any, count: int) -> bool:
    """One value or text for each picture."""
    if isinstance(targets, Tensor):
        return targets.ndim > 0 and targets.numel() == len(targets) == count
    return isinstance(targets, list | tuple) and len(targets) == count
