"""``MLflow``: a run in a local MLflow database or on a tracking server."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from hookline.errors import ArgumentError, SetupError
from hookline.events.arguments import checked_init
from hookline.records import Record
from hookline.records.finding import Finding
from hookline.records.redact import redact_text
from hookline.run.paths import is_address
from hookline.sinks.mlflow_run import MlflowRun
from hookline.sinks.sink import RunInfo

RUN_ID = "hookline.run_id"
"""Tag by which a resumed run finds its MLflow run."""
REACHED_WITHIN = 3.0
"""Seconds in which a tracking server must respond. MLflow itself would retry for minutes."""


class MLflow:
    """Write all records to MLflow.

    The sink uses its own client, so a run that you have started with MLflow is not affected. Numbers become
    metrics, the configuration becomes parameters, events become tags, and all other records become artifacts.
    The sink needs ``hookline[mlflow]``.

    Args:
        tracking_uri: URI of a server or database, or a folder for an SQLite database and the artifacts.
            ``None``: the URI that MLflow itself would use (``mlflow.set_tracking_uri()``,
            ``$MLFLOW_TRACKING_URI``, or ``mlflow.db`` and ``mlruns/`` in the working directory).
        experiment: Name of the experiment. ``None``: the project of the run.
        run_name: Name of the MLflow run. ``None``: the name of the run.
        tags: Additional tags of the MLflow run.

    Raises:
        SetupError: If MLflow is not installed.
        ArgumentError: If ``tracking_uri`` is a ``Path`` made from a URI.

    Example:
        >>> MLflow("http://127.0.0.1:5000", experiment="digits").experiment
        'digits'
    """

    @checked_init
    def __init__(
        self,
        tracking_uri: str | Path | None = None,
        *,
        experiment: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        try:  # The import takes seconds. A short run would end before its sink has started.
            _import_quietly()
        except ImportError as error:
            raise SetupError(f"MLflow(): mlflow is missing ({error}): pip install 'hookline[mlflow]'") from error
        if isinstance(tracking_uri, os.PathLike) and is_address(tracking_uri):
            raise ArgumentError(
                f"MLflow(tracking_uri={redact_text(str(tracking_uri))!r}): this is an address, of which pathlib has "
                f"made a path. Give it as a string."
            )
        self.tracking_uri, self.experiment, self.run_name = tracking_uri, experiment, run_name
        self.tags = dict(tags or {})
        self._uri = ""
        self._run: MlflowRun | None = None

    def preflight(self) -> list[Finding]:
        """Return a finding if nothing listens at the address of the server."""
        try:
            _reach(_address(self.tracking_uri)[0])
        except Exception as error:
            advice = "Start the server, or correct MLflow(tracking_uri=…). Training continues without it."
            return [Finding("warning", "sink", f"MLflow cannot be reached: {error}.", advice)]
        return []

    def start(self, info: RunInfo) -> None:
        from mlflow.tracking import MlflowClient

        self._run = None
        self._uri, artifacts = _address(self.tracking_uri)
        _reach(self._uri)
        client = MlflowClient(self._uri)
        experiment = _find_experiment(client, self.experiment or info.project, artifacts)
        found = client.search_runs([experiment], f"tags.`{RUN_ID}` = '{info.run_id}'", max_results=1)
        if found:
            run = found[0]
            client.update_run(run.info.run_id, status="RUNNING")
        else:
            began = int(info.started.timestamp() * 1000)
            tags = {RUN_ID: info.run_id, **self.tags}
            run = client.create_run(experiment, began, tags, self.run_name or info.name)
        self._run = MlflowRun(client, run, info, is_found=bool(found))

    def write(self, records: Sequence[Record]) -> None:
        if self._run is not None:
            _reach(self._uri)
            self._run.write(records)

    def flush(self) -> None:
        """Do nothing: ``write`` is not buffered."""

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            _reach(self._uri)
            run.end()


def _find_experiment(client: Any, name: str, artifacts: str | None) -> str:
    """Return the id of the experiment, and create it if it does not exist."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifacts))
        except MlflowException:  # Another run may have created it just now.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _address(given: str | Path | None) -> tuple[str, str | None]:
    """Return the URI of the runs, and that of their artifacts if Hookline chooses it."""
    import mlflow

    if given is None:
        return str(mlflow.get_tracking_uri()), None
    if isinstance(given, str) and re.match(r"[a-z][\w+.\-]*:|(databricks|databricks-uc|uc)$", given):
        return given, None
    folder = Path(given).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _reach(uri: str) -> None:
    """Raise ``ConnectionError`` quickly if no server responds at the URI."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    try:
        with urlopen(Request(bare.geturl(), method="HEAD"), timeout=REACHED_WITHIN):
            pass
    except HTTPError as error:
        error.close()
    except (URLError, TimeoutError) as error:
        why = getattr(error, "reason", error)
        if not isinstance(why, ssl.SSLError):  # MLflow may be configured to trust the certificate.
            raise ConnectionError(f"no MLflow server answers at {bare.netloc}: {why}") from error


def _import_quietly() -> None:
    """Import MLflow with its telemetry disabled, and restore the environment."""
    name = "MLFLOW_DISABLE_TELEMETRY"
    is_unset = name not in os.environ
    if is_unset:
        os.environ[name] = "true"
    try:
        import mlflow  # noqa: F401

        with suppress(ImportError):  # Older versions have no telemetry.
            from mlflow import telemetry

            telemetry.set_telemetry_client()
    finally:
        if is_unset:
            os.environ.pop(name, None)
