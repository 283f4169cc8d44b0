"""Images as ranks read them: decoded, resized, augmented and batched, the same in any number of processes."""

from __future__ import annotations

import copy
import hashlib
import io
import multiprocessing
import os
import random
from collections import Counter as Counts
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import DataError
from muster.workloads.image_classification.spec import Digits, ImageData
from tests.images import BLUE, GREEN, RED, png, png_of, write_cifar, write_folder, write_parquet

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("datasets")

HALF = (0.5, 0.5, 0.5)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the datasets library keeps of a test goes with the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def images(path: Path, **fields: Any) -> ImageData:
    return ImageData(path=str(path), **fields)


def parts(data: ImageData, number: int | None = None) -> Any:
    from muster.workloads.image_classification.images import load_parts

    return load_parts(data, seed=1, number=number)


def dataset(part: Any, size: int = 8, *, flip: bool = False, crop: int = 0) -> Any:
    from muster.workloads.image_classification.images import Augmentation, ImageSet, Preparation

    augmentation = Augmentation(flip, crop, 7) if flip or crop else None
    return ImageSet(part, Preparation(size, HALF, HALF), augmentation)


def digits() -> Any:
    return parts(ImageData(digits=Digits(validation=360)))


# --- one image -------------------------------------------------------------------------------------------


def jpeg() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "JPEG")
    return file.getvalue()


def test_what_is_no_image() -> None:
    """Each fault is one line that says what is wrong."""
    from muster.workloads.image_classification.images import UnreadableImage, decode

    noise = png_of([[(i * j % 251, i, j) for i in range(64)] for j in range(64)])
    for content, what in (
        (b"", "is empty"),
        (b"GIF and more", "is not an image that can be read: it begins with b'GIF and "),
        (jpeg()[:-200], "cannot be read: image file is truncated"),
        (noise[:-300], "cannot be read: image file is truncated"),
        (noise[:40] + b"\xff" * 40 + noise[80:], "is not an image that can be read"),
    ):
        with pytest.raises(UnreadableImage) as caught:
            decode(content)
        assert str(caught.value).startswith(what)
        assert "\n" not in str(caught.value)
    with pytest.raises(UnreadableImage, match="cannot be read: No such file"):
        decode(Path("nowhere.png"))


