"""Image classification, as the control side knows it: its data and recipe, and what is known before ranks
start. No image is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from muster.core import families
from muster.core.data import Data, OnBad
from muster.core.errors import DataError, ReaderMissingError
from muster.core.families import vit
from muster.core.recipe import DATA, WORKLOAD, Recipe
from muster.core.section import PositiveInt, Section
from muster.core.units import counted
from muster.core.workload import Lengths, Survey
from muster.store.records import DataFiles, held_note, parts_of
from muster.workloads.image_classification.batches import ImageBatches
from muster.workloads.image_classification.files import (
    ImageFolders,
    classes_at,
    find_images,
    read_table,
    table_classes,
)

DIGITS, CLASSES = 1797, 10  # scikit-learn's


class Digits(Section):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

    validation: PositiveInt = Field(360, description="Number of held-out images, of 1,797 in all.")
    seed: int = Field(0, description="Seed of the choice of held-out images.")


class ImageData(Data):
    """Images with labels."""

    exclusive: ClassVar[tuple[str, ...]] = (*Data.exclusive, "digits")
    embedded: ClassVar[str | None] = "digits"

    digits: Digits | None = Field(
        None, description="scikit-learn's handwritten digits; the built-in data of this workload."
    )
    image: str = Field("image", description="Name of the column that holds the image.")
    label: str = Field("label", description="Name of the column that holds the image's class.")
    size: PositiveInt | None = Field(
        None,
        description="Side of the images in pixels after resizing. Null: the model's image_size, else 224.",
    )
    mean: list[float] | None = Field(
        None,
        description="Mean of each channel, for pixel values from 0 to 1. Null: the pretrained model's, else "
        "0.5.",
    )
    std: list[Annotated[float, Field(gt=0)]] | None = Field(
        None, description="Standard deviation of each channel. Null: the pretrained model's, else 0.5."
    )
    flip: bool = Field(False, description="Mirror half of the training images, chosen at random.")
    crop: Annotated[int, Field(ge=0)] = Field(
        0, description="Pad training images by this many pixels, then cut a random part of the old size."
    )
    bad: OnBad = Field(
        "error", description="What to do with an image that cannot be read: error, or skip and count it."
    )


class ImageRecipe(Recipe):
    """A vision model learns to name what is on an image."""

    families: ClassVar[tuple[ModuleType, ...]] = (vit,)
    tokenized: ClassVar[bool] = False
    traced: ClassVar[bool | str] = True
    config_keys: ClassVar[Mapping[str, str]] = {"image_size": "data.size"}
    metric: ClassVar[str] = "top-1 accuracy"
    answer_names: ClassVar[Mapping[str, str]] = {"text": "another class", "exact": "the right class"}
    loading: ClassVar[str] = """\
from transformers import pipeline
model = pipeline("image-classification", model={model})
print(model("image.png"))"""

    workload: str = Field("image-classification", description=WORKLOAD)
    data: ImageData = Field(default_factory=ImageData, description=DATA)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> None:
        """Look at files, labels and sizes. What is wrong with single images and labels is an error where
        data.bad says so. Raises DataError with the file, and the row in it."""
        if path is None:
            return
        data, images, strict = self.data, find_images(path), self.data.bad == "error"
        if isinstance(images, ImageBatches):
            for file in (*images.train, *images.held_out):
                images.read(file)
            return
        if isinstance(images, ImageFolders):
            self._check_count(len(images.train), len(images.held_out))
            if strict:
                images.check()
            return
        tables = [read_table(file, data.image, data.label) for file in (*images.train, *images.validation)]
        training = tables[: len(images.train)]
        classes = table_classes(training, number_of_classes(self))
        self._check_count(sum(len(table.labels) for table in training), len(images.validation))
        for table in tables if strict else ():
            table.check(classes)

    def _check_count(self, train: int, held_out: int) -> None:
        if train + held_out < 2:
            raise DataError("1 image is too few to hold some out", where=self.data.path, hint="more images")

    def describe_data(self, path: Path) -> str:
        """Count the images, or name the files."""
        images, fraction = find_images(path), self.data.validation_fraction
        if isinstance(images, DataFiles):
            return parts_of(path, images.train, images.validation, fraction)
        if isinstance(images, ImageBatches):
            return parts_of(path, images.train, images.held_out, fraction)
        held = f"{len(images.held_out):,} held out" if images.held_out else f"held out {fraction:.3g} of it"
        return f"{path}: {counted(len(images.train), 'image')} to train on, {held}"

    def epoch_samples(self) -> int | None:
        """Count the digits; other images are counted by ranks."""
        if not self.data.digits:
            return None
        count = DIGITS - self.data.digits.validation
        return min(count, self.data.limit or count)

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Note what is held out."""
        path = Path(self.data.path).expanduser() if self.data.path else None
        if path is None or not path.exists():
            return super().survey(config)
        images = find_images(path)
        held = images.validation if isinstance(images, DataFiles) else images.held_out
        notes = [] if held else held_note(None, None, self.data.validation_fraction)
        return Survey(self.epoch_samples(), tuple(notes))

    @property
    def loaders(self) -> int:
        """A process decodes and resizes some 500 photographs a second (benchmarks/images.py), and a GPU
        trains ViT-B/16 on a few thousand; the digits are decoded once."""
        return 0 if self.data.digits or not self.data.source else 8

    def config_of_data(self) -> dict[str, Any]:
        """Return the images' size, and how many classes they have, which decides the classifier's size."""
        classes = self.classes()
        return {
            **({"image_size": self.data.size} if self.data.size else {}),
            **({"num_labels": classes} if classes else {}),
        }

    def assumed(self, config: Mapping[str, Any]) -> list[str]:
        """Say how many classes are assumed, where their number is not known here."""
        if self.classes() or config.get("num_labels"):
            return []
        return [
            f"the number of the images' classes is unknown: {vit.labels(config)} are counted; "
            "model.config.num_labels=N says it"
        ]

    def classes(self) -> int | None:
        """Count the classes of the run's images, as its ranks do; None: not known here, since the data is on
        a hub or on other machines. Raises DataError for images that cannot be read."""
        data = self.data
        if not data.path:
            return None if data.name else CLASSES
        path = Path(data.path).expanduser()
        if not path.exists():
            return None
        with suppress(ReaderMissingError):
            return classes_at(path, data.image, data.label, number_of_classes(self)) or None
        return None

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths | None:
        """Count ViT's patches and class token; of other families, a trace alone knows them."""
        if config is None:
            return None
        is_vit = families.family_of(config) is vit
        return Lengths(vit.tokens(families.filled(config)) if is_vit else 0)


RECIPE = ImageRecipe


def number_of_classes(recipe: Recipe) -> int | None:
    """Return the recipe's number of classes, which counts where labels are numbers and the data names no
    classes."""
    number = (recipe.model.config or {}).get("num_labels")
    return number if isinstance(number, int) and number > 0 else None
