"""``MlflowRun``: one run of MLflow that is open, and how each kind of row gets there."""

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
"""The tag by which MLflow knows which artifacts are tables."""
STATUSES = {"exception": "FAILED", "interrupt": "KILLED", "preempt": "KILLED"}
"""How a run ends after such an event; else as FINISHED."""
MOST_METRICS = 1000
"""So many go in one call; and so many tags or parameters:"""
MOST_TAGS = 100
MOST_SLENDER = 256
"""So many times as long as wide may be a picture with a step: of a longer one MLflow's small copy has no width."""
LONGEST_PARAM = 6000
LONGEST_TAG = 5000


class MlflowRun:
    """Every part of ``write`` can be done twice and leaves the same, so that a batch can be tried again."""

    def __init__(self, client: Any, run: Any, info: RunInfo, *, is_found: bool) -> None:
        self._client, self._info = client, info
        self._id: str = run.info.run_id
        self._is_found = is_found
        """It was begun by an earlier process: some of the rows may be there."""
        self._status = "FINISHED"
        self._began = info.started.timestamp()
        self._keys = Keys("hookline.name.", run.data.tags)
        self._tags: dict[str, str] = {}
        """To be set."""
        self._steps: dict[str, set[int]] = {}
        self._sent: set[tuple[str, int]] = set()
        """The numbers of a batch of which something was refused: a store of files would have them twice."""
        self._images = self._find_images() if is_found else set[tuple[str, int]]()
        self._tables: list[dict[str, str]] = json.loads(run.data.tags.get(TABLES, "[]"))
        self._log_params(run)

    def write(self, records: Sequence[Record]) -> None:
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
        for record in artifacts:  # one that MLflow does not take must cost neither the numbers nor the others
            try:
                self._keep(record)
            except Exception as error:
                refused = refused or error
        self._set_tags(self._keys)
        if refused is not None:
            raise refused
        self._sent.clear()

    def end(self) -> None:
        self._client.set_terminated(self._id, self._status)

    def _note(self, row: EventRow) -> None:
        self._status = STATUSES.get(row.name, self._status)
        if row.name == "resume":  # the seconds go on where they were, the time of day does not
            self._began = self._info.started.timestamp() - row.seconds
        self._tags[f"hookline.event.{row.name}"] = f"step {row.step}" + (f": {row.text}" if row.text else "")

    # -- tags, parameters, metrics -------------------------------------------------------------

    def _log_params(self, run: Any) -> None:
        """MLflow allows no change of a parameter: what differs after a resume is in a tag."""
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
        from mlflow.entities import RunTag

        self._tags |= keys.new_tags
        tags = [RunTag(key, shortened(text, LONGEST_TAG)) for key, text in self._tags.items()]
        for start in range(0, len(tags), MOST_TAGS):
            self._client.log_batch(self._id, tags=tags[start : start + MOST_TAGS], synchronous=True)
        self._tags.clear()
        keys.new_tags.clear()

    def _metric(self, row: MetricRow, value: float) -> list[Any]:
        """One, or none if it is there already."""
        from mlflow.entities import Metric

        key = self._keys(row.name)
        if self._is_found and key not in self._steps:
            self._steps[key] = {metric.step for metric in self._client.get_metric_history(self._id, key)}
        if row.step in self._steps.get(key, ()) or (key, row.step) in self._sent:
            return []
        return [Metric(key, float(value), self._milliseconds(row), row.step)]

    def _milliseconds(self, row: Record) -> int:
        return round((self._began + row.seconds) * 1000)

    # -- artifacts -----------------------------------------------------------------------------

    def _keep(self, row: Record) -> None:
        """As an artifact, such as ``texts/val/sample/00000100.txt``."""
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
        """With its step, so that MLflow can show how it changes. The files get new names each time."""
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
        files = (Path(file.path).name for file in self._client.list_artifacts(self._id, "images"))
        found = (re.match(r"(.+)\+step\+(\d+)\+timestamp\+.*\.png$", name) for name in files)
        return {(match[1].replace("~", "/"), int(match[2])) for match in found if match}

    def _keep_file(self, row: FileRow) -> None:
        path = Path(row.file) if self._info.folder is None else self._info.folder / row.file
        if path.exists():
            self._client.log_artifact(self._id, str(path), f"files/{self._keys(row.name)}")
        else:
            logger.warning("MLflow does not get the file %s: %s is not there any more", row.name, path)

    def _keep_table(self, row: TableRow, place: str) -> None:
        """As ``log_table`` writes it; that one itself would add the rows to those that are there."""
        rows = [[_plain(cell) for cell in cells] for cells in row.rows]
        self._client.log_text(self._id, json.dumps({"columns": row.columns, "data": rows}), place)
        entry = {"path": place, "type": "table"}
        if entry not in self._tables and len(json.dumps([*self._tables, entry])) <= LONGEST_TAG:
            self._tables.append(entry)
            self._tags[TABLES] = json.dumps(self._tables)


def _plain(cell: Any) -> Any:
    """JSON has no NaN; pandas makes one of a null."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None if math.isnan(cell) else str(cell)
    return cell
