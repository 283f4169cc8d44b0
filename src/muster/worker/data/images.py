"""Images as a model wants them: decoded, resized, augmented, batched, normalised.

Resizing is Pillow's, bilinear with antialiasing, as torchvision's Resize does it to a Pillow image.
"""

from __future__ import annotations

import io
import json
import mmap
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from muster.core.errors import DataError
from muster.worker.data.sampler import GroupedSampler
from muster.worker.loss import IGNORED
from muster.worker.workloads.base import Counts

KEPT_BYTES = 512 << 20  # decoded and resized images that a rank keeps in memory
PREPARATION = "preprocessor_config.json"  # Transformers' name for how images are prepared
FAULTS = "faults"  # the key of a batch's unreadable images


class UnreadableImage(Exception):
    """An image that cannot be read."""


class ImageSource(Protocol):
    """Where images come from."""

    def read(self, row: int) -> Image.Image:
        """The image of a row, decoded. Raises Fault."""

    def place(self, row: int) -> str:
        """What to call the row: a file, or a file with a row."""


def decode(data: bytes | Path) -> Image.Image:
    """An image file's content. Raises Fault with what is wrong with it."""
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
        """-> (channels, size, size), uint8."""
        image = image.convert("L" if self.channels == 1 else "RGB")
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        array = np.array(image, dtype=np.uint8).reshape(self.size, self.size, self.channels)
        return torch.from_numpy(array).permute(2, 0, 1)

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """(batch, channels, size, size) uint8 -> float32: (value / 255 - mean) / std per channel."""
        mean = torch.tensor(self.mean).view(1, -1, 1, 1)
        scale = 1 / (255 * torch.tensor(self.std).view(1, -1, 1, 1))
        return pixels.float().mul_(scale).sub_(255 * mean * scale)

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
        """Of a trained model. Raises DataError."""
        try:
            content = json.loads((folder / PREPARATION).read_text(encoding="utf-8"))
            return cls(
                int(content["size"]["height"]), tuple(content["image_mean"]), tuple(content["image_std"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"cannot be read: {error}", where=str(folder / PREPARATION)) from None


@dataclass(frozen=True)
class Augmentation:
    """Changes to training images that depend on seed, epoch and sample alone: not on ranks or workers."""

    flip: bool
    crop: int
    seed: int

    def __call__(self, pixels: torch.Tensor, epoch: int, index: int) -> torch.Tensor:
        """(channels, size, size) -> the same shape: mirrored or not, and moved by at most `crop` pixels."""
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
    and resized images are kept where they take less than KEPT_BYTES, in memory that forked loader
    processes share. An image that cannot be read comes as an IGNORED label and its fault.
    """

    def __init__(
        self,
        source: ImageSource,
        rows: Sequence[int],
        labels: Sequence[int],
        preparation: Preparation,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.source, self.rows, self.labels = source, list(rows), list(labels)
        self.preparation, self.augmentation = preparation, augmentation
        self.kept: torch.Tensor | None = None
        self.there: torch.Tensor | None = None
        shape = (preparation.channels, preparation.size, preparation.size)
        each = shape[0] * shape[1] * shape[2]
        if 0 < len(self.rows) * (each + 1) <= KEPT_BYTES:
            memory = mmap.mmap(-1, len(self.rows) * (each + 1))  # anonymous and shared with forks
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            self.kept = whole[: len(self.rows) * each].view(len(self.rows), *shape)
            self.there = whole[len(self.rows) * each :]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": None, "there": None}  # a spawned loader process keeps nothing

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int) -> dict[str, Any]:
        epoch, index = divmod(key, len(self.rows))
        try:
            pixels = self.pixels(index)
        except UnreadableImage as fault:
            blank = torch.zeros(
                self.preparation.channels, self.preparation.size, self.preparation.size, dtype=torch.uint8
            )
            return {"pixels": blank, "label": IGNORED, "fault": (self.place(index), str(fault))}
        if self.augmentation:
            pixels = self.augmentation(pixels, epoch, index)
        return {"pixels": pixels, "label": self.labels[index], "fault": None}

    def place(self, index: int) -> str:
        """What to call a sample."""
        return self.source.place(self.rows[index])

    def pixels(self, index: int) -> torch.Tensor:
        """(channels, size, size), uint8, without augmentation. Raises Fault."""
        if self.kept is None or self.there is None:
            return self.preparation.pixels(self.source.read(self.rows[index]))
        if not self.there[index]:
            self.kept[index] = self.preparation.pixels(self.source.read(self.rows[index]))
            self.there[index] = 1
        return self.kept[index]

    def faults(self, first: int, step: int, most: int) -> Iterator[tuple[int, str, str]]:
        """(index, place, what) of unreadable ones of samples first, first + step, ...: `most` are read."""
        for index in range(first, min(len(self.rows), first + step * most), step):
            try:
                self.pixels(index)
            except UnreadableImage as fault:
                yield index, self.place(index), str(fault)

    def without(self, indices: set[int]) -> ImageSet:
        """The same without some samples."""
        kept = [index for index in range(len(self.rows)) if index not in indices]
        return self.only(kept) if indices else self

    def only(self, indices: Sequence[int]) -> ImageSet:
        """Some of the samples."""
        return ImageSet(
            self.source,
            [self.rows[index] for index in indices],
            [self.labels[index] for index in indices],
            self.preparation,
            self.augmentation,
        )


class EpochSampler(GroupedSampler):
    """The same order in all kinds of jobs; each number tells the epoch as well (see ImageSet)."""

    def __iter__(self) -> Iterator[int]:
        start = self.epoch() * len(self.lengths)
        return (start + index for index in super().__iter__())


@dataclass(frozen=True)
class ImageCollator:
    """Samples -> {"pixel_values": (batch, channels, size, size) float32, "labels": (batch,)}.

    FAULTS is there where an image cannot be read: a list of (place, what). A sample that only fills up a
    batch (data/packed.py: Filled) has an IGNORED label.
    """

    preparation: Preparation

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = {
            "pixel_values": self.preparation.normalise(torch.stack([each["pixels"] for each in samples])),
            "labels": torch.tensor([IGNORED if "ignored" in each else each["label"] for each in samples]),
        }
        faults = [each["fault"] for each in samples if each["fault"]]
        return {**batch, FAULTS: faults} if faults else batch


@dataclass(frozen=True)
class Counter:
    """Counts a batch: images that can be read, and the tokens that the model makes of them."""

    tokens_per_image: int

    def __call__(self, inputs: Mapping[str, Any]) -> Counts:
        samples = int(inputs["labels"].shape[0])
        read = samples - len(inputs.get(FAULTS, ()))
        return Counts(read, read * self.tokens_per_image, samples * self.tokens_per_image)
