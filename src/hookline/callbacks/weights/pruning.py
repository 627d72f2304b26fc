"""``Pruning``: set more and more weights to zero during training."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from hookline.callbacks._ending import has_returned
from hookline.callbacks._modules import check_patterns, matches, patterns_of
from hookline.callbacks.weights._masks import METHODS, Rule, next_masks, pruned_share
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

Amount = float | Callable[[int], float]


class Pruning(Callback):
    """Prune weights during training: set them to zero and keep them at zero.

    Pruned weights get no gradient, and they are set to zero again after each step. The model keeps its shapes and
    parameter names, so checkpoints and exports contain the zeros and load without this callback. Each pruning logs
    ``pruning/sparsity``.

    Args:
        pruning_fn: Method of ``torch.nn.utils.prune``: ``"l1_unstructured"`` (the smallest weights),
            ``"random_unstructured"``, ``"ln_structured"`` (the channels with the smallest norm),
            ``"random_structured"``, or a subclass of ``BasePruningMethod``.
        amount: How much to prune each time: a fraction, a number of weights or channels, or a function of the number
            of finished epochs. If a number exceeds what is left, Hookline warns and does not prune.
        parameters: Names or patterns of the parameters to prune, such as ``"encoder"`` or ``"encoder.*.weight"``. A
            name includes everything inside it. ``None``: all parameters with two or more dimensions except
            embeddings.
        use_global_unstructured: Compare the weights of all parameters together. ``False``: prune each parameter
            separately. Structured methods always prune separately.
        pruning_dim: Dimension of the channels, for structured methods.
        pruning_norm: Order of the norm of a channel, for ``"ln_structured"``.
        of: ``"remaining"``: ``amount`` refers to the weights that are left, so that 0.5 twice prunes 75 %. ``"all"``:
            ``amount`` is how much of all weights is pruned afterwards.
        every: How often to prune.
        start: When pruning starts. ``None``: at the first ``every``.
        end: When pruning ends. ``None``: with the run.
        lottery_ticket: Restore the weights from the start of training after each pruning (``True``), or the weights
            from a later time such as ``"1ep"``. This also resets the optimizer state, but not the learning rates.

    Raises:
        ArgumentError: If the method is unknown, or an amount is out of range.
        SetupError: If a pattern matches nothing, or a parameter cannot be pruned in this way.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[Pruning(amount=0.5)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.history["pruning/sparsity"]
        [0.5, 0.75]
    """

    role = "constrain"
    state_depends_on = ("parameters",)

    def __init__(
        self,
        pruning_fn: str | type[BasePruningMethod] = "l1_unstructured",
        amount: Amount = 0.5,
        *,
        parameters: Sequence[str] | str | None = None,
        use_global_unstructured: bool = True,
        pruning_dim: int = 0,
        pruning_norm: float | str = 2,
        of: Literal["remaining", "all"] = "remaining",
        every: str | Duration = "1ep",
        start: str | Duration | None = None,
        end: str | Duration | None = None,
        lottery_ticket: bool | str | Duration = False,
    ) -> None:
        self.amount = amount if callable(amount) else checked_amount(amount)
        self.rule = _rule(pruning_fn, use_global_unstructured, pruning_dim, pruning_norm, of_all=of == "all")
        self.parameters = None if parameters is None else patterns_of(parameters, "Pruning", "parameters")
        self.every = Duration.parse(every, "Pruning(every=…)")
        self.start = None if start is None else Duration.parse(start, "Pruning(start=…)")
        self.end = None if end is None else Duration.parse(end, "Pruning(end=…)")
        self.rewinds = lottery_ticket is not False
        where = "Pruning(lottery_ticket=…)"
        self.rewind_to = None if isinstance(lottery_ticket, bool) else Duration.parse(lottery_ticket, where)
        self.writes = ("weights", "pruning/sparsity", *(("optimizer",) if self.rewinds else ()))
        self._schedule = Schedule(Duration(1, "st"))
        self._hooks: dict[str, Any] = {}
        self.masks: dict[str, Tensor] = {}
        """Masks by parameter name: True for weights to keep."""
        self._ticket: dict[str, Tensor] | None = None
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None
        """Pruned parameters and their masks in the same dtype. ``None``: make them again."""

    @property
    def sparsity(self) -> float:
        """Fraction of the prunable weights that is pruned."""
        return pruned_share(self.masks)

    # -- hooks ---------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if run.is_training_run:
            self._check(run.model)
            self._schedule = Schedule(self.every.of(run.max_duration))

    def on_model_ready(self, run: Run) -> None:
        if not run.is_training_run:
            return
        self._pairs = None
        self._schedule.fired(run.clock)
        self._take_ticket(run)
        self._stop_gradients(run)

    def on_rollback(self, run: Run) -> None:
        self._pairs = None
        self._schedule.fired(run.clock)

    def on_train_epoch_start(self, run: Run) -> None:
        # Parameters that were frozen before may be trained now.
        self._stop_gradients(run)

    def on_train_step_end(self, run: Run) -> None:
        if self.masks:
            self._zero(run)
        if self.rewinds and self._ticket is None:
            self._take_ticket(run)
        if self._schedule.due(run.clock):
            self._prune_when_due(run)

    def on_train_epoch_end(self, run: Run) -> None:
        if self.rewinds and self._ticket is None:
            self._take_ticket(run)
        # The clock counts an epoch after the last step of the epoch.
        if self._schedule.due(run.clock):
            self._prune_when_due(run)

    def on_train_end(self, run: Run) -> None:
        named = dict(run.model.named_parameters())
        if any(bool(named[name].detach()[~mask.to(named[name].device)].any()) for name, mask in self.masks.items()):
            # Restored weights may be older than the masks.
            self._zero(run)

    def on_teardown(self, run: Run) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}
        if has_returned(run):
            self._zero(run)
        self._pairs = None

    def _prune_when_due(self, run: Run) -> None:
        """Prune if the run is between ``start`` and ``end``."""
        self._schedule.fired(run.clock)
        is_over = self.end is not None and not _reached(run, self.end, or_at=True)
        if (self.start is None or _reached(run, self.start)) and not is_over:
            self._prune(run)

    # -- pruning -------------------------------------------------------------------------------

    def _prune(self, run: Run) -> None:
        """Prune once and log the sparsity."""
        amount = checked_amount(self.amount(run.clock.epoch)) if callable(self.amount) else self.amount
        self.masks = next_masks(self.rule, self._chosen(run.model), self.masks, amount)
        self._pairs = None
        if self._ticket is not None:
            self._rewind(run, self._ticket)
        self._zero(run)
        share = self.sparsity
        logger.info("pruned: %.1f %% of the weights are zero", 100 * share)
        run.log({"pruning/sparsity": share}, reduce="last")

    def _chosen(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that may be pruned, by name."""
        named = dict(model.named_parameters())
        if self.parameters is not None:
            check_patterns(self.parameters, list(named), "Pruning", "parameters", kind="parameter")
            names = [name for name in named if matches(name, self.parameters)]
        else:
            names = list(_prunable(model))
        if not names:
            raise SetupError("Pruning: the model has no parameter of two dimensions or more; name some: parameters=[…]")
        return {name: named[name] for name in names}

    def _check(self, model: nn.Module) -> None:
        """Raise before the first step for wrong patterns, missing channels or too large an amount."""
        chosen = self._chosen(model)
        shapes = {name: torch.ones(weight.shape, dtype=torch.bool, device="meta") for name, weight in chosen.items()}
        units = {name: self.rule.units(ones).numel() for name, ones in shapes.items()}
        if self.rule.together:
            units = {"the model": sum(units.values())}
        for name, count in units.items():
            if isinstance(self.amount, int) and self.amount > count:
                raise SetupError(
                    f"Pruning(amount={self.amount}): {name} has only {count} to prune; give a fraction, or less"
                )

    @torch.no_grad()
    def _zero(self, run: Run) -> None:
        """Set the pruned weights to zero."""
        if self._pairs is None:
            named = dict(run.model.named_parameters())
            of: list[Tensor] = [named[name] for name in self.masks]
            self._pairs = of, [mask.to(weight) for weight, mask in zip(of, self.masks.values(), strict=True)]
        weights, masks = self._pairs
        if weights:
            torch._foreach_mul_(weights, masks)

    def constrain_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set pruned weights to zero in other tensors, such as an average."""
        for name, mask in self.masks.items():
            if name in weights:
                weights[name].mul_(mask.to(weights[name].device))

    def _stop_gradients(self, run: Run) -> None:
        """Mask the gradients of pruned weights.

        Otherwise they would count in the gradient norm and change the effect of clipping.
        """
        for name, parameter in self._chosen(run.model).items():
            if name not in self._hooks and parameter.requires_grad:
                self._hooks[name] = parameter.register_hook(self._masked(name))  # type: ignore[no-untyped-call]

    def _masked(self, name: str) -> Callable[[Tensor], Tensor | None]:
        """Return a gradient hook for this parameter."""

        def mask_gradient(gradient: Tensor) -> Tensor | None:
            mask = self.masks.get(name)
            return None if mask is None or gradient.is_sparse else gradient * mask.to(gradient.device)

        return mask_gradient

    def _take_ticket(self, run: Run) -> None:
        """Save the weights that each pruning restores, when their time is reached."""
        if self.rewinds and self._ticket is None and (self.rewind_to is None or _reached(run, self.rewind_to)):
            self._ticket = {name: weight.detach().clone() for name, weight in run.model.named_parameters()}

    @torch.no_grad()
    def _rewind(self, run: Run, ticket: Mapping[str, Tensor]) -> None:
        """Restore the saved weights and reset the optimizer state."""
        for name, parameter in run.model.named_parameters():
            parameter.copy_(ticket[name])
            for optimizer in run.optimizers.values():
                optimizer.state.pop(parameter, None)

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"masks": dict(self.masks), "ticket": None if self._ticket is None else dict(self._ticket)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.masks = {name: mask.clone() for name, mask in state["masks"].items()}
        ticket = state["ticket"] if self.rewinds else None
        self._ticket = None if ticket is None else {name: weight.clone() for name, weight in ticket.items()}
        self._pairs = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which does not belong to a model."""
        return {**self.__dict__, "_hooks": {}, "_pairs": None}


def checked_amount(amount: Any) -> float:
    """Return the amount if it is a fraction from 0 to 1 or an integer."""
    whole = isinstance(amount, int) and not isinstance(amount, bool)
    if not (whole or (isinstance(amount, float) and amount <= 1)) or amount < 0:
        raise ArgumentError(
            f"Pruning(amount={amount!r}): must be a fraction from 0.0 to 1.0, or a number of weights >= 0."
        )
    return amount  # type: ignore[no-any-return]


def _rule(fn: str | type[BasePruningMethod], together: bool, dim: int, norm: Any, *, of_all: bool) -> Rule:
    """Return the rule for these arguments."""
    if isinstance(fn, str):
        if fn not in METHODS:
            close = get_close_matches(fn, METHODS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Use one of {', '.join(METHODS)}."
            raise ArgumentError(f"Pruning(pruning_fn={fn!r}): no such method. {hint}")
        method = METHODS[fn]
    elif isinstance(fn, type) and issubclass(fn, BasePruningMethod):
        method = fn
    else:
        raise ArgumentError(f"Pruning(pruning_fn={fn!r}): must be a name, or a subclass of BasePruningMethod.")
    structured = getattr(method, "PRUNING_TYPE", "") == "structured"
    options: dict[str, Any] = {"dim": dim} if structured else {}
    if fn == "ln_structured":
        options["n"] = norm
    _check_method(method, ("amount", *options))
    return Rule(method, together and not structured, of_all, options)


def _check_method(method: type[BasePruningMethod], given: Sequence[str]) -> None:
    """Raise if the pruning method cannot be called with the arguments that it will get."""
    who, call = method.__name__, ", ".join(f"{name}=…" for name in given)
    if inspect.isabstract(method):
        missing = ", ".join(sorted(method.__abstractmethods__))
        raise ArgumentError(f"Pruning(pruning_fn={who}): the class is abstract. Write its {missing}.")
    try:
        inspect.signature(method).bind(**dict.fromkeys(given))
    except TypeError as error:
        raise ArgumentError(
            f"Pruning(pruning_fn={who}): it is made as {who}({call}), which its __init__ does not take: {error}. "
            f"Write def __init__(self, {', '.join(given)})."
        ) from None


def _prunable(model: nn.Module) -> Iterator[str]:
    """Yield the parameters with two or more dimensions, except embedding tables."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, kinds)}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter.is_floating_point() and id(parameter) not in tables:
            yield name


def _reached(run: Run, when: Duration, *, or_at: bool = False) -> bool:
    """True if the time is reached. With ``or_at``: True until the time, inclusive."""
    when = when.of(run.max_duration)
    elapsed = run.clock.elapsed(when.unit)
    return elapsed <= when.value if or_at else elapsed >= when.value
