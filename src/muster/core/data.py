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

    name: str | None = Field(None, description="a Hugging Face data set")
    path: str | None = Field(None, description="a file, or a folder with train and validation files")
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="held out where the data has no validation part of its own"
    )
    limit: PositiveInt | None = Field(None, description="use the first so many training samples only")
    options: dict[str, Any] = Field(default_factory=dict, description="of a third party's workload")

    @property
    def source(self) -> str | None:
        """The name of the source that is given."""
        return next((name for name in self.exclusive if getattr(self, name, None) is not None), None)


class Generated(Section):
    """The generated text-to-SQL set: how many questions, and the seed that makes them."""

    train: PositiveInt = 8000
    validation: PositiveInt = 300
    seed: int = 0


class TextToSqlData(Data):
    """Questions and their SQL."""

    embedded: ClassVar[str | None] = "generated"

    generated: Generated | None = None
    question: str = Field("question", description="the field that holds the input")
    sql: str = Field("sql", description="the field that holds the answer")
    prefix: str = Field("translate to SQL: ", description="put before every question")
    max_source: PositiveInt = Field(96, description="tokens; longer inputs are cut, and counted")
    max_target: PositiveInt = Field(96, description="tokens; longer answers are cut, and counted")
    padding: Literal["dynamic", "fixed"] = Field(
        "dynamic",
        description="dynamic: to the longest of a batch of similar lengths; fixed: to max_source/target",
    )


class Library(Section):
    """The Python standard library's own sources."""

    megabytes: Annotated[float, Field(gt=0)] | None = Field(None, description="at most; None: all of them")


class Synthetic(Section):
    """Random tokens that need no input: the same for the same seed, on any number of ranks."""

    samples: PositiveInt | None = Field(None, description="None: as many as the run's steps use")
    validation: PositiveInt = 16
    vocab_size: PositiveInt | None = Field(None, description="None: the model's")
    seed: int = 0


class TextData(Data):
    """Text, packed to full sequences."""

    embedded: ClassVar[str | None] = "library"

    library: Library | None = None
    synthetic: Synthetic | None = None
    field: str = Field("text", description="the field of JSON lines or of a data set that holds the text")
    subset: str | None = Field(None, description="the configuration of a hub data set")
    sequence: PositiveInt | None = Field(None, description="tokens per sample; None: the model's positions")
    bad: OnBad = Field("error", description="a text that cannot be read: an error, or skipped and counted")


class Digits(Section):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

    validation: PositiveInt = 360
    seed: int = 0


class ImageData(Data):
    """Images with labels."""

    embedded: ClassVar[str | None] = "digits"

    digits: Digits | None = None
    image: str = Field("image", description="the column that holds the image")
    label: str = Field("label", description="the column that holds its class")
    subset: str | None = Field(None, description="the configuration of a hub data set")
    size: PositiveInt | None = Field(
        None, description="pixels of a side after resizing; None: the model's image_size, or 224"
    )
    mean: list[float] | None = Field(
        None, description="per channel, of values in 0..1; None: the pretrained model's own, else 0.5"
    )
    std: list[Annotated[float, Field(gt=0)]] | None = Field(None, description="per channel; None: as mean")
    flip: bool = Field(False, description="mirror half of the training images")
    crop: Annotated[int, Field(ge=0)] = Field(
        0, description="pixels of padding, of which a random part is cut off again (training)"
    )
    bad: OnBad = Field("error", description="an image that cannot be read: an error, or skipped and counted")


class FabricData(Data):
    """The fabric reads nothing."""
