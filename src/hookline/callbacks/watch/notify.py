"""``Notify``: messages by mail or webhook."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from hookline.callbacks.watch._notify import (
    Alert,
    Outbox,
    Security,
    Transport,
    apprise_of,
    compose,
    mail_of,
    webhook_of,
)
from hookline.errors import ArgumentError, MetricError, error_text
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

EVENTS = ("end", "stop", "exception", "epoch")
SECRETS = ("apprise", "password", "webhook")


class Notify(Callback):
    """Send a message by mail, webhook or apprise when a run ends or fails, or a metric raises an alert.

    A message has the reason, the steps, epochs and time, and the newest metrics. Messages are sent in the
    background from a bounded queue, so that a slow or missing server never stalls training. Hookline warns
    about messages that could not be sent and lists them in ``unsent``. Passwords and addresses of services are
    never part of a checkpoint, a log or a ``repr``.

    Args:
        on: When to send: ``"end"`` (training has ended, or a callback or Ctrl-C has stopped it), ``"stop"``
            (only if it was stopped, or by a signal), ``"exception"`` (it failed) and ``"epoch"`` (an epoch is
            complete).
        webhook: URL that receives a POST request with JSON. Its ``"text"`` suits Slack, Mattermost and Teams.
        apprise: Addresses of other services, such as ``"discord://…"`` or ``"tgram://…"``. Needs ``hookline[notify]``.
        to: Mail addresses of the recipients.
        smtp: Mail server, for example ``"mail.example.org:587"``. The default port depends on ``security``.
        sender: Mail address of the sender. ``None``: ``user`` if it is an address, else the first recipient.
        user: User name for the mail server.
        password: Password for the mail server.
        security: Encryption of the connection: ``"starttls"``, ``"ssl"`` or ``"none"``.
        when: Conditions on metrics, such as ``"val/loss > 2"`` or ``"val/acc >= 0.9"``.
            Hookline sends a message when a condition becomes true, and again only after it was false.
            Evaluation metrics are checked after each evaluation, others at each log interval.
        metrics: Names or patterns of the metrics in the message.
        attach: Patterns of files in the run's folder to attach to a mail. Default: the figures of
            ``HistoryPlot``.
        timeout: Seconds that each attempt may take, and that the end of the run waits for unsent messages. At
            most 600.

    Raises:
        ArgumentError: If neither a webhook nor a mail server is given, or an argument is invalid.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> notify = Notify(webhook="http://127.0.0.1:9/nobody-listens", on="end", when="val/loss > 100")
        >>> trainer = Trainer(max_duration="1ep", callbacks=[notify], folder=False, name="demo/one")
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> notify.unsent[0].partition(":")[0]
        "'demo/one has ended' was not sent by webhook at 127.0.0.1"
    """

    optional = True
    in_replay = False
    ranks = "zero"
    state = ("holding", "epochs")
    role = "send"

    def __init__(
        self,
        on: str | Iterable[str] = ("end", "stop", "exception"),
        *,
        webhook: str | None = None,
        apprise: str | Iterable[str] = (),
        to: str | Iterable[str] = (),
        smtp: str | None = None,
        sender: str | None = None,
        user: str | None = None,
        password: str | None = None,
        security: Security = "starttls",
        when: str | Iterable[str] = (),
        metrics: str | Iterable[str] = ("train/*", "val/*", "test/*"),
        attach: str | Iterable[str] = ("plots/*",),
        timeout: float = 10.0,
    ) -> None:
        for name in SECRETS:  # Secrets must not be part of the callback's identity in a checkpoint.
            self._arguments.pop(name, None)
        self.on = _strings(on)
        if not set(self.on) <= set(EVENTS):
            raise ArgumentError(f"Notify(on={self.on!r}): use one or more of {', '.join(EVENTS)}.")
        if not 0 < timeout <= 600:
            raise ArgumentError(f"Notify(timeout={timeout!r}): must be > 0 and at most 600 seconds.")
        self.when = tuple(map(Alert.parse, _strings(when)))
        self.metrics = _strings(metrics)
        self.attach = _strings(attach)
        self.timeout = timeout
        self._transports: list[Transport] = []
        if webhook is not None:
            self._transports.append(webhook_of(webhook, timeout))
        if to or smtp:
            self._transports.append(mail_of(_strings(to), smtp, sender, user, password, security, timeout))
        if apprise:
            self._transports.append(apprise_of(_strings(apprise)))
        if not self._transports:
            raise ArgumentError(
                "Notify(): has no address. Give webhook='https://…', or to='me@example.org' and smtp='…'."
            )
        self.reads = ("*", *dict.fromkeys(alert.metric for alert in self.when))
        self._outboxes: list[Outbox] = []
        self.holding: list[str] = []
        """Alerts whose condition is true and whose message was sent."""
        self.epochs = 0
        """Number of complete epochs for which a message was sent, if requested."""

    @property
    def unsent(self) -> list[str]:
        """Messages of the last run that were not sent: one line each, with the reason."""
        return [line for outbox in self._outboxes for line in outbox.unsent]

    @property
    def sent(self) -> int:
        """Number of messages that were sent in the last run."""
        return sum(outbox.sent for outbox in self._outboxes)

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._outboxes = [Outbox(transport) for transport in self._transports]

    def on_metrics_ready(self, run: Run) -> None:
        self._check(run, [alert for alert in self.when if not _is_of_evaluation(alert.metric)])

    def on_eval_end(self, run: Run) -> None:
        if run.is_training_run:
            self._check(run, [alert for alert in self.when if alert.metric.startswith(f"{run.stage}/")])

    def on_epoch_end(self, run: Run) -> None:
        if run.clock.epoch <= self.epochs:  # The epoch was cut short.
            return
        self.epochs = run.clock.epoch
        if "epoch" in self.on:
            self._notify(run, "epoch", f"has done epoch {run.clock.epoch:,}")

    def on_fit_end(self, run: Run) -> None:
        for alert in self.when:
            if alert.metric not in run.metrics:
                logger.warning("Notify(when=%r): no callback has logged %s", alert.text, alert.metric)
        stop = _stop_reason(run)
        if stop is not None and {"stop", "end"}.intersection(self.on):
            self._notify(run, "stop", "was stopped", stop)
        elif stop is None and "end" in self.on:
            self._notify(run, "end", "has ended")

    def on_preempt(self, run: Run) -> None:
        if "stop" in self.on and run.is_training_run:
            self._notify(run, "stop", "was stopped", run.stop_reason)

    def on_exception(self, run: Run) -> None:
        error = run.exception
        if "exception" in self.on and run.is_training_run:
            self._notify(run, "exception", "has failed", error_text(error))

    def on_teardown(self, run: Run) -> None:
        for outbox in self._outboxes:
            outbox.end()
        deadline = monotonic() + self.timeout
        for outbox in self._outboxes:
            outbox.close(deadline)

    # -- what ----------------------------------------------------------------------------------

    def _check(self, run: Run, alerts: list[Alert]) -> None:
        """Check alerts, and send a message for each condition that has become true."""
        for alert in alerts:
            try:
                value = run.metrics[alert.metric]
            except (KeyError, MetricError):  # The metric has not been logged yet.
                continue
            if not isinstance(value, int | float):
                raise MetricError(f"Notify(when={alert.text!r}): {alert.metric} is an array; give a number's name")
            held = alert.text in self.holding
            if alert.holds(value) and not held:
                self.holding = [*self.holding, alert.text]
                self._notify(run, "alert", f"{alert.text}", f"{alert.metric} = {value:.6g}")
            elif held and not alert.holds(value):
                self.holding = [text for text in self.holding if text != alert.text]

    def _notify(self, run: Run, event: str, headline: str, why: str = "") -> None:
        """Put a message into every outbox."""
        # The values of an evaluation that is just ending are not in the history yet.
        new = run.metrics.new() if event == "alert" else {}
        message = compose(run, event, headline, why=why, metrics=self.metrics, attach=self.attach, new=new)
        for outbox in self._outboxes:
            outbox.put(message)


def _strings(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return a tuple of strings. A single string is one element."""
    return (given,) if isinstance(given, str) else tuple(given)


def _is_of_evaluation(metric: str) -> bool:
    """True for metrics of evaluations."""
    return metric.startswith(("val/", "test/"))


def _stop_reason(run: Run) -> str | None:
    """Return why the run was stopped early, or ``None`` if it was not."""
    try:
        return run.stop_reason
    except AttributeError:
        return None
