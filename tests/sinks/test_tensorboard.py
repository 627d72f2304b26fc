"""What is written is what TensorBoard's own readers find, once each, also after kills and resumes."""

from __future__ import annotations

import math
import os
import resource
import signal
import struct
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter

from hookline.callbacks import Checkpointer
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Trainer
from hookline.records import (
    EventRow,
    FileRow,
    HistogramRow,
    ImageRow,
    MetricRow,
    Record,
    TableRow,
    TextRow,
    from_json,
)
from hookline.sinks.pump import Pump, SinkReport
from hookline.sinks.sink import RunInfo
from hookline.sinks.tensorboard import TensorBoard
from hookline.testing import TinyModel, run_script, tiny_data
from tests.support import fit

with warnings.catch_warnings():  # a library inside TensorBoard says that it is old
    warnings.simplefilter("ignore", DeprecationWarning)
    from tensorboard.plugin_util import markdown_to_safe_html

ALL = dict.fromkeys(("scalars", "images", "histograms", "compressedHistograms", "tensors", "audio"), 0)


def info(
    folder: Path | None, step: int = 0, earlier: Sequence[Record] = (), *, run_id: str = "a1", **more: Any
) -> RunInfo:
    given: dict[str, Any] = {"config": {}, "started": datetime.now(UTC), **more}
    return RunInfo("digits", "first", run_id, folder, step=step, earlier=lambda: iter(earlier), **given)


def write(sink: TensorBoard, about: RunInfo, rows: Sequence[Record]) -> SinkReport:
    """In the thread of a pump, as in a run."""
    pump = Pump("TensorBoard", sink)
    pump.start(about)
    pump.put(rows)
    report = pump.close(60)
    assert report.is_well, str(report)
    return report


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance=ALL)
    found.Reload()
    return found


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def text(found: EventAccumulator, tag: str) -> str:
    (event,) = found.Tensors(tag)
    (written,) = event.tensor_proto.string_val
    return written.decode()


