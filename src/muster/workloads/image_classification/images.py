"""Images: where they come from (Parquet, folders, a hub data set, scikit-learn's digits), and as models want
them: decoded, resized, augmented and batched as bytes; normalised where the model is.

Resizing is Pillow's, bilinear with antialiasing, as torchvision's Resize does it to a Pillow image.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from muster.core.errors import DataError
from muster.store.records import DataFiles
from muster.worker.data.hub import hub_parts, load
from muster.worker.data.loading import SharedBytes
from muster.worker.data.sampler import GroupedSampler
from muster.worker.loss import IGNORED
from muster.worker.workloads.base import Counts
from muster.workloads.image_classification.batches import CHANNELS, SIDE, ImageBatches
from muster.workloads.image_classification.files import (
    Classes,
    ImageFolders,
    classes_of,
    find_images,
    image_column,
    label_column,
    read_table,
    row_of,
    table_classes,
)
from muster.workloads.image_classification.spec import Digits, ImageData

KEPT_BYTES = 512 << 20  # decoded and resized images that a rank keeps in memory
PREPARATION = "preprocessor_config.json"  # Transformers' name for how images are prepared
FAULTS = "faults"  # the key of a batch's unreadable images


class UnreadableImage(Exception):
    """An image that cannot be read."""


class ImageSource(Protocol):
    """Where images come from."""

    def read(self, row: int) -> Image.Image:
        """Read and decode the image of a row. Raises UnreadableImage."""

    def place(self, row: int) -> str:
        """Name the row: a file, or a file with a row."""


def decode(data: bytes | Path) -> Image.Image:
    """Decode an image file. Raises UnreadableImage with what is wrong with it."""
    try:
        content = data.read_bytes() if isinstance(data, Path) else data
        if not content:
            raise UnreadableImage("is empty")
        image = Image.open(io.BytesIO(content))
        image.load()
    except UnidentifiedImageError:
        raise UnreadableImage(f"is not an image that can be read: it begins with {content[:8]!r}") from None
    except OSError as error:  # Pillow's word for broken content, and the system's for files
        raise UnreadableImage(f"cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableImage(f"cannot be decoded: {error}") from None
    return image


@dataclass(frozen=True)
class Preparation:
    """How an image becomes a model's input; saved beside the model as Transformers' image processors are."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (red, green, blue)."""
        return len(self.mean)

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """Convert and resize an image -> (channels, size, size), uint8."""
        mode = "L" if self.channels == 1 else "RGB"
        if image.mode != mode:  # else it would be copied
            image = image.convert(mode)
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        array = np.array(image, dtype=np.uint8).reshape(self.size, self.size, self.channels)
        return torch.from_numpy(array).permute(2, 0, 1)

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise (batch, channels, size, size) uint8 -> float32: (value / 255 - mean) / std per
        channel."""
        scale, shift = _scale_and_shift(self.mean, self.std, pixels.device)
        return pixels.float().mul_(scale).sub_(shift)

    def save_pretrained(self, folder: str, **_: Any) -> None:
        """Write it so that Transformers' AutoImageProcessor reads it too."""
        content = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": self.size, "width": self.size},
            "resample": int(Image.Resampling.BILINEAR),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / PREPARATION).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_saved(cls, folder: Path) -> Preparation:
        """Read the preparation of a trained model. Raises DataError."""
        try:
            content = json.loads((folder / PREPARATION).read_text(encoding="utf-8"))
            return cls(
                int(content["size"]["height"]), tuple(content["image_mean"]), tuple(content["image_std"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"cannot be read: {error}", where=str(folder / PREPARATION)) from None


@lru_cache(maxsize=8)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (1, channels, 1, 1) each, on the device: copied once, since every copy from the host is waited
    for."""
    scale = 1 / (255 * torch.tensor(std).view(1, -1, 1, 1))
    return scale.to(device), (255 * torch.tensor(mean).view(1, -1, 1, 1) * scale).to(device)


@dataclass(frozen=True)
class Augmentation:
    """Changes to training images that depend on seed, epoch and sample alone: not on ranks or workers."""

    flip: bool
    crop: int
    seed: int

    def __call__(self, pixels: torch.Tensor, epoch: int, index: int) -> torch.Tensor:
        """Change (channels, size, size), keeping the shape: mirrored or not, and moved by at most `crop`
        pixels."""
        chance = random.Random(f"{self.seed}/{epoch}/{index}")
        if self.flip and chance.random() < 0.5:
            pixels = pixels.flip(-1)
        if self.crop:
            top, left = chance.randint(0, 2 * self.crop), chance.randint(0, 2 * self.crop)
            size = pixels.shape[-1]
            padded = torch.nn.functional.pad(pixels, (self.crop,) * 4)
            pixels = padded[:, top : top + size, left : left + size]
        return pixels


class ImageSet(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Images of a source with the numbers of their classes, prepared.

    A key is epoch x len + index (`EpochSampler`), so that loader processes know the epoch too. Decoded
    and resized images are kept where they take less than KEPT_BYTES, in memory that loader processes
    share. An image that cannot be read comes as an IGNORED label and its fault.
    """

    def __init__(
        self,
        part: Shard,
        preparation: Preparation,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.part, self.preparation, self.augmentation = part, preparation, augmentation
        size = len(part) * (math.prod(self._shape) + 1)
        self.memory = SharedBytes(size) if 0 < size <= KEPT_BYTES else None

    @property
    def _shape(self) -> tuple[int, int, int]:
        return (self.preparation.channels, self.preparation.size, self.preparation.size)

    @cached_property
    def _kept(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """All images, and which of them are there."""
        if self.memory is None:
            return None
        whole, count = self.memory.tensor, len(self)
        return whole[:-count].view(count, *self._shape), whole[-count:]

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name != "_kept"}  # views of the memory

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, key: int) -> dict[str, Any]:
        epoch, index = divmod(key, len(self))
        try:
            pixels = self.pixels(index)
        except UnreadableImage as fault:
            blank = torch.zeros(self._shape, dtype=torch.uint8)
            return {"pixels": blank, "label": IGNORED, "fault": (self.part.place(index), str(fault))}
        if self.augmentation:
            pixels = self.augmentation(pixels, epoch, index)
        return {"pixels": pixels, "label": self.part.labels[index], "fault": None}

    def pixels(self, index: int) -> torch.Tensor:
        """Return (channels, size, size), uint8, without augmentation. Raises UnreadableImage."""
        if self._kept is None:
            return self.preparation.pixels(self.part.read(index))
        kept, there = self._kept
        if not there[index]:
            kept[index] = self.preparation.pixels(self.part.read(index))
            there[index] = 1
        return kept[index]

    def faults(self, first: int, step: int, most: int) -> Iterator[tuple[int, str, str]]:
        """Yield (index, place, what) of unreadable ones of samples first, first + step, ...: `most` are
        read."""
        for index in range(first, min(len(self), first + step * most), step):
            try:
                self.pixels(index)
            except UnreadableImage as fault:
                yield index, self.part.place(index), str(fault)

    def without(self, indices: set[int]) -> ImageSet:
        """Leave some samples out."""
        kept = [index for index in range(len(self)) if index not in indices]
        return self.only(kept) if indices else self

    def only(self, indices: Sequence[int]) -> ImageSet:
        """Keep some of the samples."""
        return ImageSet(self.part.only(indices), self.preparation, self.augmentation)


class EpochSampler(GroupedSampler):
    """The same order in all kinds of jobs; each number has the epoch as well (see ImageSet)."""

    def __iter__(self) -> Iterator[int]:
        start = self.epoch() * len(self.lengths)
        return (start + index for index in super().__iter__())


def collate(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Collate samples -> {"pixel_values": (batch, channels, size, size) uint8, "labels": (batch,)}.

    Bytes are a quarter of what the model reads: `normalised` in train.py makes that of them, on the device.
    FAULTS is there where an image cannot be read: a list of (place, what). A sample that only fills up a
    batch (worker/heldout.py: PaddedRows) has an IGNORED label.
    """
    batch: dict[str, Any] = {
        "pixel_values": torch.stack([each["pixels"] for each in samples]),
        "labels": torch.tensor([IGNORED if "ignored" in each else each["label"] for each in samples]),
    }
    faults = [each["fault"] for each in samples if each["fault"]]
    return {**batch, FAULTS: faults} if faults else batch


@dataclass(frozen=True)
class ImageCounter:
    """Counts a batch: images that can be read, and the tokens that the model makes of them."""

    tokens_per_image: int

    def __call__(self, inputs: Mapping[str, Any]) -> Counts:
        samples = int(inputs["labels"].shape[0])
        read = samples - len(inputs.get(FAULTS, ()))
        return Counts(read, read * self.tokens_per_image, samples * self.tokens_per_image)


# ----------------------------------------------------------------------------------------------------
# scikit-learn's digits, which come with Muster.

DIGITS = "digits"  # what the embedded images are called


@dataclass(frozen=True)
class ArraySource:
    """Images that are in memory: (images, height, width) or (images, height, width, 3) uint8, 0 to 255.

    parts: (name, rows) of what they were read from, in their order.
    """

    images: Any
    parts: Sequence[tuple[str, int]]

    def read(self, row: int) -> Image.Image:
        """See ImageSource."""
        return Image.fromarray(self.images[row])

    def place(self, row: int) -> str:
        """Name the row: part[row of this part]."""
        return place_in(self.parts, row)


def place_in(parts: Sequence[tuple[str, int]], row: int) -> str:
    """Name a row of all parts: (name, rows) each, in their order."""
    ends = list(accumulate(rows for _, rows in parts))
    which = min(bisect_right(ends, row), len(ends) - 1)
    return row_of(parts[which][0], row - (ends[which] - parts[which][1]))


def read_digits() -> tuple[Any, list[int]]:
    """Read scikit-learn's digits: (1797, 8, 8) uint8, whose 0..16 become 0..255, and the class of each.

    The file is scikit-learn's own (digits.csv.gz): the test part of E. Alpaydin and C. Kaynak, Optical
    Recognition of Handwritten Digits (1998), UCI Machine Learning Repository, CC BY 4.0.
    """
    packed = resources.files("muster.workloads.image_classification").joinpath("digits.csv.gz").read_bytes()
    text = io.StringIO(gzip.decompress(packed).decode("ascii"))
    rows = np.array([[float(value) for value in line] for line in csv.reader(text)])
    images = np.rint(rows[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return images, [int(label) for label in rows[:, 64]]


# ----------------------------------------------------------------------------------------------------
# Where images come from: Parquet, folders, a hub data set, the digits.


@dataclass(frozen=True)
class Shard:
    """A part of a data set: its source, and the rows in use with their class numbers.

    `faults`: (place, error) of rows without a usable label, which are not in use.
    """

    source: ImageSource
    rows: list[int]
    labels: list[int]
    faults: list[DataError] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> Image.Image:
        """Read and decode the image of a row in use. Raises UnreadableImage."""
        return self.source.read(self.rows[index])

    def place(self, index: int) -> str:
        """Name a row in use."""
        return self.source.place(self.rows[index])

    def only(self, indices: Sequence[int]) -> Shard:
        """Keep some of the rows in use."""
        rows, labels = [self.rows[i] for i in indices], [self.labels[i] for i in indices]
        return Shard(self.source, rows, labels, self.faults)


@dataclass(frozen=True)
class Parts:
    """Training and held-out images and the names of their classes."""

    train: Shard
    held_out: Shard
    names: tuple[str, ...]


def load_parts(data: ImageData, seed: int, number: int | None) -> Parts:
    """Load the recipe's images. `number`: of classes, where the recipe says it. Raises DataError.

    With data.bad = skip, rows without a usable label are left out and counted in `faults`.
    """
    if data.path:
        images = find_images(Path(data.path).expanduser())
        if isinstance(images, ImageBatches):
            parts = _batches(images)
        else:
            parts = _folders(images) if isinstance(images, ImageFolders) else _parquet(images, data, number)
    elif data.name:
        parts = _hub(data, number)
    else:
        parts = _digits(data.digits or Digits())
    for part in (parts.train, parts.held_out):
        if part.faults and data.bad == "error":
            raise part.faults[0]
    train, held_out = parts.train, parts.held_out
    if not len(held_out) and data.validation_fraction:
        train, held_out = _split(train, data.validation_fraction, seed)
    if not len(train):
        raise DataError("has no images to train on", where=data.path or data.name)
    return Parts(train.only(range(len(train))[: data.limit]), held_out, parts.names)


def _split(part: Shard, fraction: float, seed: int) -> tuple[Shard, Shard]:
    """Hold out a random part, at least one image; the rest stays in its order."""
    order = list(range(len(part)))
    random.Random(seed).shuffle(order)
    count = max(1, int(len(order) * fraction))
    if len(order) < 2:
        raise DataError(f"{len(order)} images are too few to hold some out")
    held_out = replace(part.only(sorted(order[:count])), faults=[])  # the whole's: counted once
    return part.only(sorted(order[count:])), held_out


# --- folders ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSource:
    """Image files."""

    files: Sequence[Path]

    def read(self, row: int) -> Image.Image:
        """See ImageSource."""
        return decode(self.files[row])

    def place(self, row: int) -> str:
        """Name the file."""
        return str(self.files[row])


def _folders(images: ImageFolders) -> Parts:
    def part(files: Sequence[tuple[Path, int]]) -> Shard:
        source = FileSource([file for file, _ in files])
        return Shard(source, list(range(len(files))), [number for _, number in files])

    return Parts(part(images.train), part(images.held_out), images.names)


# --- CIFAR-10's batches ----------------------------------------------------------------------------------


def _batches(batches: ImageBatches) -> Parts:
    def part(files: Sequence[Path]) -> Shard:
        read = [batches.read(file) for file in files]
        labels = [label for own, _ in read for label in own]
        pixels = np.frombuffer(b"".join(pixels for _, pixels in read), np.uint8)
        images = pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
        names = [(str(file), len(own)) for file, (own, _) in zip(files, read, strict=True)]
        source = ArraySource(np.ascontiguousarray(images), names)
        return Shard(source, list(range(len(labels))), labels)

    return Parts(part(batches.train), part(batches.held_out), batches.names)


# --- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableSource:
    """A column of encoded images, memory-mapped: a struct of bytes and path, or bytes.

    table: of the datasets library, which a loader process maps by itself: a column alone would be copied
    there; parts: (name, rows) of the files that it was made from, in their order.
    """

    table: Any
    name: str
    parts: Sequence[tuple[str, int]]

    @property
    def column(self) -> Any:
        """Arrow's."""
        return self.table.data.table.column(self.name)

    def read(self, row: int) -> Image.Image:
        """See ImageSource."""
        value = self.column[row].as_py()
        if value is None:
            raise UnreadableImage("is missing")
        if isinstance(value, dict):
            content, path = value.get("bytes"), value.get("path")
            if content is None and path:
                return decode(Path(self.parts[0][0]).parent / path)
            value = content or b""
        return decode(value)

    def place(self, row: int) -> str:
        """Name the row: file[row of this file]."""
        return place_in(self.parts, row)


def _parquet(data_files: DataFiles, data: ImageData, number: int | None) -> Parts:
    """Load Parquet files by way of the datasets library, whose cache on this machine the ranks share and map
    into memory."""
    training, held_out = (
        [read_table(file, data.image, data.label) for file in files]
        for files in (data_files.train, data_files.validation)
    )
    first, classes = training[0], table_classes(training, number)
    parts = {
        name: _table_part(
            _read([table.file for table in tables]),
            first.image,
            first.label,
            classes,
            [(str(table.file), len(table.labels)) for table in tables],
        )
        for name, tables in (("train", training), ("held_out", held_out))
        if tables
    }
    return Parts(parts["train"], _held_out(parts, "held_out"), classes.names)


def _held_out(parts: Mapping[Any, Shard], *names: str) -> Shard:
    """Return the first of the parts that has rows, be they usable or not; an empty one where none has."""
    there = [parts[name] for name in names if name in parts]
    return next((part for part in there if len(part) or part.faults), Shard(parts["train"].source, [], []))


def _read(files: Sequence[Path]) -> Any:
    """Read Parquet files as one table; the library calls all files of one list train."""
    return load("parquet", str(files[0].parent), data_files=[str(file) for file in files], split="train")


def _table_part(
    table: Any, image: str, label: str, classes: Classes, files: Sequence[tuple[str, int]]
) -> Shard:
    missing = [name for name in (image, label) if name not in table.column_names]
    if missing:
        raise DataError(
            f"has no column {missing[0]!r}",
            where=files[0][0],
            hint=f"its columns: {', '.join(table.column_names)}; the training images have this one",
        )
    source = TableSource(table, image, files)
    values = table.data.table.column(label).to_pylist()
    numbers: dict[object, int | None] = {value: classes.number(value) for value in set(values)}
    rows, labels, faults = [], [], []
    for row, value in enumerate(values):
        number = numbers[value]
        if number is None:
            fault = classes.fault(value)
            faults.append(DataError(fault.what, where=source.place(row), hint=fault.hint))
        else:
            rows.append(row)
            labels.append(number)
    return Shard(source, rows, labels, faults)


def _hub(data: ImageData, number: int | None) -> Parts:
    where = f"data.name={data.name}"
    loaded = hub_parts(str(data.name), data.subset)
    train = loaded["train"]
    image = image_column(data.image, train.column_names, where)
    label = label_column(data.label, train.column_names, where)
    labels = train.data.table.column(label).unique().to_pylist()
    classes = classes_of(labels, getattr(train.features[label], "names", None), number)
    parts = {
        name: _table_part(loaded[name], image, label, classes, [(f"{data.name}/{name}", len(loaded[name]))])
        for name in ("train", "validation", "test")
        if name in loaded
    }
    return Parts(parts["train"], _held_out(parts, "validation", "test"), classes.names)


# --- the embedded default --------------------------------------------------------------------------------


def _digits(digits: Digits) -> Parts:
    images, labels = read_digits()
    source = ArraySource(images, [(DIGITS, len(labels))])
    if digits.validation >= len(labels):
        raise DataError(
            f"holds out {digits.validation} of {len(labels)} digits", where="data.digits.validation"
        )
    order = list(range(len(labels)))
    random.Random(digits.seed).shuffle(order)
    held_out, train = order[: digits.validation], order[digits.validation :]
    return Parts(
        Shard(source, train, [labels[row] for row in train]),
        Shard(source, held_out, [labels[row] for row in held_out]),
        tuple(str(digit) for digit in range(10)),
    )
