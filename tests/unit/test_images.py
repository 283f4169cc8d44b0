"""Image data on disk: which files are taken for what, which labels there may be, and every fault with its
place, before a host is asked."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import DataError
from muster.core.recipe import recipe_from
from muster.inputs.read import check_data, read_inputs
from muster.workloads.image_classification.batches import ImageBatches
from muster.workloads.image_classification.files import (
    find_images,
    image_column,
    label_column,
)
from tests.images import BLUE, GREEN, RED, png, write_cifar, write_parquet


def recipe(path: Path, **fields: Any) -> Any:
    model = fields.pop("model", {})
    return recipe_from(
        {"workload": "image-classification", "model": model, "data": {"path": str(path), **fields}}
    )


def refused(path: Path, **fields: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        check_data(recipe(path, **fields), here=True)
    return caught.value


# --- folders ---------------------------------------------------------------------------------------------


def test_what_is_no_data(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").what == "no such data"
    (tmp_path / "a.png").write_bytes(png(RED))
    assert refused(tmp_path / "a.png").what == "is not a Parquet file"


# --- Parquet ---------------------------------------------------------------------------------------------


GOOD = [(png(RED), 0), (png(GREEN), 1), (png(BLUE), 2)]


@pytest.mark.parametrize(
    ("rows", "what", "row"),
    [
        ([*GOOD, (png(RED), 10)], "label 10 is out of range: 3 classes, 0 to 2", 3),
        ([*GOOD, (png(RED), -1)], "label -1 is out of range: 3 classes, 0 to 2", 3),
        ([(png(RED), 1), (png(RED), 2)], "label 1 is out of range: no image has label 0", 0),
        ([*GOOD, (png(RED), None)], "has no label", 3),
        ([*GOOD, (b"", 0)], "is empty", 3),
        ([GOOD[0], (None, 0)], "is empty", 1),
    ],
)
def test_bad_rows(rows: list[tuple[bytes | None, Any]], what: str, row: int, tmp_path: Path) -> None:
    """Each is named by its file and row, and is no error where the recipe says so."""
    file = write_parquet(tmp_path / "train.parquet", rows)
    error = refused(tmp_path)
    assert (error.what, error.where) == (what, f"{file}[{row}]")
    check_data(recipe(tmp_path, bad="skip"), here=True)


def test_labels_of_held_out_rows_are_those_of_training(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", GOOD)
    file = write_parquet(tmp_path / "test.parquet", [GOOD[0], (png(RED), 3)])
    error = refused(tmp_path)
    assert (error.what, error.where) == ("label 3 is out of range: 3 classes, 0 to 2", f"{file}[1]")
    check_data(recipe(tmp_path, model={"config": {"num_labels": 4}}), here=True)


def test_names_of_classes_in_the_file_say_how_many_there_are(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [(png(RED), 4), (png(BLUE), 0)], names=list("abcde"))
    check_data(recipe(tmp_path), here=True)
    write_parquet(tmp_path / "train.parquet", [(png(RED), 5), (png(BLUE), 0)], names=list("abcde"))
    assert refused(tmp_path).what == "label 5 is out of range: 5 classes, 0 to 4"


def test_labels_that_are_names(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [(png(RED), "red"), (png(BLUE), "it's blue")])
    check_data(recipe(tmp_path), here=True)
    write_parquet(tmp_path / "test.parquet", [(png(GREEN), "green")])
    assert refused(tmp_path).what == "label 'green' is none of the training images' 2 classes"


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    write_parquet(file, GOOD, image="picture", label="kind")
    error = refused(tmp_path)
    assert (error.what, error.where) == ("has no column 'label'", str(file))
    assert error.hint == "its columns: picture, kind; data.image and data.label name those to use"
    check_data(recipe(tmp_path, label="kind"), here=True)
    assert refused(tmp_path, label="kind", image="img").what == "has no column 'img'"
    assert "holds int64, not images" in refused(tmp_path, label="kind", image="kind").what
    write_parquet(file, [(png(RED), [0, 1])])  # several classes of one image
    assert refused(tmp_path).what.startswith("column 'label' holds list<")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stored = arrow.array([b"caf\xe9"], arrow.binary())
    names = arrow.Array.from_buffers(arrow.string(), 1, stored.buffers())
    parquet.write_table(arrow.table({"image": [{"bytes": png(RED)}], "label": names}), file)
    error = refused(tmp_path)
    assert "can't decode byte 0xe9" in error.what and error.where == str(file)
    write_parquet(file, [])
    assert refused(tmp_path).what == "has no rows"
    whole = write_parquet(file, GOOD).read_bytes()
    for content in (b"", b"no table", whole[:-20], whole[: len(whole) // 2]):
        file.write_bytes(content)
        error = refused(tmp_path)
        assert error.what.startswith("is not a Parquet file that can be read: ")
        assert error.where == str(file)
        assert "\n" not in error.what


# --- columns and classes ---------------------------------------------------------------------------------


def test_usual_names_of_columns() -> None:
    assert image_column("image", ["img", "label"], "x") == "img"
    assert label_column("label", ["img", "coarse_label", "fine_label"], "x") == "fine_label"
    assert image_column("image", ["img", "image"], "x") == "image"
    assert label_column("coarse_label", ["coarse_label", "label"], "x") == "coarse_label"
    with pytest.raises(DataError, match=re.escape("has no column 'nothing'")):
        label_column("nothing", ["label"], "x")


def test_the_shipped_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with all their checks; the digits need no files, the others need data.path."""
    monkeypatch.chdir(tmp_path)
    digits = read_inputs("digits", "local:2", []).recipe
    assert digits.data.source == "digits"
    write_parquet(tmp_path / "data/train.parquet", GOOD)
    for name in ("vit-b16-cifar10", "vit-cifar10"):
        assert read_inputs(name, "local:2", ["data.path=data"]).recipe.data.path == str(tmp_path / "data")
        with pytest.raises(DataError, match="no such data"):
            read_inputs(name, "local:2", ["data.path=nowhere"])


