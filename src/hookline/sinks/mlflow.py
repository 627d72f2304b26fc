"""``MLflow``: a run in a local MLflow database, or at a tracking server."""

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

from hookline.errors import SetupError
from hookline.records import Record
from hookline.records.redact import redact_text
from hookline.run.paths import is_address
from hookline.sinks.mlflow_run import MlflowRun
from hookline.sinks.sink import RunInfo

RUN_ID = "hookline.run_id"
"""The tag by which a resumed run finds itself again."""
REACHED_WITHIN = 3.0
"""Seconds in which a tracking server must answer. MLflow's own calls would try for minutes."""


class MLflow:
    """Writes everything to MLflow, through a client of its own: a run that you have open yourself is left alone.

    ``tracking_uri`` is the address of a server or database, or a folder (then an SQLite database in it, and the
    artifacts beside). Without it the run goes where MLflow itself would put it: ``mlflow.set_tracking_uri()``,
    ``$MLFLOW_TRACKING_URI``, or else ``mlflow.db`` and ``mlruns/`` here; ``mlflow ui`` shows them. ``experiment`` is
    the project and ``run_name`` the name of the run, if they are not given.

    Numbers are metrics, the configuration is the parameters (``model.depth``), what happened is in tags
    (``hookline.event.stop``), all else are artifacts. What MLflow does not take in a name becomes ``-``, and a tag
    keeps the name. A database stores an infinity as the largest number. The run ends as FINISHED, FAILED or KILLED.

    A resumed run is found again by a tag. MLflow takes nothing back, so what it has of a metric and a step is not
    written again: the value is the same, as a resume is exact. A server that is gone is asked again with each
    batch of rows; what it missed is counted as dropped.

    >>> MLflow("http://127.0.0.1:5000", experiment="digits").experiment
    'digits'
    """

    def __init__(
        self,
        tracking_uri: str | Path | None = None,
        *,
        experiment: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        try:  # now, because it takes seconds: a short run would be over before its sink has begun
            _import_quietly()
        except ImportError as error:
            raise SetupError(f"MLflow(): mlflow is missing ({error}): pip install 'hookline[mlflow]'") from error
        if isinstance(tracking_uri, os.PathLike) and is_address(tracking_uri):
            raise SetupError(
                f"MLflow(tracking_uri={redact_text(str(tracking_uri))!r}): this is an address, of which pathlib has "
                f"made a path; give it as a string"
            )
        self.tracking_uri, self.experiment, self.run_name = tracking_uri, experiment, run_name
        self.tags = dict(tags or {})
        self._uri = ""
        self._run: MlflowRun | None = None

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
        """Every row is there as soon as it is written."""

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            _reach(self._uri)
            run.end()


def _find_experiment(client: Any, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifacts))
        except MlflowException:  # another run may have made it just now
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _address(given: str | Path | None) -> tuple[str, str | None]:
    """Where the runs are; and where their artifacts are, if that is for us to say."""
    import mlflow

    if given is None:
        return str(mlflow.get_tracking_uri()), None
    if isinstance(given, str) and re.match(r"[a-z][\w+.\-]*:|(databricks|databricks-uc|uc)$", given):
        return given, None
    folder = Path(given).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()


def _reach(uri: str) -> None:
    """Raise soon if no server answers there, whatever its answer would be."""
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
        if not isinstance(why, ssl.SSLError):  # MLflow may have been told to trust it
            raise ConnectionError(f"no MLflow server answers at {bare.netloc}: {why}") from error


def _import_quietly() -> None:
    """MLflow reports to its makers how it is used, unless the environment says no. Here it says no, for a moment."""
    name = "MLFLOW_DISABLE_TELEMETRY"
    is_unset = name not in os.environ
    if is_unset:
        os.environ[name] = "true"
    try:
        import mlflow  # noqa: F401

        with suppress(ImportError):  # an older one, which reports nothing
            from mlflow import telemetry

            telemetry.set_telemetry_client()
    finally:
        if is_unset:
            os.environ.pop(name, None)
