"""``run.log_image`` and its siblings: what becomes a row, what becomes a file, and what is refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import MetricError
from hookline.records import FileRow, HistogramRow, ImageRow, Record, TableRow, TextRow, from_json
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, json_lines
from tests.support.inside import delete_media, encode_png, pixels_of, png_size


def records_in(folder: Path) -> list[Record]:
    return [from_json(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def rows_after(folder: Any, act: Any, **options: Any) -> list[Record]:
    """What a hook that does this at the end of the epoch leaves in ``metrics.jsonl``."""
    fit(hl.on("epoch_end")(act), train=tiny_data(2), val=tiny_data(1), max_duration="1ep", folder=folder, **options)
    return records_in(folder) if folder else []


def one(rows: list[Record], kind: type[Any]) -> Any:
    found = [row for row in rows if isinstance(row, kind)]
    assert len(found) == 1
    return found[0]


def decoded(png: bytes) -> np.ndarray[Any, Any]:
    """The pixels of a PNG, read by the rules of PNG: no filter, one chunk of data."""
    width, height = png_size(png)
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[png[25]]
    length = struct.unpack(">I", png[33:37])[0]
    lines = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8).reshape(height, 1 + width * channels)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(height, width, channels)


# -- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        (torch.rand(5, 7), (5, 7, 1)),
        (torch.rand(3, 5, 7), (5, 7, 3)),
        (torch.rand(5, 7, 3), (5, 7, 3)),
        (torch.rand(1, 5, 7), (5, 7, 1)),
        (torch.rand(3, 8, 3), (8, 3, 3)),  # both could be the channels: torch puts them first
        (torch.rand(4, 5, 7), (5, 7, 4)),
        (np.random.default_rng(0).random((5, 7, 3)), (5, 7, 3)),
        (torch.zeros(5, 7, dtype=torch.bool), (5, 7, 1)),
        (torch.rand(5, 3, 4, 6), (10, 22, 3)),  # five pictures: three in a row, two pixels apart
        (torch.rand(4, 6, 5, 1), (14, 12, 1)),
    ],
)
def test_every_usual_layout_is_a_picture(image: Any, shape: tuple[int, ...]) -> None:
    pixels, _ = pixels_of("x", image)
    assert tuple(pixels.shape) == shape
    assert pixels.dtype == torch.uint8


def test_pixels_arrive_as_they_are() -> None:
    image = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    pixels, done = pixels_of("x", image)
    assert done == ""
    assert np.array_equal(decoded(encode_png(pixels)), image.permute(1, 2, 0).numpy())


def test_another_program_reads_the_picture(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    pixels, _ = pixels_of("x", torch.rand(4, 6, 5))
    (tmp_path / "x.png").write_bytes(encode_png(pixels))
    with image_module.open(tmp_path / "x.png") as found:
        assert found.mode == "RGBA"
        assert np.array_equal(np.asarray(found), pixels.numpy())


def test_a_picture_of_pillow_can_be_logged() -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.new("RGB", (7, 5), (10, 20, 30))
    pixels, _ = pixels_of("x", image)
    assert pixels.shape == (5, 7, 3)
    assert pixels[2, 3].tolist() == [10, 20, 30]


@pytest.mark.parametrize("mode", ["P", "CMYK", "HSV", "YCbCr", "RGBX"])
def test_a_picture_of_pillow_has_its_colours_whatever_its_mode(mode: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels, done = pixels_of("x", pillow.new("RGB", (7, 5), (255, 0, 0)).convert(mode))
    red, green, blue = pixels.float().mean((0, 1))[:3].tolist()
    assert red > 250
    assert max(green, blue) < 5
    assert done == ""


def test_grey_with_transparency_is_a_picture() -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels, _ = pixels_of("x", pillow.new("LA", (7, 5), (100, 40)))
    assert pixels[0, 0].tolist() == [100, 100, 100, 40]


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_pictures_of_16_bits_and_more_are_scaled_and_small_numbers_are_not(kind: Any) -> None:
    deep = np.array([[0, 30_000], [60_000, 15_000]], kind)
    pixels, done = pixels_of("x", deep)
    assert pixels[..., 0].tolist() == [[0, 128], [255, 64]]
    assert done == "scaled from 0 to 6e+04"
    assert pixels_of("x", deep // 1000)[0][..., 0].tolist() == [[0, 30], [60, 15]]
    assert pixels_of("x", torch.from_numpy(np.stack([deep[None]] * 2)))[0].shape == (2, 6, 1)  # a batch


def test_numbers_outside_of_0_to_1_are_scaled_and_this_is_said() -> None:
    pixels, done = pixels_of("x", torch.tensor([[-2.0, 0.0], [1.0, 2.0]]))
    assert pixels.flatten().tolist() == [0, 128, 191, 255]
    assert done == "scaled from -2 to 2"


def test_nan_and_infinity_do_not_spoil_a_picture() -> None:
    pixels, done = pixels_of("x", torch.tensor([[0.0, float("nan")], [1.0, float("inf")]]))
    assert pixels.flatten().tolist() == [0, 0, 255, 255]
    assert done == ""


@pytest.mark.parametrize(
    "image",
    [
        torch.rand(5),
        torch.rand(2, 5, 7),
        torch.rand(0, 3, 4, 4),
        "a.png",
        None,
        torch.rand(3, 0, 4),
        [1, 2],
        torch.rand(2, 3, 0, 4),
        np.ones((4, 4), ">f4"),
    ],
)
def test_what_is_no_picture_is_refused(image: Any) -> None:
    with pytest.raises(MetricError, match="x:"):
        pixels_of("x", image)


def test_an_image_is_a_row_and_a_file(tmp_path: Path) -> None:
    row = one(rows_after(tmp_path, lambda run: run.log_image("seen", torch.rand(3, 4, 5), caption="a cat")), ImageRow)
    assert (row.name, row.step, row.epoch, row.width, row.height, row.caption) == ("train/seen", 2, 1, 5, 4, "a cat")
    assert png_size((tmp_path / row.file).read_bytes()) == (5, 4)
    assert png_size(row.read(tmp_path)) == (5, 4)


def test_names_that_differ_never_share_a_file(tmp_path: Path) -> None:
    names = ["a b", "a_b", "a?b", "../up", "a/../b", ".", "ä", "x" * 300, "a b/c"]

    def act(run: hl.Run) -> None:
        for name in names:
            run.log_image(name, torch.rand(2, 2))

    rows = [row for row in rows_after(tmp_path / "run", act) if isinstance(row, ImageRow)]
    assert len({row.file for row in rows}) == len(names)
    inside = (tmp_path / "run").resolve()
    assert all((inside / row.file).resolve().is_relative_to(inside / "media") for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_figure_becomes_a_picture(tmp_path: Path) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    figure = figure_module.Figure(figsize=(2, 1), dpi=100)
    figure.subplots().plot([1, 2])
    row = one(rows_after(tmp_path, lambda run: run.log_figure("curve", figure)), ImageRow)
    assert (row.width, row.height) == (200, 100)


# -- the others ----------------------------------------------------------------------------------


def test_a_text_is_a_row_without_secrets(tmp_path: Path) -> None:
    row = one(rows_after(tmp_path, lambda run: run.log_text("note", "token=abc123 ends")), TextRow)
    assert row.text == "token=[redacted] ends"


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([{"a": 1, "b": "x"}, {"a": 2.5, "b": None}], None),
        ([[1, "x"], [torch.tensor(2.5), None]], ["a", "b"]),
        (({"a": np.int64(1), "b": "x"}, {"a": np.float64(2.5)}), None),
    ],
)
def test_a_table_is_taken_as_people_have_it(tmp_path: Path, rows: Any, columns: Any) -> None:
    row = one(rows_after(tmp_path, lambda run: run.log_table("worst", rows, columns)), TableRow)
    assert row.columns == ("a", "b")
    assert row.rows == ((1, "x"), (2.5, None))


def test_a_frame_of_pandas_is_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    row = one(rows_after(tmp_path, lambda run: run.log_table("worst", frame)), TableRow)
    assert (row.columns, row.rows) == (("a", "b"), ((1, "x"), (2, "y")))


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [
        ([[1, 2]], None, "columns="),
        ([[1, 2], [3]], ["a", "b"], "a row of 1 cells"),
        ("abc", None, "not a table"),
        (3, None, "not a table"),
        ([1, 2], ["a"], "1 is not a row"),
        (["ab", "cd"], ["a", "b"], "'ab' is not a row"),
        ([[1]] * 10_001, ["a"], "too many"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, rows: Any, columns: Any, says: str) -> None:
    with pytest.raises(MetricError, match=says):
        rows_after(tmp_path, lambda run: run.log_table("t", rows, columns))


def test_a_histogram_counts_every_value_once(tmp_path: Path) -> None:
    values = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0, float("nan"), float("inf")])
    row = one(rows_after(tmp_path, lambda run: run.log_histogram("w", values, bins=2)), HistogramRow)
    assert (row.edges, row.counts, row.odd) == ((0.0, 0.5, 1.0), (2, 3), 2)


@pytest.mark.parametrize("values", [torch.full((7,), 3.0), torch.tensor([]), torch.tensor([float("nan")]), [1, 2, 3]])
def test_odd_histograms_are_possible(tmp_path: Path, values: Any) -> None:
    row = one(rows_after(tmp_path, lambda run: run.log_histogram("w", values)), HistogramRow)
    finite = torch.as_tensor(values, dtype=torch.float64).isfinite().sum()
    assert sum(row.counts) == finite
    assert len(row.edges) == len(row.counts) + 1
    assert sorted(row.edges) == list(row.edges)


def test_a_file_is_copied_into_the_folder(tmp_path: Path) -> None:
    source = tmp_path / "labels.txt"
    source.write_text("cat")
    row = one(rows_after(tmp_path / "run", lambda run: run.log_file("labels", source)), FileRow)
    source.unlink()
    assert (tmp_path / "run" / row.file).read_text() == "cat"
    assert row.size == 3


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="is not a file"):
        rows_after(tmp_path, lambda run: run.log_file("labels", tmp_path / "none"))


# -- rules for all -------------------------------------------------------------------------------


def all_kinds(run: hl.Run) -> None:
    run.log_image("image", torch.rand(2, 2))
    run.log_text("text", "x")
    run.log_table("table", [{"a": 1}])
    run.log_histogram("histogram", torch.rand(3))


def test_a_step_of_numpy_is_a_step(tmp_path: Path) -> None:
    def act(run: Any) -> None:
        run.log_text("notes/one", "hello", step=np.int64(40))
        run.log({"notes/two": 0.5}, step=np.int32(41))

    rows = rows_after(tmp_path, act)
    assert {row.name: row.step for row in rows if row.name.startswith("notes/")} == {"notes/one": 40, "notes/two": 41}


def test_a_step_can_be_given(tmp_path: Path) -> None:
    rows = rows_after(tmp_path, lambda run: run.log_text("note", "x", step=77))
    assert one(rows, TextRow).step == 77


@pytest.mark.parametrize("step", [-1, 1.5, True, "3"])
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises(MetricError, match="step="):
        rows_after(tmp_path, lambda run: run.log_text("note", "x", step=step))


def test_a_name_does_not_change_its_kind(tmp_path: Path) -> None:
    def act(run: hl.Run) -> None:
        run.log({"x": 1.0})
        run.log_text("x", "one")

    with pytest.raises(MetricError, match="a text is logged, and before it was a number"):
        rows_after(tmp_path, act)


def test_a_text_in_log_is_refused_when_it_is_logged(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="not a number"):
        rows_after(tmp_path, lambda run: run.log({"x": "one"}))


def test_an_answer_and_the_sanity_check_leave_no_trace(tmp_path: Path) -> None:
    class Shows(hl.SupervisedTask):
        def eval_batch(self, run: hl.Run, batch: Any) -> Any:
            all_kinds(run)
            return super().eval_batch(run, batch)

    ask = hl.on("train_step_end")(lambda run: run.evaluate("val"))
    task = Shows(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
    fit(ask, model=task, train=tiny_data(2), val=tiny_data(1), folder=tmp_path)
    rows = json_lines(tmp_path / "metrics.jsonl")
    kinds = ("image", "text", "table", "histogram")
    assert [(row["kind"], row["name"], row["step"]) for row in rows if row["kind"] in kinds] == [
        (kind, f"val/{kind}", step) for step in (2, 4) for kind in kinds
    ]
    assert len(list((tmp_path / "media").rglob("*.png"))) == 2


def test_a_run_that_writes_nothing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows_after(False, all_kinds)
    assert list(tmp_path.iterdir()) == []


def test_sinks_get_the_picture_itself_also_without_a_folder() -> None:
    memory = hl.sinks.Memory()
    rows_after(False, all_kinds, sinks=[memory])
    row = next(row for row in memory.records if isinstance(row, ImageRow))
    assert row.file == ""
    assert png_size(row.png) == (2, 2)


def test_a_resume_forgets_the_pictures_of_steps_that_did_not_happen(tmp_path: Path) -> None:
    def act(run: hl.Run) -> None:
        run.log_image("seen", torch.rand(2, 2))
        if run.clock.step == 4 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise RuntimeError("lost")

    options: dict[str, Any] = {"max_duration": "3ep", "folder": tmp_path / "run", "resume": "auto"}
    callbacks = [hl.Checkpointer("2st"), hl.on("train_step_end")(act)]

    def go() -> None:
        fit(*callbacks, train=tiny_data(3), **options)

    with pytest.raises(RuntimeError, match="lost"):
        go()
    pictures = tmp_path / "run" / "media" / "train" / "seen"
    assert sorted(path.stem for path in pictures.iterdir()) == [f"step-{n:08d}" for n in (1, 2, 3, 4)]
    go()
    rows = records_in(tmp_path / "run")
    assert [row.step for row in rows if isinstance(row, ImageRow)] == list(range(1, 10))
    assert len(list(pictures.iterdir())) == 9


def test_a_resume_deletes_only_what_the_rows_that_are_taken_back_name(tmp_path: Path) -> None:
    """Files of the user in ``media/`` stay, whatever their names are."""
    run, source = tmp_path / "run", tmp_path / "notes.txt"
    source.write_text("notes")
    fails = True

    @hl.on("train_step_end")
    def act(run: Any) -> None:
        run.log_image("seen", torch.rand(3, 2, 2))
        run.log_file("notes", source)
        if fails and run.clock.step == 4:
            raise RuntimeError("lost")

    def go() -> None:
        fit(hl.Checkpointer("3st"), act, train=tiny_data(5), folder=run, resume="auto", max_duration="5st")

    with pytest.raises(RuntimeError, match="lost"):
        go()
    mine = [run / "media" / name for name in ("step-00000004/model.safetensors", "mine/step-00000004.png", "a/b.png")]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    fails = False
    go()
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert sorted(path.name for path in (run / "media" / "train" / "seen").iterdir()) == [
        f"step-{step:08d}.png" for step in (1, 2, 3, 4, 5)
    ]
    assert sorted(path.name for path in (run / "media" / "train" / "notes").iterdir()) == [
        f"step-{step:08d}" for step in (1, 2, 3, 4, 5)
    ]


def test_a_row_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    for name in ("precious.txt", "run/media/x.txt", "run/best.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    delete_media(tmp_path / "run", {"media/../../precious.txt", "best.safetensors", str(tmp_path / "precious.txt")})
    assert (tmp_path / "precious.txt").exists()
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_what_hooks_log_in_a_sanity_check_leaves_no_row(tmp_path: Path) -> None:
    class Says(hl.Callback):
        def on_sanity_check_end(self, run: Any) -> None:
            run.log({"val/sanity": 1.0})
            run.log_text("sanity_note", "before step 1")

    data = tiny_data()
    result = fit(Says(), train=data, val=data, max_duration="1ep", folder=tmp_path / "run")
    assert "sanity" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "val/sanity" not in result.metrics


def test_a_resume_in_another_folder_takes_the_pictures_along(tmp_path: Path) -> None:
    class Draws(hl.Callback):
        def on_eval_end(self, run: Any) -> None:
            run.log_image("dot", torch.zeros(3, 3))

    def train(folder: str, **options: Any) -> None:
        callbacks, data = (Draws(), hl.Checkpointer(every="1ep", keep_last=None)), tiny_data(2)
        fit(*callbacks, train=data, val=data, max_duration="3ep", folder=tmp_path / folder, **options)

    train("one")
    train("two", resume=tmp_path / "one" / "checkpoints" / "step-00000004")
    pictures = [sorted(p.name for p in (tmp_path / folder / "media").rglob("*.png")) for folder in ("one", "two")]
    assert len(pictures[0]) == 3
    assert pictures[0] == pictures[1]


def test_what_each_batch_of_an_evaluation_shows_is_kept_and_written_over_by_none(tmp_path: Path) -> None:
    """Else all rows of a step would name the file of the last one, and the others be lost."""
    seen: list[int] = []

    def show(run: hl.Run) -> None:
        if run.stage == "val" and run.clock.step:
            seen.append(run.clock.step)
            run.log_image("image", torch.full((len(seen), 2), 0.5))
            run.log_text("text", str(len(seen)))
            (tmp_path / "source.txt").write_text("x" * len(seen))
            run.log_file("file", tmp_path / "source.txt")

    fit(hl.on("eval_batch_end")(show), train=tiny_data(2), val=tiny_data(3), folder=tmp_path / "run")
    assert seen == [2, 2, 2, 4, 4, 4]
    rows = records_in(tmp_path / "run")
    images = [row for row in rows if isinstance(row, ImageRow)]
    files = [row for row in rows if isinstance(row, FileRow)]
    assert [row.text for row in rows if isinstance(row, TextRow)] == list("123456")
    assert [row.step for row in images] == [row.step for row in files] == seen
    assert [png_size((tmp_path / "run" / row.file).read_bytes())[1] for row in images] == [1, 2, 3, 4, 5, 6]
    assert [(tmp_path / "run" / row.file).stat().st_size for row in files] == [1, 2, 3, 4, 5, 6]
    assert [row.file.rpartition("/")[2] for row in images[:2]] == ["step-00000002.png", "step-00000002-2.png"]
