"""Where the samples come from: what every workload may read. Each workload's own keys are in its spec.py."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from muster.core.section import PositiveInt, Section

OnBad = Literal["error", "skip"]


class Source(Section):
    """One data set of a mix."""

    exclusive: ClassVar[tuple[str, ...]] = ("name", "path")

    name: str | None = Field(None, description="A data set of the Hugging Face hub.")
    subset: str | None = Field(None, description="Configuration of the hub data set. Null: its only one.")
    path: str | None = Field(None, description="A file, or a folder with training and validation files.")
    share: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Its part of the mixed training samples, relative to the other shares. Null: 1 where "
        "another set has a share; where none has, all samples of all sets.",
    )


class Data(Section):
    """The `data` keys of every workload. At most one source is given."""

    exclusive: ClassVar[tuple[str, ...]] = ("name", "path")  # the sources
    embedded: ClassVar[str | None] = None  # the source where none is given: it needs no file and no network

    name: str | None = Field(None, description="A data set of the Hugging Face hub, such as wikisql.")
    subset: str | None = Field(None, description="Configuration of the hub data set. Null: its only one.")
    path: str | None = Field(
        None, description="A file, or a folder that holds training and validation files."
    )
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.05,
        description="Share of the training data that is held out where the data has no validation part. 0: "
        "all of it is trained on, and nothing is evaluated.",
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

    def short(self, samples: int) -> dict[str, Any]:
        """Return changes for a job of so many samples that loads what every job loads."""
        return {}

    def sources(self) -> tuple[Source, ...]:
        """Return the data sets that are read, by name or path; none where they are generated."""
        if self.name or self.path:
            return (Source(name=self.name, subset=self.subset, path=self.path),)
        return ()


class Generated(Section):
    """The generated text-to-SQL set: the number of questions, and the seed."""

    train: PositiveInt = Field(8000, description="Number of training questions.")
    validation: PositiveInt = Field(300, description="Number of held-out questions.")
    seed: int = Field(0, description="Seed of the generator: the same seed gives the same questions.")


class SplitData(Data):
    """Rows with fields, in splits that may be named; or generated."""

    embedded: ClassVar[str | None] = "generated"

    train_split: str | None = Field(
        None,
        description="The split to train on, such as train_sft of train_sft-00000-of-00001.parquet. Null: "
        "what is called train; of several such splits those of the workload (sft: train_sft; reward and dpo: "
        "train_prefs; grpo, rloo and ppo: train_gen), else all of them.",
    )
    held_out_split: str | None = Field(
        None,
        description="The split that is held out. Null: what is called validation, test or the like; of "
        "several the one that ends as the training split does.",
    )
    bad: OnBad = Field(
        "error",
        description="What to do with a row that cannot be used (broken, without a field, with an empty text, "
        "too long where that is no sample): error, or skip and count it.",
    )
    generated: Generated | None = Field(
        None,
        description="Questions and SQL that Muster generates, and wrong SQL where answers are compared; the "
        "built-in data of this workload.",
    )

    def short(self, samples: int) -> dict[str, Any]:
        """Return fewer generated questions."""
        return {"generated": {"train": samples, "validation": 8}} if self.generated else {}