def test_resizing_and_normalising() -> None:
    """Bilinear with antialiasing, then (value / 255 - mean) / std of each channel."""
    from muster.workloads.image_classification.images import Preparation, decode

    rows = [[((x * 7 + y * 3) % 256, (x * y) % 256, 255 - 4 * x) for x in range(48)] for y in range(32)]
    preparation = Preparation(16, (0.1, 0.2, 0.3), (0.5, 0.25, 0.125))
    pixels = preparation.pixels(decode(png_of(rows)))
    assert (pixels.shape, pixels.dtype) == ((3, 16, 16), torch.uint8)
    whole = torch.tensor(rows, dtype=torch.float32).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(whole, (16, 16), mode="bilinear", antialias=True)[0]
    assert (pixels.float() - expected).abs().max() <= 1.01
    made = preparation.normalise(pixels[None])
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (preparation.mean, preparation.std))
    torch.testing.assert_close(made, (pixels[None].float() / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    untouched = preparation.pixels(decode(png(GREEN, 16, 16)))
    assert untouched.float().mean((1, 2)).tolist() == [0, 255, 0]
    grey = Preparation(8, (0.5,), (0.5,)).pixels(decode(png(GREEN)))
    assert (grey.shape, int(grey[0, 0, 0])) == ((1, 8, 8), 150)  # ITU-R 601: 0.587 of green


def test_how_images_are_prepared_is_saved(tmp_path: Path) -> None:
    from muster.workloads.image_classification.images import PREPARATION, Preparation

    made = Preparation(24, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    made.save_pretrained(str(tmp_path / "model"))
    assert Preparation.from_saved(tmp_path / "model") == made
    (tmp_path / "model" / PREPARATION).write_text('{"size": 3}')
    with pytest.raises(DataError, match="cannot be read"):
        Preparation.from_saved(tmp_path / "model")


def test_augmentation_depends_on_seed_epoch_and_sample_alone() -> None:
    from muster.workloads.image_classification.images import Augmentation

    pixels = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(3, 8, 8)
    change = Augmentation(flip=True, crop=2, seed=3)
    first = [change(pixels, epoch, index) for epoch in range(2) for index in range(20)]
    again = [change(pixels, epoch, index) for epoch in range(2) for index in range(20)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({tuple(each.flatten().tolist()) for each in first}) > 25
    flips = [Augmentation(True, 0, 3)(pixels, 0, index) for index in range(200)]
    mirrored = sum(torch.equal(each, pixels.flip(-1)) for each in flips)
    assert mirrored + sum(torch.equal(each, pixels) for each in flips) == 200
    assert 70 < mirrored < 130
    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    moved = {
        tuple(padded[:, y : y + 8, x : x + 8].flatten().tolist()): (y, x) for y in range(5) for x in range(5)
    }
    places = Counts(
        moved[tuple(Augmentation(False, 2, 3)(pixels, 0, i).flatten().tolist())] for i in range(500)
    )
    assert len(places) == 25


# --- many images -----------------------------------------------------------------------------------------


def test_batches_are_the_same_with_any_number_of_workers_and_ranks() -> None:
    """The loader's processes know the epoch, and every rank's part is augmented as one process does it."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, DataLoader

    from muster.workloads.image_classification.images import EpochSampler, collate

    train = digits().train.only(range(100))
    seen = {}
    for workers in (0, 2):
        images = dataset(train, flip=True, crop=1)
        epoch = 0
        sampler = EpochSampler([1] * len(images), 32, 5, grouped=False, epoch=lambda: epoch)  # noqa: B023
        loader = DataLoader(images, 16, sampler=sampler, num_workers=workers, collate_fn=collate)
        for epoch in (0, 1):
            batches = list(loader)
            assert [tuple(batch["pixel_values"].shape) for batch in batches] == [(16, 3, 8, 8)] * 8
            seen[workers, epoch] = torch.cat([batch["pixel_values"] for batch in batches])
        assert sorted({key % 100 for key in sampler}) == list(range(100))
    assert torch.equal(seen[0, 0], seen[2, 0])
    assert torch.equal(seen[0, 1], seen[2, 1])
    keys = list(sampler)
    assert all(key // 100 == 1 for key in keys)
    shards = [list(BatchSamplerShard(BatchSampler(keys, 16, drop_last=False), 2, rank)) for rank in range(2)]
    together = [key for step in zip(*shards, strict=True) for batch in step for key in batch]
    assert together == keys
    images = dataset(train, flip=True, crop=1)
    other = torch.stack([images[key]["pixels"] for key in reversed(together)]).flip(0)
    assert torch.equal(other, seen[0, 1])
    assert other.dtype is torch.uint8


def test_images_are_decoded_once_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.workloads.image_classification import images as module

    part = digits().train.only(range(10))
    reads = Counts()

    class Counting:
        def read(self, row: int) -> Any:
            reads[row] += 1
            return part.source.read(row)

        def place(self, row: int) -> str:
            return part.source.place(row)

    counting = type(part)(Counting(), part.rows, part.labels)
    kept = dataset(counting)
    first = [kept[index]["pixels"].clone() for index in range(10)]
    assert all(torch.equal(kept[index]["pixels"], first[index]) for index in range(10))
    assert set(reads.values()) == {1}
    assert torch.equal(copy.deepcopy(kept)[3]["pixels"], first[3])  # which keeps what it decodes itself
    assert sum(reads.values()) == 11
    reads.clear()
    monkeypatch.setattr(module, "KEPT_BYTES", 100)
    unkept = dataset(counting)
    assert all(torch.equal(unkept[index]["pixels"], first[index]) for index in range(10))
    assert set(reads.values()) == {1}
    assert [kept[index]["label"] for index in range(10)] == part.labels


def test_loader_processes_share_what_is_decoded() -> None:
    """Processes of a server are given the memory itself: what one of them decodes, this process has."""
    from torch.utils.data import DataLoader

    from muster.workloads.image_classification.images import collate

    images = dataset(digits().train.only(range(64)))
    end = images.memory.tensor.numel() - 64
    assert images.memory.tensor[end:].sum() == 0
    loader = DataLoader(images, 16, num_workers=1, collate_fn=collate, multiprocessing_context="forkserver")
    seen = torch.cat([batch["pixel_values"] for batch in loader])
    assert images.memory.tensor[end:].sum() == 64
    assert torch.equal(seen, torch.stack([images[index]["pixels"] for index in range(64)]))


class Processes:
    """Samples that say which process made them, and its parent."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[int, int]:
        return os.getpid(), os.getppid()


def test_loader_processes_are_no_forks_of_the_rank_and_stay() -> None:
    from torch.utils.data import DataLoader

    from muster.worker.data.loading import CONTEXT, loader_arguments

    given = loader_arguments(1, "json")
    loader: Any = DataLoader(
        Processes(),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=given["dataloader_num_workers"],
        persistent_workers=given["dataloader_persistent_workers"],
        multiprocessing_context=given.get(CONTEXT) or multiprocessing.get_start_method(),
    )
    seen = [each for _ in range(2) for each in loader]
    assert len(seen) == 4 and len({own for own, _ in seen}) == 1
    assert all(parent != os.getpid() for _, parent in seen)


def test_a_loader_process_maps_a_table_by_itself(tmp_path: Path) -> None:
    """The images of a Parquet file are not copied into each of them."""
    import pickle

    numbers = random.Random(0)
    noise = [[[tuple(numbers.randbytes(3)) for _ in range(32)] for _ in range(32)] for _ in range(60)]
    write_parquet(tmp_path / "train.parquet", [(png_of(rows), index % 2) for index, rows in enumerate(noise)])
    train = parts(images(tmp_path, validation_fraction=0.1)).train
    whole = sum(len(train.source.column[row].as_py()["bytes"]) for row in range(60))
    sent = pickle.dumps(train.source)
    assert len(sent) < whole / 2
    again = pickle.loads(sent)
    assert [again.read(row).tobytes() for row in range(60)] == [
        train.source.read(row).tobytes() for row in range(60)
    ]


def test_no_image_is_held_out_where_no_share_is(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [(png(RED), index % 2) for index in range(6)])
    made = parts(images(tmp_path, validation_fraction=0))
    assert (len(made.train), len(made.held_out)) == (6, 0)


def test_an_image_that_only_fills_up_a_batch_has_no_label() -> None:
    from muster.workloads.image_classification.images import collate

    one = {"pixels": torch.zeros(1, 8, 8, dtype=torch.uint8), "label": 3, "fault": None}
    batch = collate([one, one | {"ignored": True}])
    assert batch["labels"].tolist() == [3, -100] and batch["pixel_values"].dtype is torch.uint8


def test_an_unreadable_image_does_not_count(tmp_path: Path) -> None:
    from muster.workloads.image_classification.images import FAULTS, ImageCounter, collate

    write_folder(tmp_path, {"a/1.png": png(RED), "a/2.png": b"nothing", "b/1.png": png(BLUE)})
    found = parts(images(tmp_path, bad="skip", validation_fraction=0.3)).train
    whole = found.only(range(len(found)))
    everything = dataset(type(whole)(whole.source, [0, 1, 2], [0, 1, 0]))
    place = str(tmp_path / "a/2.png")
    assert [(index, where) for index, where, _ in everything.faults(0, 1, 99)] == [(2, place)]
    assert list(everything.faults(0, 2, 1)) == []
    batch = collate([everything[index] for index in range(3)])
    assert batch["labels"].tolist() == [0, 1, -100]
    assert batch[FAULTS] == [(place, "is not an image that can be read: it begins with b'nothing'")]
    counts = ImageCounter(5)(batch)
    assert (counts.samples, counts.tokens, counts.padded_tokens) == (2, 10, 15)
    rest = everything.without({2})
    assert len(rest) == 2
    assert FAULTS not in collate([rest[0], rest[1]])


# --- sources ---------------------------------------------------------------------------------------------


def test_folders_and_tables_give_the_same(tmp_path: Path) -> None:
    colours = {"red": RED, "green": GREEN, "blue": BLUE}
    files = {f"train/{name}/1.png": png(colour) for name, colour in colours.items()}
    write_folder(tmp_path / "folders", {**files, "test/red/9.png": png(RED, 20, 10)})
    names = sorted(colours)
    rows = [(png(colours[name]), number) for number, name in enumerate(names)]
    write_parquet(tmp_path / "tables/train-0.parquet", rows[:2], names=names)
    write_parquet(tmp_path / "tables/train-1.parquet", rows[2:], names=names)
    write_parquet(tmp_path / "tables/test-0.parquet", [(png(RED, 20, 10), 2)], names=names)
    texts = [(content, names[number]) for content, number in rows]
    write_parquet(tmp_path / "texts/train.parquet", texts, image="img", label="cls")
    write_parquet(tmp_path / "texts/test.parquet", [(png(RED, 20, 10), "red")], image="img", label="cls")
    made = {kind: parts(images(tmp_path / kind)) for kind in ("folders", "tables", "texts")}
    for each in made.values():
        assert each.names == ("blue", "green", "red")
        assert (each.train.labels, each.held_out.labels) == ([0, 1, 2], [2])
        for part, other in ((each.train, made["folders"].train), (each.held_out, made["folders"].held_out)):
            a, b = dataset(part), dataset(other)
            assert all(torch.equal(a[index]["pixels"], b[index]["pixels"]) for index in range(len(a)))
    tables = made["tables"]
    assert [tables.train.source.place(row) for row in tables.train.rows] == [
        f"{tmp_path}/tables/train-0.parquet[0]",
        f"{tmp_path}/tables/train-0.parquet[1]",
        f"{tmp_path}/tables/train-1.parquet[0]",
    ]
    assert tables.held_out.source.place(0) == f"{tmp_path}/tables/test-0.parquet[0]"
    assert made["folders"].held_out.source.place(0) == f"{tmp_path}/folders/test/red/9.png"


def test_rows_without_a_usable_label(tmp_path: Path) -> None:
    rows = [(png(RED), 0), (png(RED), 7), (png(BLUE), 1), (png(BLUE), None), (png(RED), 0)]
    file = write_parquet(tmp_path / "train.parquet", rows)
    with pytest.raises(DataError) as caught:
        parts(images(tmp_path))
    assert caught.value.where == f"{file}[1]"
    assert caught.value.what == "label 7 is out of range: 2 classes, 0 to 1"
    made = parts(images(tmp_path, bad="skip", validation_fraction=0.4))
    assert len(made.train.faults) == 2
    assert not made.held_out.faults
    assert sorted(made.train.rows + made.held_out.rows) == [0, 2, 4]
    assert len(parts(images(tmp_path, bad="skip"), number=8).names) == 8


def test_a_table_that_is_broken_inside(tmp_path: Path) -> None:
    """The end of the file, which says what is in it, is whole; the rows are not."""
    file = write_parquet(tmp_path / "train.parquet", [(png(RED), index % 2) for index in range(50)])
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"\xff" * 200 + content[204:])
    with pytest.raises(DataError) as caught:
        parts(images(tmp_path))
    assert caught.value.what.startswith("cannot be loaded: ")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in (caught.value.where or "")


def test_a_part_is_held_out_where_there_is_none(tmp_path: Path) -> None:
    write_folder(tmp_path, {f"{kind}/{i}.png": png(RED) for kind in "ab" for i in range(20)})
    made = parts(images(tmp_path, validation_fraction=0.25, limit=12))
    assert (len(made.train), len(made.held_out)) == (12, 10)
    assert not set(made.train.rows) & set(made.held_out.rows)
    assert 3 <= sum(made.train.labels) <= 9
    assert made.held_out.rows == parts(images(tmp_path, validation_fraction=0.25)).held_out.rows


def test_the_digits() -> None:
    """scikit-learn's own file: 1,797 images in ten classes, held out at random, all of them in use."""
    import muster.workloads.image_classification
    from muster.workloads.image_classification.images import read_digits

    file = Path(muster.workloads.image_classification.__file__).parent / "digits.csv.gz"
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith("09f66e6debdee2cd")
    pixels, labels = read_digits()
    assert pixels.shape == (1797, 8, 8)
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)
    assert sorted(Counts(labels).values()) == [174, 177, 178, 179, 180, 181, 181, 182, 182, 183]
    made = digits()
    assert (len(made.train), len(made.held_out)) == (1437, 360)
    assert sorted(made.train.rows + made.held_out.rows) == list(range(1797))
    assert [labels[row] for row in made.held_out.rows] == made.held_out.labels
    assert made.held_out.source.place(12) == "digits[12]"
    with pytest.raises(DataError, match="holds out 1797 of 1797 digits"):
        parts(ImageData(digits=Digits(validation=1797)))


def test_the_real_cifar10() -> None:
    """Where it is there: every image can be read."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"
    if not folder.is_dir():
        pytest.skip("../shared/data/cifar10 is not there")
    made = parts(images(folder))
    assert (len(made.train), len(made.held_out), len(made.names)) == (10_000, 2000, 10)
    assert Counts(made.train.labels) == dict.fromkeys(range(10), 1000)
    assert not list(dataset(made.held_out, size=32).faults(0, 1, 2000))


def test_cifars_own_pickles_are_read_as_images(tmp_path: Path) -> None:
    """Red, then green, then blue bytes, row by row."""
    row = bytes(range(32))
    first = row * 32 + bytes([100] * 1024) + bytes([200] * 1024)
    write_cifar(tmp_path, {"data_batch_1": [(first, 1)], "test_batch": [(bytes(3072), 0)]}, ["cat", "dog"])
    made = parts(images(tmp_path))
    assert (len(made.train), len(made.held_out), made.names) == (1, 1, ("cat", "dog"))
    image = made.train.read(0)
    assert image.size == (32, 32) and [image.getpixel((x, 9)) for x in (0, 31)] == [
        (0, 100, 200),
        (31, 100, 200),
    ]
    assert made.train.place(0) == f"{tmp_path / 'data_batch_1'}[0]" and made.train.labels == [1]
