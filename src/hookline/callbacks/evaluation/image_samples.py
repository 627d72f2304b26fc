"""``ImageSamples``: images with the predictions of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from hookline.callbacks.evaluation._image_grid import Tile, as_pictures, in_rows, overlay, sheet
from hookline.errors import ArgumentError, MetricError, NotAvailableError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.run.targets import TARGET_KEYS, find_target

if TYPE_CHECKING:
    from hookline.run import Run

STAGES = ("train", "val", "test")
MAX_COUNT = 64
INPUTS = ("image", "images", "pixel_values", "inputs", "input", "x")
OUTPUTS = ("logits", "out", "outputs", "predictions")
"""Likely keys of the inputs and outputs in a dict."""


class ImageSamples(Callback):
    """Log a grid of input images with the predictions of the model.

    The grid is logged as ``val/samples`` at the first batch of each loader. It depends on the targets and
    outputs:

    - Classes: the true and the predicted class below each image, with a green frame if they are equal, else red.
    - Masks of classes: one row each for the images, the true masks and the predicted masks.
    - Outputs that are images: a second row with the outputs.

    Labels are in the caption. With Pillow installed, they are also drawn into the image.

    Args:
        every: How often to log images. The callback logs at the first evaluation after each ``every``.
        count: Number of images, from 1 to 64.
        stage: Stage to log: ``"train"`` (at the end of a log interval), ``"val"`` or ``"test"``.
        inputs: Function of ``run`` that returns the tensor of images. Default: the first element of a batch
            that is a tuple, or ``"image"``, ``"pixel_values"``, ``"x"``, … of a dict.
        targets: Function of ``run`` that returns the targets. Default: the last element of a batch that is a
            tuple, or ``"labels"``, ``"mask"``, … of a dict.
        predictions: Function of ``run`` that returns a class or a string per image. Default: the index of the
            largest value of ``run.outputs``.
        masks: Function of ``run`` that returns predicted masks of classes, of shape (count, height, width).
        classes: Names of the classes, by index.
        normalize: Scale an image with values outside of 0 to 1 to that range.

    Raises:
        ArgumentError: If ``count`` or ``stage`` is not one of the values above.

    Example:
        >>> import torch
        >>> from tempfile import mkdtemp
        >>> from pathlib import Path
        >>> from hookline.loop import Trainer
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        >>> train, val = ([(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))] for _ in range(2))
        >>> folder = mkdtemp()
        >>> samples = ImageSamples(classes=("cat", "dog", "owl"))
        >>> trainer = Trainer(max_duration="2ep", callbacks=[samples], folder=folder)
        >>> result = trainer.fit(model, train, val, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> sorted(path.name for path in Path(folder, "media/val/samples").iterdir())
        ['step-00000001.png', 'step-00000002.png']
    """

    writes = ()  # The callback logs an image, not a metric.
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
        if not 1 <= count <= MAX_COUNT:
            raise ArgumentError(f"ImageSamples(count={count!r}): must be from 1 to {MAX_COUNT}.")
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
            self._schedule.fired(run.clock)  # A second fit already has the images of the first.
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
        """Return whether to log now, and count it. Always true for a test and outside of training."""
        if self._schedule is None or run.stage == "test" or not run.is_training_run:
            return True
        if not self._schedule.due(run.clock):
            return False
        self._schedule.fired(run.clock)
        return True

    # -- what ----------------------------------------------------------------------------------

    def _log(self, run: Run) -> None:
        """Log the images of the current batch."""
        given = self.inputs(run) if self.inputs else _part(run.batch, 0, INPUTS)
        pictures = as_pictures(self._first(given), normalize=self.normalize) if isinstance(given, Tensor) else None
        if pictures is None:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise MetricError(
                f"ImageSamples: {shape} is not a batch of images, which has the shape (count, channels, height, width) "
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
        """Return the true and the predicted masks, or ``None`` if the model does not predict masks."""
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
        # A single channel holds the logits of a binary mask.
        return true, outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()

    def _log_masks(self, run: Run, pictures: Tensor, true: Tensor | None, predicted: Tensor) -> None:
        """Log rows of images, true masks and predicted masks."""
        rows = [[Tile(picture, ("image",)) for picture in pictures]]
        for masks, label in ((true, "true"), (predicted, "predicted")):
            if masks is not None:
                rows.append([Tile(overlay(p, mask), (label,)) for p, mask in zip(pictures, masks, strict=True)])
        shown = sorted(
            {number for masks in (true, predicted) if masks is not None for number in masks.flatten().tolist()}
        )
        names = ", ".join(self._name(number) for number in shown)
        run.log_image("samples", sheet(rows), caption=f"images, {'true, ' * (true is not None)}predicted: {names}")

    def _log_labels(self, run: Run, pictures: Tensor, targets: Any, outputs: Any) -> None:
        """Log images with labels, and a second row if the outputs are images."""
        predicted = self._texts(self.predictions(run) if self.predictions else _largest(outputs), len(pictures))
        true = self._texts(targets if _is_column(targets, len(pictures)) else None, len(pictures))
        can_be_right = not (isinstance(targets, Tensor) and targets.is_floating_point())
        tiles = [_tile(*parts, can_be_right=can_be_right) for parts in zip(pictures, predicted, true, strict=True)]
        drawn = as_pictures(outputs, normalize=self.normalize) if isinstance(outputs, Tensor) else None
        rows = in_rows(tiles) if drawn is None else [tiles, [Tile(picture, ("output",)) for picture in drawn]]
        labels = [_label(*parts) for parts in zip(predicted, true, strict=True)]
        run.log_image("samples", sheet(rows), caption=", ".join(filter(None, labels)))

    def _texts(self, items: Any, count: int) -> list[str]:
        """Return a string per image, which is empty if nothing is known about the image."""
        if items is None:
            return [""] * count
        texts = [self._name(item) for item in self._first(items)]
        if len(texts) != count:
            raise MetricError(f"ImageSamples: {len(texts)} predictions for {count} images; give one for each")
        return texts

    def _first(self, values: Any) -> Any:
        """Return the first samples of a batch; tensors are detached and on the CPU."""
        if isinstance(values, Tensor):
            return values[: self.count].detach().cpu() if values.ndim else values.detach().cpu()
        return values[: self.count] if isinstance(values, list | tuple) else values

    def _name(self, item: Any) -> str:
        """Return the name of a class, or the value as a string."""
        value = item.item() if isinstance(item, Tensor) and item.numel() == 1 else item
        if isinstance(value, int) and 0 <= value < len(self.classes):
            return str(self.classes[value])
        return f"{value:.3g}" if isinstance(value, float) else str(value)


def _part(whole: Any, place: int, keys: Sequence[str]) -> Any:
    """Return an element of a batch or of outputs, by index or by a likely key, or ``None``."""
    if isinstance(whole, Mapping) or any(hasattr(whole, key) for key in keys):
        found = [whole.get(key) if isinstance(whole, Mapping) else getattr(whole, key, None) for key in keys]
        return next((value for value in found if value is not None), None)
    if isinstance(whole, tuple | list):
        return whole[place] if whole and (place == 0 or len(whole) > 1) else None
    return whole if place == 0 else None


def _target(batch: Any) -> Any:
    """Return the targets by the rule of the loss. For an object, look up its attributes."""
    of_object = not isinstance(batch, Mapping | tuple | list)
    return _part(batch, -1, TARGET_KEYS) if of_object else find_target(batch)


def _outputs(run: Run) -> Any:
    """Return the outputs of the model, or ``None`` if they are not available."""
    try:
        return run.outputs
    except NotAvailableError:  # A custom loop need not set the outputs.
        return None


def _tile(picture: Tensor, predicted: str, true: str, *, can_be_right: bool) -> Tile:
    """Return an image with its labels and whether the prediction is correct."""
    lines = tuple(f"{name}: {text}" for name, text in (("true", true), ("pred", predicted)) if text)
    return Tile(picture, lines, predicted == true if predicted and true and can_be_right else None)


def _label(predicted: str, true: str) -> str:
    """Return the labels of an image for the caption."""
    return f"{predicted} (true: {true})" if predicted and true and predicted != true else predicted or true


def _largest(outputs: Any) -> Any:
    """Return the class or number of each sample, or ``None`` for other outputs."""
    if not isinstance(outputs, Tensor) or outputs.ndim > 2 or not outputs.ndim:
        return None
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return list(outputs.argmax(1)) if outputs.is_floating_point() else None
    return list(outputs.reshape(-1))


def _is_column(targets: Any, count: int) -> bool:
    """True if there is one value or string per image."""
    if isinstance(targets, Tensor):
        return targets.ndim > 0 and targets.numel() == len(targets) == count
    return isinstance(targets, list | tuple) and len(targets) == count