def places(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Tag and step of all that each of TensorBoard's two readers finds: that of scripts, and that of its pages."""
    old = read(folder)
    tags = old.Tags()
    found = [(tag, event.step) for tag in tags["scalars"] for event in old.Scalars(tag)]
    found += [(tag, event.step) for tag in tags["images"] for event in old.Images(tag)]
    found += [(tag, event.step) for tag in tags["histograms"] for event in old.Histograms(tag)]
    found += [(tag, event.step) for tag in tags["tensors"] for event in old.Tensors(tag)]
    new = plugin_event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    new.Reload()
    shown = [(tag, event.step) for tag in new.Tags()["tensors"] for event in new.Tensors(tag)]
    return {"script": sorted(found), "page": sorted(place for place in shown if not place[0].startswith("_hparams_"))}


def losses(first: int, last: int, name: str = "train/loss") -> list[MetricRow]:
    return [MetricRow(name, step, 1, 1 / step, "step", step / 10) for step in range(first, last + 1)]


def expected(rows: Sequence[Record]) -> dict[str, list[tuple[str, int]]]:
    found = sorted((row.name, row.step) for row in rows)
    return {"script": found, "page": found}


def png(width: int, height: int, colour: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + b"\x80" * (3 if colour == 2 else 1) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


# -- what is written -----------------------------------------------------------------------------


def test_numbers_are_scalars_and_odd_numbers_stay_what_they_are(tmp_path: Path) -> None:
    rows = [
        *losses(1, 3),
        MetricRow("val/nan", 3, 1, math.nan, "eval", 1.0),
        MetricRow("val/high", 3, 1, math.inf, "eval", 1.0),
        MetricRow("val/low", 3, 1, -math.inf, "eval", 1.0),
    ]
    assert write(TensorBoard(), info(tmp_path), rows).written == 6
    folder = tmp_path / "tensorboard"
    assert scalars(folder, "train/loss") == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert math.isnan(scalars(folder, "val/nan")[0][1])
    assert scalars(folder, "val/high") == [(3, math.inf)]
    assert scalars(folder, "val/low") == [(3, -math.inf)]


def test_an_array_is_a_table_and_a_small_one_has_a_curve_for_each_element(tmp_path: Path) -> None:
    rows = [
        MetricRow("val/recall", 5, 1, [0.5, math.nan], "eval", 1.0),
        MetricRow("val/confusion", 5, 1, [[8.0, 1.0], [2.0, 9.0]], "eval", 1.0),
        MetricRow("val/large", 5, 1, [float(number) for number in range(17)], "eval", 1.0),
        MetricRow("val/deep", 5, 1, [[[1.0], [2.0]]], "eval", 1.0),
        MetricRow("val/empty", 5, 1, [], "eval", 1.0),
    ]
    write(TensorBoard(), info(tmp_path), rows)
    found = read(tmp_path / "tensorboard")
    assert text(found, "val/confusion").splitlines() == [
        "|  | 0 | 1 |",
        "| --- | --- | --- |",
        "| 0 | 8 | 1 |",
        "| 1 | 2 | 9 |",
    ]
    assert "| 0 | 0.5 | nan |" in text(found, "val/recall")
    assert "16 |" in text(found, "val/large")
    assert text(found, "val/deep") == "`[[[1.0], [2.0]]]`"
    assert set(found.Tags()["scalars"]) == {
        *("val/recall/0", "val/recall/1"),
        *("val/confusion/0/0", "val/confusion/0/1", "val/confusion/1/0", "val/confusion/1/1"),
        *("val/deep/0/0/0", "val/deep/0/1/0"),
    }
    assert found.Scalars("val/confusion/1/0")[0].value == 2.0


def test_a_picture_is_the_same_bytes_and_its_caption_is_a_text(tmp_path: Path) -> None:
    picture, gray = png(5, 3), png(4, 4, colour=0)
    rows = [
        ImageRow("val/samples", 7, 1, 1.0, 5, 3, "cat *or* <dog>", png=picture),
        ImageRow("val/gray", 7, 1, 1.0, 4, 4, png=gray),
    ]
    write(TensorBoard(), info(tmp_path), rows)
    found = read(tmp_path / "tensorboard")
    (event,) = found.Images("val/samples")
    assert (event.step, event.width, event.height, event.encoded_image_string) == (7, 5, 3, picture)
    assert found.Images("val/gray")[0].encoded_image_string == gray
    assert "cat *or* &lt;dog&gt;" in markdown_to_safe_html(text(found, "val/samples/caption"))
    assert found.Tags()["tensors"] == ["val/samples/caption"]


def test_a_histogram_has_its_own_edges_and_counts_and_says_what_is_in_none_of_them(tmp_path: Path) -> None:
    row = HistogramRow("train/weights", 4, 1, 1.0, (-2.0, -1.0, 0.0, 1.0, 2.0), (0, 3, 5, 0), odd=2)
    none = HistogramRow("train/none", 4, 1, 1.0, (0.0, 1.0), (0,))
    write(TensorBoard(), info(tmp_path), [row, none])
    found = read(tmp_path / "tensorboard")
    value = found.Histograms("train/weights")[0].histogram_value
    assert (value.bucket_limit, value.bucket) == ([-1.0, 0.0, 1.0, 2.0], [0.0, 3.0, 5.0, 0.0])
    assert (value.num, value.min, value.max, value.sum) == (8.0, -1.0, 1.0, 1.0)
    assert found.Scalars("train/weights/odd")[0].value == 2.0
    assert found.Histograms("train/none")[0].histogram_value.num == 0
    assert "train/none/odd" not in found.Tags()["scalars"]
    shown = plugin_event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    drawn = make_ndarray(shown.Tensors("train/weights")[0].tensor_proto)
    assert drawn.tolist() == [[-1.0, 0.0, 3.0], [0.0, 1.0, 5.0]]


def test_texts_files_and_what_happened_are_texts(tmp_path: Path) -> None:
    rows = [
        TextRow("val/sample", 3, 1, 1.0, "to be,\nor **not**"),
        FileRow("train/weights", 3, 1, 1.0, "media/train/my_weights.bin", 12345),
        EventRow("checkpoint", 3, 1, 1.0, "checkpoints/step-00000003", 0.25),
        EventRow("callback_disabled", 3, 1, 1.0, "A_B failed: <x>"),
        EventRow("start", 3, 1, 1.0),
    ]
    write(TensorBoard(), info(tmp_path), rows)
    found = read(tmp_path / "tensorboard")
    assert text(found, "val/sample") == "to be,\nor **not**"
    assert "media/train/my_weights.bin, 12,345 bytes" in markdown_to_safe_html(text(found, "train/weights"))
    shown = markdown_to_safe_html(text(found, "hookline/events/checkpoint"))
    assert "checkpoints/step-00000003, took 0.25 s" in shown
    assert "A_B failed: &lt;x&gt;" in markdown_to_safe_html(text(found, "hookline/events/callback_disabled"))
    assert text(found, "hookline/events/start") == "start"


@pytest.mark.parametrize(
    "cell",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![x](https://example.org/x.png)",
        "[x](javascript:alert(1))",
        "a | b | c",
        "`code` *em* __strong__ ~~gone~~",
        "two\nlines",
        "# head",
        "back\\slash \\| pipe",
        "&lt;b&gt;",
        "\ud800",
    ],
)
def test_a_cell_of_a_table_stays_one_cell_of_text(tmp_path: Path, cell: str) -> None:
    row = TableRow("val/table", 3, 1, 1.0, ("text", "number"), ((cell, 1), (None, 0.5)))
    write(TensorBoard(), info(tmp_path), [row])
    shown = markdown_to_safe_html(text(read(tmp_path / "tensorboard"), "val/table"))
    assert shown.count("<td>") == 4
    for tag in ("<img", "<a", "<em>", "<strong>", "<code>", "<script", "<h1"):
        assert tag not in shown
    as_html = cell.encode(errors="replace").decode()
    as_html = as_html.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
    assert f"<td>{as_html}</td>" in shown
    assert "<td>0.5</td>" in shown


def test_a_name_that_is_no_unicode_does_not_lose_the_rows_beside_it(tmp_path: Path) -> None:
    write(TensorBoard(), info(tmp_path), [MetricRow("train/\ud800", 1, 1, 1.0, "step", 0.1), *losses(1, 1)])
    assert scalars(tmp_path / "tensorboard", "train/loss") == [(1, 1.0)]
    assert scalars(tmp_path / "tensorboard", "train/?") == [(1, 1.0)]


def test_rows_that_come_late_have_the_time_at_which_they_were_made(tmp_path: Path) -> None:
    sink = TensorBoard()
    sink.start(info(tmp_path))
    sink.write([MetricRow("train/loss", step, 1, 1.0, "step", float(step)) for step in (1, 2, 40)])
    sink.close()
    times = [event.wall_time for event in read(tmp_path / "tensorboard").Scalars("train/loss")]
    assert [round(time - times[0], 3) for time in times] == [0.0, 1.0, 39.0]
    assert datetime.now().timestamp() - 60 < times[-1] <= datetime.now().timestamp()


# -- hyper-parameters ----------------------------------------------------------------------------


def hparams(folder: Path) -> dict[str, HParamsPluginData]:
    found = {}
    for path in sorted(folder.iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    found[value.tag] = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    return found


def test_the_settings_are_in_the_same_run_with_what_it_measured(tmp_path: Path) -> None:
    config = {"lr": 0.1, "model": {"sizes": [8, 3], "bias": True}, "seed": None, "limit": math.inf, "none": {}}
    rows = [*losses(1, 2), MetricRow("val/loss", 2, 1, 0.5, "eval", 1.0), EventRow("end", 2, 1, 1.0)]
    write(TensorBoard(), info(tmp_path, config=config), rows)
    assert {path.parent for path in tmp_path.rglob("events.out.*")} == {tmp_path / "tensorboard"}
    found = hparams(tmp_path / "tensorboard")
    settings = found["_hparams_/session_start_info"].session_start_info.hparams
    assert {name: value.number_value or value.string_value for name, value in settings.items()} == {
        "lr": 0.1,
        "model.sizes": "[8, 3]",
        "model.bias": "True",
        "seed": "None",
        "limit": "inf",
        "none": "{}",
    }
    measured = found["_hparams_/experiment"].experiment.metric_infos
    assert [metric.name.tag for metric in measured] == ["val/loss"]
    assert "_hparams_/session_end_info" in found


def test_a_run_that_has_not_come_to_its_end_does_not_say_what_it_has_measured(tmp_path: Path) -> None:
    """TensorBoard keeps what it reads first: what a resumed run says later would not be seen."""
    config = {"lr": 0.1}
    write(TensorBoard(), info(tmp_path, config=config), [*losses(1, 2), EventRow("preempt", 2, 1, 1.0)])
    assert set(hparams(tmp_path / "tensorboard")) == {"_hparams_/session_start_info"}
    rows = [MetricRow("val/loss", 3, 1, 0.5, "eval", 1.0), EventRow("end", 3, 1, 1.0)]
    write(TensorBoard(), info(tmp_path, 2, losses(1, 2), config=config), rows)
    measured = hparams(tmp_path / "tensorboard")["_hparams_/experiment"].experiment.metric_infos
    assert [metric.name.tag for metric in measured] == ["val/loss"]


# -- where ---------------------------------------------------------------------------------------


def test_a_folder_of_ones_own_is_used_as_it_is(tmp_path: Path) -> None:
    write(TensorBoard(tmp_path / "board"), info(None), losses(1, 2))
    assert scalars(tmp_path / "board", "train/loss") == [(1, 1.0), (2, 0.5)]


def test_without_any_folder_it_says_what_to_write() -> None:
    with pytest.raises(SetupError, match=r"TensorBoard\(folder='tensorboard'\): .*folder=False.*absolute path"):
        TensorBoard().start(info(None))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[tensorboard\]'"):
        TensorBoard()


def test_one_sink_serves_one_run_after_the_other(tmp_path: Path) -> None:
    sink = TensorBoard()
    write(sink, info(tmp_path / "one"), losses(1, 3))
    write(sink, info(tmp_path / "two", run_id="b2"), losses(1, 2, "train/acc"))
    assert places(tmp_path / "one" / "tensorboard") == expected(losses(1, 3))
    assert places(tmp_path / "two" / "tensorboard") == expected(losses(1, 2, "train/acc"))


# -- going on ------------------------------------------------------------------------------------


def test_after_a_resume_each_value_is_there_once_for_every_reader(tmp_path: Path) -> None:
    """A checkpoint of step 6; what comes after it did not happen, whether its name is used again or not."""
    before: list[Record] = [*losses(1, 6), TextRow("val/text", 6, 1, 0.6, "six"), *losses(6, 6, "val/loss")]
    after: list[Record] = [
        *losses(7, 9),
        *losses(9, 9, "val/never_again"),
        TextRow("val/text", 8, 1, 0.8, "eight"),
        HistogramRow("val/spread", 8, 1, 0.8, (0.0, 1.0), (1,)),
        ImageRow("val/image", 8, 1, 0.8, 2, 2, png=png(2, 2)),
    ]
    again: list[Record] = [*losses(7, 12), TextRow("val/text", 8, 1, 0.8, "new")]
    write(TensorBoard(), info(tmp_path), [*before, *after])
    write(TensorBoard(), info(tmp_path, 6, before), again)
    assert places(tmp_path / "tensorboard") == expected([*before, *again])


def test_a_resume_from_an_older_checkpoint_goes_back_over_several_files(tmp_path: Path) -> None:
    write(TensorBoard(), info(tmp_path), losses(1, 5))
    write(TensorBoard(), info(tmp_path, 5, losses(1, 5)), losses(6, 8))
    write(TensorBoard(), info(tmp_path, 8, losses(1, 8)), losses(9, 12))
    write(TensorBoard(), info(tmp_path, 3, losses(1, 3)), losses(4, 6))
    assert places(tmp_path / "tensorboard") == expected(losses(1, 6))


def test_a_page_that_is_open_meanwhile_overlooks_what_did_not_happen(tmp_path: Path) -> None:
    write(TensorBoard(), info(tmp_path), losses(1, 9))
    page = plugin_event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
    page.Reload()
    assert len(page.Tensors("train/loss")) == 9
    write(TensorBoard(), info(tmp_path, 6, losses(1, 6)), losses(7, 12))
    page.Reload()
    assert [event.step for event in page.Tensors("train/loss")] == list(range(1, 13))


def test_a_run_that_begins_anew_in_its_folder_leaves_nothing_of_the_first_try(tmp_path: Path) -> None:
    write(TensorBoard(), info(tmp_path), losses(1, 9))
    write(TensorBoard(), info(tmp_path, run_id="b2"), losses(1, 4))
    assert places(tmp_path / "tensorboard") == expected(losses(1, 4))


def test_what_was_lost_in_a_kill_is_added(tmp_path: Path) -> None:
    """The loop had written its rows and a checkpoint, the sink had not yet."""
    earlier: list[Record] = [*losses(1, 6), TextRow("val/text", 4, 1, 0.4, "four"), *losses(6, 6, "val/loss")]
    write(TensorBoard(), info(tmp_path), losses(1, 3))
    write(TensorBoard(), info(tmp_path, 6, earlier), losses(7, 8))
    assert places(tmp_path / "tensorboard") == expected([*earlier, *losses(7, 8)])


def test_a_kill_in_the_middle_of_a_row_loses_nothing(tmp_path: Path) -> None:
    write(TensorBoard(), info(tmp_path), losses(1, 6))
    (path,) = (tmp_path / "tensorboard").iterdir()
    os.truncate(path, path.stat().st_size - 5)
    write(TensorBoard(), info(tmp_path, 6, losses(1, 6)), losses(7, 8))
    assert places(tmp_path / "tensorboard") == expected(losses(1, 8))


def test_rows_that_were_dropped_do_not_come_back_twice(tmp_path: Path) -> None:
    """A queue that was full: the newest rows had won, and steps 2 and 3 were never written."""
    write(TensorBoard(), info(tmp_path), [*losses(1, 1), *losses(4, 6)])
    write(TensorBoard(), info(tmp_path, 6, losses(1, 6)), losses(7, 8))
    assert places(tmp_path / "tensorboard") == expected([*losses(1, 1), *losses(4, 8)])


def test_a_sink_that_joins_a_run_when_it_goes_on_gets_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.png").write_bytes(png(2, 2))
    earlier: list[Record] = [
        *losses(1, 2500),
        ImageRow("val/image", 2500, 1, 250.0, 2, 2, file="media/a.png"),
        ImageRow("val/deleted", 2500, 1, 250.0, 2, 2, file="media/b.png"),
    ]
    write(TensorBoard(), info(tmp_path, 2500, earlier), losses(2501, 2502))
    assert places(tmp_path / "tensorboard") == expected([*losses(1, 2502), earlier[-2]])
    assert read(tmp_path / "tensorboard").Images("val/image")[0].encoded_image_string == png(2, 2)


def test_a_run_without_a_folder_keeps_what_it_wrote_until_the_checkpoint(tmp_path: Path) -> None:
    write(TensorBoard(tmp_path), info(None), losses(1, 9))
    write(TensorBoard(tmp_path), info(None, 6), losses(7, 8))
    assert places(tmp_path) == expected(losses(1, 8))


def test_files_that_are_not_of_this_run_are_left_alone(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("mine", 1.0, 50)
    write(TensorBoard(tmp_path), info(None, run_id="other"), losses(60, 61, "other/loss"))
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    write(TensorBoard(tmp_path), info(None), losses(1, 9))
    write(TensorBoard(tmp_path), info(None, 6), losses(7, 8))
    assert {path: path.read_bytes() for path in kept} == kept
    assert scalars(tmp_path, "train/loss") == [(row.step, pytest.approx(row.value)) for row in losses(1, 8)]


def test_a_file_that_comes_later_is_read_later_whatever_the_clock_says(tmp_path: Path) -> None:
    """The clock was set back, or the run went on in the same second with a smaller process id."""
    write(TensorBoard(), info(tmp_path), losses(1, 9))
    (first,) = (tmp_path / "tensorboard").iterdir()
    first.rename(first.with_name("events.out.tfevents.4000000000.host.999999.0"))
    write(TensorBoard(), info(tmp_path, 6, losses(1, 6)), losses(7, 8))
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert names[1].startswith("events.out.tfevents.4000000001.")
    assert places(tmp_path / "tensorboard") == expected(losses(1, 8))


def test_rows_that_did_not_fit_on_the_disk_are_there_once_after_another_try(tmp_path: Path) -> None:
    sink = TensorBoard()
    sink.start(info(tmp_path))
    sink.write(losses(1, 3))
    (path,) = (tmp_path / "tensorboard").iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            sink.write(losses(4, 9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sink.write(losses(4, 9))
    sink.close()
    assert places(tmp_path / "tensorboard") == expected(losses(1, 9))


def test_a_start_that_fails_half_way_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    sink = TensorBoard()
    with pytest.raises(FileExistsError):
        sink.start(info(tmp_path, 3, losses(1, 3)))
    (tmp_path / "tensorboard").unlink()

    def torn() -> Iterator[Record]:
        yield from losses(1, 2)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        sink.start(RunInfo("digits", "first", "a1", tmp_path, {}, datetime.now(UTC), 3, torn))
    write(sink, info(tmp_path, 3, losses(1, 3)), losses(4, 5))
    assert places(tmp_path / "tensorboard") == expected(losses(1, 5))


# -- in a run ------------------------------------------------------------------------------------


def train(folder: Path | bool, *callbacks: object, **options: Any) -> Any:
    given: dict[str, Any] = {"log_every": "2st", "sinks": [TensorBoard()], **options}
    return fit(*callbacks, folder=folder, val=tiny_data(2), **given)


def logged(folder: Path) -> Counter[tuple[str, int]]:
    """What the loop itself has written."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return Counter((row.name, row.step) for row in map(from_json, lines))


def written(folder: Path) -> Counter[tuple[str, int]]:
    rows = places(folder / "tensorboard")
    assert rows["script"] == rows["page"]
    return Counter(place for place in rows["page"] if not place[0].startswith("hookline/"))


def test_all_that_a_run_logs_is_in_tensorboard(tmp_path: Path) -> None:
    result = train(tmp_path / "run", config={"lr": 0.1})
    assert [report.dropped for report in result.sinks] == [0]
    assert written(tmp_path / "run") == logged(tmp_path / "run")
    assert {"train/loss", "train/loss_epoch", "val/loss"} <= {name for name, _ in written(tmp_path / "run")}
    assert set(hparams(tmp_path / "run" / "tensorboard")) == {
        "_hparams_/session_start_info",
        "_hparams_/experiment",
        "_hparams_/session_end_info",
    }
    assert {"hookline/events/start", "hookline/events/end"} <= {
        tag for tag, _ in places(tmp_path / "run" / "tensorboard")["page"]
    }


def test_a_sink_without_a_place_to_write_to_is_refused_before_anything_runs() -> None:
    with pytest.raises(ArgumentError, match=r"\(folder=False\): TensorBoard .*absolute path"):
        train(False)


def test_a_second_fit_goes_on_in_the_same_run(tmp_path: Path) -> None:
    trainer = Trainer(folder=tmp_path / "run", max_duration="2ep", log_every="2st", sinks=[TensorBoard()])
    model = TinyModel()
    fit(trainer=trainer, model=model, val=tiny_data(2))
    fit(trainer=trainer, model=model, val=tiny_data(2), extend="2ep")
    assert written(tmp_path / "run") == logged(tmp_path / "run")
    assert set(written(tmp_path / "run").values()) == {1}
    assert max(step for _, step in written(tmp_path / "run")) == 16


KILLED = """
import os, signal, sys
import torch
import hookline as hl
from hookline.loop import Trainer
from hookline.sinks.tensorboard import TensorBoard
from hookline.testing import TinyModel, tiny_data

folder, kill_at = sys.argv[1], int(sys.argv[2])

@hl.on("train_step_end")
def kill(run):
    if run.clock.step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

trainer = Trainer(folder=folder, max_duration="30st", log_every="2st", seed=0, resume="auto", eval_every="3st",
                  sinks=[TensorBoard()], callbacks=[hl.Checkpointer(every="4st"), kill])
trainer.fit(TinyModel(), tiny_data(7), tiny_data(2), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
"""


def test_after_kills_and_resumes_each_value_is_there_once(tmp_path: Path) -> None:
    """The first kill comes before there is a checkpoint, and so early that the sink may have written nothing."""
    for kill_at in (3, 9, 17):
        assert run_script(KILLED, args=[tmp_path / "run", kill_at]).returncode == -signal.SIGKILL
    done = run_script(KILLED, args=[tmp_path / "run", 0])
    assert done.returncode == 0, done.stderr
    assert written(tmp_path / "run") == logged(tmp_path / "run")
    assert set(written(tmp_path / "run").values()) == {1}
    steps = sorted(step for name, step in written(tmp_path / "run") if name == "train/loss")
    assert steps[-1] == 30
    assert len(steps) >= 15


def test_a_run_that_goes_on_without_the_sink_is_complete_when_it_comes_back(tmp_path: Path) -> None:
    saving = partial(train, tmp_path / "run", Checkpointer(every="1ep"), max_duration="1ep")
    saving()
    saving(resume="auto", extend="1ep", sinks=[])
    saving(resume="auto", extend="1ep")
    assert written(tmp_path / "run") == logged(tmp_path / "run")
    assert max(step for _, step in written(tmp_path / "run")) == 12