def test_checking_needs_neither_torch_nor_pillow(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", GOOD)
    code = (
        "import sys; from muster.inputs.read import read_inputs;"
        f"read_inputs('digits', 'local:2', ['data.path={tmp_path}']);"
        "print(sorted({'torch', 'PIL', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- CIFAR-10's batches ----------------------------------------------------------------------------------

FLAT = [(bytes([number] * 3072), number % 2) for number in range(6)]


def test_cifars_own_pickles(tmp_path: Path) -> None:
    """NumPy reads an array of the same bytes; what is held out is test_batch."""
    folder = write_cifar(
        tmp_path / "cifar-10-batches-py",
        {"data_batch_1": FLAT[:2], "data_batch_2": FLAT[2:4], "test_batch": FLAT[4:]},
        ["cat", "dog"],
    )
    numpy = pytest.importorskip("numpy")
    stored = pickle.loads((folder / "test_batch").read_bytes(), encoding="bytes")
    assert stored[b"data"].dtype == numpy.uint8 and stored[b"data"].shape == (2, 3072)
    for path in (tmp_path, folder):  # the archive's folder, or where it was unpacked
        found = find_images(path)
        assert isinstance(found, ImageBatches) and found.names == ("cat", "dog")
        assert [file.name for file in found.train] == ["data_batch_1", "data_batch_2"]
        assert [file.name for file in found.held_out] == ["test_batch"]
        assert found.read(folder / "test_batch") == ((0, 1), stored[b"data"].tobytes())
        check_data(recipe(path), here=True)
        assert recipe(path).classes() == 2 and "test_batch" in recipe(path).describe_data(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (pickle.dumps({b"labels": [0], b"data": print}), "builtins.print"),
        (b"cos\nsystem\n(S'touch ran'\ntR.", "os.system"),
        (b"cnumpy\nload\n(S'ran'\ntR.", "numpy.load"),
        (b"\x80\x02}", "not a pickle that can be read"),
        (pickle.dumps([1]), "not a dictionary"),
        (pickle.dumps({b"labels": [0], b"data": b"x"}), "no labels with an array"),
    ],
)
def test_a_pickle_runs_nothing(
    content: bytes, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_cifar(tmp_path / "c", {"data_batch_1": FLAT}, ["cat", "dog"])
    (folder / "test_batch").write_bytes(content)
    error = refused(folder)
    assert what in error.what and error.where == str(folder / "test_batch")
    assert not (tmp_path / "ran").exists()


def test_batches_whose_figures_disagree(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, {"data_batch_1": [(b"x" * 3071, 0)]}, ["cat"])
    assert "3,071 bytes" in refused(folder).what
    write_cifar(folder, {"data_batch_1": [*FLAT[:1], (b"x" * 3072, 7)]}, ["cat"])
    assert refused(folder).where == f"{folder / 'data_batch_1'}[1]"
    write_cifar(folder, {"data_batch_3": FLAT}, ["cat", "dog"])
    assert "no data_batch_2" in refused(folder).what
    (folder / "data_batch_1").unlink()
    assert "no data_batch_1" in refused(folder).what


def test_only_numbered_files_are_batches(tmp_path: Path) -> None:
    write_cifar(tmp_path, dict.fromkeys(("data_batch_1", "data_batch_1 (1)"), FLAT), ["cat", "dog"])
    (tmp_path / "data_batch_2.part").write_bytes(b"")
    found = find_images(tmp_path)
    assert isinstance(found, ImageBatches) and [file.name for file in found.train] == ["data_batch_1"]
    (tmp_path / "batches.meta").unlink()
    assert refused(tmp_path).where == str(tmp_path / "batches.meta")


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("writable", [True, False])
def test_batches_that_are_written_anew(protocol: int, writable: bool, tmp_path: Path) -> None:
    """As NumPy pickles arrays under Python 3; what is columns first, or no bytes, is refused."""
    numpy = pytest.importorskip("numpy")
    folder = write_cifar(tmp_path, {"data_batch_1": FLAT}, ["cat", "dog"])
    file = folder / "data_batch_1"
    pixels = numpy.arange(2 * 3072).astype("u1").reshape(2, 3072)
    pixels.flags.writeable = writable
    file.write_bytes(pickle.dumps({b"labels": [0, 1], b"data": pixels}, protocol))
    found = find_images(folder)
    assert isinstance(found, ImageBatches)
    assert found.read(file) == ((0, 1), pixels.tobytes())
    for other in (numpy.asfortranarray(pixels), pixels.astype("u2")):
        file.write_bytes(pickle.dumps({b"labels": [0, 1], b"data": other}, protocol))
        assert "no labels with an array" in refused(folder).what


@pytest.mark.parametrize(("shape", "by_column"), [((1, 3072), True), ((2, 3072), False)])
def test_arrays_that_are_not_as_cifars(shape: tuple[int, int], by_column: bool, tmp_path: Path) -> None:
    """Columns first, or more images than labels."""
    numpy = pytest.importorskip("numpy")
    folder = write_cifar(tmp_path, {"data_batch_1": FLAT}, ["cat", "dog"])
    pixels = numpy.zeros(shape, "u1")
    state = (1, shape, numpy.dtype("u1"), by_column, pixels.tobytes())
    array = _Rebuilt(numpy, state)
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"labels": [0], b"data": array}, 4))
    assert refused(folder).where == str(folder / "data_batch_1")


class _Rebuilt:
    """An array's pickle, whatever its state says."""

    def __init__(self, numpy: Any, state: tuple[Any, ...]) -> None:
        self.reduced = (*numpy.zeros(0, "u1").__reduce__()[:2], state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced
