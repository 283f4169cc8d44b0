"""Where the samples come from: what every workload may read, and each workload's own."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from muster.core.section import PositiveInt, Section

OnBad = Literal["error", "skip"]


class Data(Section):
    """What every workload's data may have. Of its sources, at most one is given."""

    # All workloads' sources: layers of a recipe are merged before its workload is known.
    exclusive: ClassVar[tuple[str, ...]] = (
        "name", "path", "generated", "library", "synthetic", "digits",
    )  # fmt: skip
    embedded: ClassVar[str | None] = None  # the source where none is given: it needs no file and no network

    name: str | None = Field(None, description="A data set of the Hugging Face hub, such as wikisql.")
    subset: str | None = Field(None, description="Configuration of the hub data set. Null: its only one.")
    path: str | None = Field(
        None, description="A file, or a folder that holds training and validation files."
    )
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05,
        description="Share of the training data that is held out where the data has no validation part.",
    )
    limit: PositiveInt | None = Field(
        None, description="Use only the first so many training samples. Null: all of them."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of a plug-in's workload; Muster's own use none."
    )

    @property
    def source(self) -> str | None:
        """The name of the source that is given."""
        return next((name for name in self.exclusive if getattr(self, name, None) is not None), None)


class Generated(Section):
    """The generated text-to-SQL set: how many questions, and the seed that makes them."""

    train: PositiveInt = Field(8000, description="Number of training questions.")
    validation: PositiveInt = Field(300, description="Number of held-out questions.")
    seed: int = Field(0, description="Seed of the generator: the same seed gives the same questions.")


class TextToSqlData(Data):
    """Questions and their SQL."""

    embedded: ClassVar[str | None] = "generated"

    generated: Generated | None = Field(
        None, description="Questions and SQL that Muster generates; the built-in data of this workload."
    )
    question: str = Field(
        "question", description="Name or dotted path of the field that holds the question (the input)."
    )
    sql: str = Field(
        "sql",
        description="Name or dotted path of the field that holds the SQL (the answer to learn). The default "
        "also finds sql.human_readable (the hub's WikiSQL) and query.",
    )
    prefix: str = Field("translate to SQL: ", description='Text put before every question; "" for none.')
    max_source: PositiveInt = Field(
        96, description="Longest question in tokens; longer ones are truncated and counted."
    )
    max_target: PositiveInt = Field(
        96, description="Longest answer in tokens; longer ones are truncated and counted."
    )
    padding: Literal["dynamic", "fixed"] = Field(
        "dynamic",
        description="dynamic: samples of similar length share a batch and are padded to its longest. fixed: "
        "every sample is padded to max_source and max_target.",
    )


class Library(Section):
    """The Python standard library's own sources."""

    megabytes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Use at most this many megabytes of source text. Null: all of it."
    )


class Synthetic(Section):
    """Random tokens that need no input: the same for the same seed, on any number of ranks."""

    samples: PositiveInt | None = Field(
        None, description="Number of training samples. Null: as many as the run's steps use."
    )
    validation: PositiveInt = Field(16, description="Number of held-out samples.")
    vocab_size: PositiveInt | None = Field(
        None, description="Number of different tokens. Null: the model's vocabulary size."
    )
    seed: int = Field(0, description="Seed of the random tokens.")


class TextData(Data):
    """Text, packed to full sequences."""

    embedded: ClassVar[str | None] = "library"

    library: Library | None = Field(
        None, description="The Python standard library's sources; the built-in data of this workload."
    )
    synthetic: Synthetic | None = Field(None, description="Random tokens, for benchmarks.")
    field: str = Field(
        "text",
        description="Name or dotted path of the field that holds the text; plain text files have none.",
    )
    sequence: PositiveInt | None = Field(
        None, description="Tokens per sample. Null: as many positions as the model has."
    )
    bad: OnBad = Field(
        "error", description="What to do with a text that cannot be read: error, or skip and count it."
    )


class Digits(Section):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

    validation: PositiveInt = Field(360, description="Number of held-out images, of 1,797 in all.")
    seed: int = Field(0, description="Seed of the choice of held-out images.")


class ImageData(Data):
    """Images with labels."""

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


class FabricData(Data):
    """The fabric reads nothing."""
