"""``MlflowRun``: an open MLflow run, and how it stores each kind of record."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from hookline.records import EventRow, FileRow, ImageRow, MetricRow, Record, TableRow, TextRow, to_json
from hookline.sinks.names import Keys, flat, shortened
from hookline.sinks.sink import RunInfo

logger = logging.getLogger("hookline")

TABLES = "mlflow.loggedArtifacts"
"""Tag in which MLflow lists the artifacts that are tables."""
STATUSES = {"exception": "FAILED", "interrupt": "KILLED", "preempt": "KILLED"}
"""Final status after an event. Otherwise it is FINISHED."""
MOST_METRICS = 1000
"""Maximum number of metrics per call. ``MOST_TAGS`` is that of tags and parameters."""
MOST_TAGS = 100
MOST_SLENDER = 256
"""Maximum aspect ratio of an image with a step.

The thumbnail of a longer image would have no width.
"""
LONGEST_PARAM = 6000
LONGEST_TAG = 5000


class MlflowRun:
    """An open MLflow run. Every part of ``write`` is idempotent, so that a batch can be retried."""

    def __init__(self, client: Any, run: Any, info: RunInfo, *, is_found: bool) -> None:
        self._client, self._info = client, info
        self._id: str = run.info.run_id
        self._is_found = is_found
        """True if an earlier process created the run, which may already have some of the rows."""
        self._status = "FINISHED"
        self._began = info.started.timestamp()
        self._keys = Keys("hookline.name.", run.data.tags)
        self._tags: dict[str, str] = {}
        """Tags that are not set yet."""
        self._steps: dict[str, set[int]] = {}
        self._sent: set[tuple[str, int]] = set()
        """Metrics of a batch that failed partly. A file store would have them twice."""
        self._images = self._find_images() if is_found else set[tuple[str, int]]()
        self._tables: list[dict[str, str]] = json.loads(run.data.tags.get(TABLES, "[]"))
        self._log_params(run)

    def write(self, records: Sequence[Record]) -> None:
        """Write records. An artifact that fails does not affect the other records."""
        metrics: list[Any] = []
        artifacts: list[Record] = []
        for record in records:
            if isinstance(record, MetricRow) and not isinstance(record.value, list):
                metrics += self._metric(record, record.value)
            elif isinstance(record, EventRow):
                self._note(record)
            else:
                artifacts.append(record)
        for start in range(0, len(metrics), MOST_METRICS):
            some = metrics[start : start + MOST_METRICS]
            self._client.log_batch(self._id, metrics=some, synchronous=True)
            self._sent.update((metric.key, metric.step) for metric in some)
        refused: Exception | None = None
        for record in artifacts:  # An artifact that MLflow rejects must not cost the other records.
            try:
                self._keep(record)
            except Exception as error:
                refused = refused or error
        self._set_tags(self._keys)
        if refused is not None:
            raise refused
        self._sent.clear()

    def end(self) -> None:
        """Set the final status."""
        self._client.set_terminated(self._id, self._status)

    def _note(self, row: EventRow) -> None:
        """Record an event in the status and in a tag."""
        self._status = STATUSES.get(row.name, self._status)
        if row.name == "resume":  # The seconds of the run continue, the time of day does not.
            self._began = self._info.started.timestamp() - row.seconds
        self._tags[f"hookline.event.{row.name}"] = f"step {row.step}" + (f": {row.text}" if row.text else "")

    # -- tags, parameters, metrics -------------------------------------------------------------

    def _log_params(self, run: Any) -> None:
        """Log the configuration.

        MLflow parameters cannot change, so changes after a resume become tags.
        """
        from mlflow.entities import Param

        keys = Keys("hookline.param.", run.data.tags)
        known: Mapping[str, str] = run.data.params
        params = {keys(name): shortened(text, LONGEST_PARAM) for name, text in flat(self._info.config)}
        new = [Param(key, text) for key, text in params.items() if key not in known]
        for start in range(0, len(new), MOST_TAGS):
            self._client.log_batch(self._id, params=new[start : start + MOST_TAGS], synchronous=True)
        changed = {key: text for key, text in params.items() if known.get(key, text) != text}
        self._tags |= {f"hookline.now.{key}": text for key, text in changed.items()}
        self._set_tags(keys)

    def _set_tags(self, keys: Keys) -> None:
        """Set all pending tags."""
        from mlflow.entities import RunTag

        self._tags |= keys.new_tags
        tags = [RunTag(key, shortened(text, LONGEST_TAG)) for key, text in self._tags.items()]
        for start in range(0, len(tags), MOST_TAGS):
            self._client.log_batch(self._id, tags=tags[start : start + MOST_TAGS], synchronous=True)
        self._tags.clear()
        keys.new_tags.clear()

    def _metric(self, row: MetricRow, value: float) -> list[Any]:
        """Return the metric in a list, which is empty if MLflow already has it."""
        from mlflow.entities import Metric

        key = self._keys(row.name)
        if self._is_found and key not in self._steps:
            self._steps[key] = {metric.step for metric in self._client.get_metric_history(self._id, key)}
        if row.step in self._steps.get(key, ()) or (key, row.step) in self._sent:
            return []
        return [Metric(key, float(value), self._milliseconds(row), row.step)]

    def _milliseconds(self, row: Record) -> int:
        """Return the time of a row in milliseconds."""
        return round((self._began + row.seconds) * 1000)

    # -- artifacts -----------------------------------------------------------------------------

    def _keep(self, row: Record) -> None:
        """Store a record as an artifact, such as ``texts/val/sample/00000100.txt``."""
        place = f"{self._keys(row.name)}/{row.step:08d}"
        match row:
            case ImageRow():
                self._keep_image(row)
            case FileRow():
                self._keep_file(row)
            case TableRow():
                self._keep_table(row, f"tables/{place}.json")
            case TextRow():
                self._client.log_text(self._id, row.text, f"texts/{place}.txt")
            case MetricRow():
                self._client.log_text(self._id, to_json(row), f"arrays/{place}.json")
            case _:
                self._client.log_text(self._id, to_json(row), f"histograms/{place}.json")

    def _keep_image(self, row: ImageRow) -> None:
        """Store an image with its step, so that MLflow can show how it changes.

        MLflow uses a new file name each time, so an image that exists is skipped.
        """
        from PIL import Image

        key = re.sub(r"[^a-zA-Z0-9_\-./ ]", "-", self._keys(row.name))
        if (key, row.step) not in self._images:
            image = Image.open(BytesIO(row.read(self._info.folder)))
            when = self._milliseconds(row)
            if max(image.size) > MOST_SLENDER * min(image.size):
                self._client.log_image(self._id, image, f"images/{key}/{row.step:08d}.png")
            else:
                self._client.log_image(self._id, image, key=key, step=row.step, timestamp=when, synchronous=True)
            self._images.add((key, row.step))

    def _find_images(self) -> set[tuple[str, int]]:
        """Return the names and steps of the images that MLflow already has."""
        files = (Path(file.path).name for file in self._client.list_artifacts(self._id, "images"))
        found = (re.match(r"(.+)\+step\+(\d+)\+timestamp\+.*\.png$", name) for name in files)
        return {(match[1].replace("~", "/"), int(match[2])) for match in found if match}

    def _keep_file(self, row: FileRow) -> None:
        """Store a file, or warn if it no longer exists."""
        path = Path(row.file) if self._info.folder is None else self._info.folder / row.file
        if path.exists():
            self._client.log_artifact(self._id, str(path), f"files/{self._keys(row.name)}")
        else:
            logger.warning("MLflow does not get the file %s: %s is not there any more", row.name, path)

    def _keep_table(self, row: TableRow, place: str) -> None:
        """Store a table in the format of ``log_table``, which itself would append to existing rows."""
        rows = [[_plain(cell) for cell in cells] for cells in row.rows]
        self._client.log_text(self._id, json.dumps({"columns": row.columns, "data": rows}), place)
        entry = {"path": place, "type": "table"}
        if entry not in self._tables and len(json.dumps([*self._tables, entry])) <= LONGEST_TAG:
            self._tables.append(entry)
            self._tags[TABLES] = json.dumps(self._tables)


def _plain(cell: Any) -> Any:
    """Return a cell as a JSON value. JSON has no NaN, and pandas reads null as NaN."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None if math.isnan(cell) else str(cell)
    return cell
