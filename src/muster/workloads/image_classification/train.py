"""Image classification: a vision model (ViT) learns to name what is on an image."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageClassification, TrainingArguments

from muster.core.errors import DataError
from muster.core.recipe import Recipe
from muster.core.units import counted
from muster.store import events
from muster.store.lines import Skipped
from muster.worker import answering
from muster.worker.context import Context, Emitter
from muster.worker.together import check_alike, first_on_disk, gather
from muster.worker.trainer import Trainer, wired
from muster.worker.workloads.base import Built, HeldOut, limit_notes
from muster.workloads.image_classification.images import (
    FAULTS,
    Augmentation,
    EpochSampler,
    ImageCounter,
    ImageSet,
    Parts,
    Preparation,
    Shard,
    UnreadableImage,
    collate,
    decode,
    load_parts,
)
from muster.workloads.image_classification.model import (
    accept_colour,
    data_of,
    make_model,
    preparation_for,
    tokens_per_image,
)
from muster.workloads.image_classification.spec import number_of_classes

CHECKED = 50_000  # images that a rank decodes before the training, to find those that cannot be read


class _Trainer(Trainer):
    """Muster's trainer, which normalises images on the device, and learns of those that could not be read."""

    def __init__(self, *, preparation: Preparation, emit: Emitter, bad: str, **given: Any) -> None:
        super().__init__(**given)
        self.preparation, self.emit, self.bad = preparation, emit, bad
        self.noted: set[str] = set()  # images that could not be read

    def compute_loss(self, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        """Compute the loss of normalised images. An unreadable one does not count and is noted once, or ends
        the run. Raises DataError."""
        for place, what in inputs.pop(FAULTS, ()):
            if self.bad == "error":
                raise unreadable(place, what)
            if place not in self.noted:
                self.noted.add(place)
                self.emit(events.Noted, text=f"skipped in training: {place}: {what}")
        return super().compute_loss(model, self.normalised(inputs), *rest, **named)

    def normalised(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Normalise a loader's batch, in the type that the engine gives its inputs."""
        pixels = self.preparation.normalise(inputs["pixel_values"])
        return {**inputs, "pixel_values": self._prepare_input(pixels)}


def unreadable(place: str, what: str) -> DataError:
    """Make the error of an image that cannot be read."""
    return DataError(what, where=place, hint="data.bad=skip leaves such images out and counts them")


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe: data, model, loss. Raises DataError and RecipeError."""
    recipe, data = context.recipe, data_of(context.recipe)
    with first_on_disk(context):
        parts = load_parts(data, recipe.train.seed, number_of_classes(recipe))
    check_alike(context, "the images are", lambda: counts_of(parts))
    model = make_model(context, parts.names)
    preparation = preparation_for(recipe, model.config)
    augmentation = Augmentation(data.flip, data.crop, recipe.train.seed) if data.flip or data.crop else None
    limit, limited = recipe.evaluate.limit, parts.held_out
    if limit and limit < len(limited):
        limited = limited.only(spread(len(limited), limit))
    train = ImageSet(parts.train, preparation, augmentation)
    held_out = ImageSet(limited, preparation)
    skipped = Skipped()
    for error in (*parts.train.faults, *parts.held_out.faults):
        skipped.add(error)
    train, held_out = (_readable(context, images, skipped) for images in (train, held_out))
    if not len(train):
        raise DataError("no training image can be read", where=data.path or data.name)
    if not len(held_out) and len(limited):
        raise DataError("no held-out image can be read", where=data.path or data.name)
    most = max(context.batch.micro, context.recipe.evaluate.batch)
    share = min(most, max(1, -(-len(held_out) // context.world_size)))
    arguments = {**arguments, "per_device_eval_batch_size": share, "label_names": ["labels"]}
    trainer = wired(
        _Trainer,
        context,
        model,
        TrainingArguments(**arguments),
        train=train,
        held_out=held_out,
        lengths=[1] * len(train),
        collator=collate,
        processing=preparation,
        sampler=EpochSampler,
        preparation=preparation,
        emit=context.emit,
        bad=data.bad,
    )
    counter = ImageCounter(tokens_per_image(model.config))
    notes = limit_notes(len(parts.held_out), limit)
    questions = _questions(held_out.part, parts.names)
    return Built(trainer, counter, len(train), questions, skipped=skipped, notes=notes, finish=accept_colour)


def counts_of(parts: Parts) -> str:
    """Count images and classes: ranks of unlike numbers would wait for each other without end. What is in the
    files, `muster prepare` compares."""
    train, held_out, names = len(parts.train), len(parts.held_out), len(parts.names)
    return f"{train:,} to train on and {held_out:,} held out, {counted(names, 'class')}"


def spread(count: int, limit: int) -> list[int]:
    """Draw at most `limit` of `count` indices, once and for all: data are often sorted by class."""
    return sorted(random.Random(count).sample(range(count), min(limit, count)))


def _readable(context: Context, images: ImageSet, skipped: Skipped) -> ImageSet:
    """Decode each image once, the ranks sharing the work. -> without the unreadable ones, which are added.

    Those beyond CHECKED per rank are found when their turn comes. Raises DataError on every rank.
    """
    mine = list(images.faults(context.rank, context.world_size, CHECKED))
    faults = sorted(fault for each in gather(mine) for fault in each)
    for _, place, what in faults:
        if data_of(context.recipe).bad == "error":
            raise unreadable(place, what)
        skipped.add(DataError(what, where=place))
    return images.without({index for index, _, _ in faults})


def _questions(part: Shard, names: Sequence[str]) -> list[HeldOut]:
    return [HeldOut(part.place(index), names[label]) for index, label in enumerate(part.labels)]


# --- answering -------------------------------------------------------------------------------------------


def questions(recipe: Recipe, cache: Path) -> list[HeldOut]:
    """Return all held-out images, but for those that cannot be read where data.bad is skip. Raises
    DataError."""
    parts = load_parts(data_of(recipe), recipe.train.seed, number_of_classes(recipe))
    held_out = parts.held_out
    if data_of(recipe).bad == "skip":
        held_out = held_out.only([i for i in range(len(held_out)) if _can_be_read(held_out, i)])
    return _questions(held_out, parts.names)


def _can_be_read(part: Shard, index: int) -> bool:
    try:
        part.read(index)
    except UnreadableImage:
        return False
    return True


class Answerer(answering.Answerer):
    """Name what is on images: files, or rows of the recipe's held-out data."""

    kind = AutoModelForImageClassification

    def __init__(self, folder: Path, recipe: Any, device: str) -> None:
        super().__init__(folder, recipe, device)
        self.preparation = Preparation.from_saved(folder)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answer(self, questions: Sequence[str]) -> tuple[list[str], float]:
        """Return the most probable class of each image, and the seconds that took (reading to name)."""
        began = time.perf_counter()
        names, answers = self.model.config.id2label, []
        size = self.recipe.evaluate.batch
        for start in range(0, len(questions), size):
            pixels = torch.stack([self._pixels(question) for question in questions[start : start + size]])
            batch = self.preparation.normalise(pixels.to(self.device))
            logits = self.model(pixel_values=batch).logits
            answers += [names[number] for number in logits.argmax(-1).tolist()]
        return answers, time.perf_counter() - began

    def _pixels(self, question: str) -> torch.Tensor:
        """Return (channels, size, size) of a file or a held-out row. Raises DataError for what is no
        image."""
        try:
            if Path(question).is_file():
                return self.preparation.pixels(decode(Path(question)))
            if question not in self._places:
                raise DataError("no such image", where=question, hint="an image file")
            return self.preparation.pixels(self._held_out.read(self._places[question]))
        except UnreadableImage as fault:
            raise DataError(str(fault), where=question) from None

    @cached_property
    def _held_out(self) -> Shard:
        """The recipe's held-out images."""
        recipe = self.recipe
        return load_parts(data_of(recipe), recipe.train.seed, number_of_classes(recipe)).held_out

    @cached_property
    def _places(self) -> dict[str, int]:
        """What each of them is called, and its number."""
        return {self._held_out.place(index): index for index in range(len(self._held_out))}
