"""Causal language modelling, as the control side knows it: its data and recipe, and what is known before
ranks start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from muster.core import families
from muster.core.data import Data, OnBad
from muster.core.errors import DataError, RecipeError
from muster.core.families import gpt2, llama, opt
from muster.core.families.checking import check_length
from muster.core.recipe import DATA, WORKLOAD, Recipe
from muster.core.section import PositiveInt, Section
from muster.core.workload import Lengths, Survey
from muster.store.records import held_note, names_of, parts_of
from muster.workloads.causal_lm.texts import check_texts, find_texts

FROM_SCRATCH = "a model from scratch with more of them"
CHECKED = 1 << 30  # bytes of text that are read before ranks start; they read all of it, and say the same


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

    exclusive: ClassVar[tuple[str, ...]] = (*Data.exclusive, "library", "synthetic")
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

    def short(self, samples: int) -> dict[str, Any]:
        """Synthetic tokens: the same kernels, and no text is tokenized for them."""
        none = dict.fromkeys(("name", "path", "library", "limit"))
        return {**none, "synthetic": {"samples": samples, "validation": 1}}


class CausalLmRecipe(Recipe):
    """A language model learns to go on with text."""

    families: ClassVar[tuple[ModuleType, ...]] = (gpt2, opt, llama)
    packed: ClassVar[bool] = True
    quantizes: ClassVar[bool] = True
    float8: ClassVar[bool] = True
    traced: ClassVar[bool | str] = True
    metric: ClassVar[str] = "perplexity"
    loading: ClassVar[str] = """\
from transformers import pipeline
model = pipeline("text-generation", model={model})
print(model({question}, max_new_tokens={new}, num_beams={recipe.evaluate.beams}, do_sample=False,
    add_special_tokens=False, return_full_text=False,
    clean_up_tokenization_spaces=False)[0]["generated_text"])"""

    workload: str = Field("causal-lm", description=WORKLOAD)
    data: TextData = Field(default_factory=TextData, description=DATA)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> None:
        """Check whether sequences fit the model, and the text fills one. Raises RecipeError, or DataError
        with the file and the line."""
        data = self.data
        if data.sequence == 1:
            raise RecipeError(
                "is 1, so there is no next token to predict",
                where="data.sequence",
                hint="data.sequence=2, or more",
            )
        positions = families.positions(config)
        check_length(data.sequence or 0, positions, "data.sequence", FROM_SCRATCH)
        if path is None:
            return
        tokens = check_texts(path, data.field, data.bad, CHECKED)
        sequence = data.sequence or positions
        if sequence and tokens < sequence:
            raise DataError(
                f"is too short: its text is at most {tokens:,} tokens, and one sequence has {sequence:,}",
                where=data.path,
                hint="more text, or a shorter data.sequence",
            )

    def describe_data(self, path: Path) -> str:
        """Name the files, those that are left out as well."""
        files, data = find_texts(path), self.data
        return parts_of(path, files.train, files.validation, data.validation_fraction, files.unused)

    def epoch_samples(self) -> int | None:
        """Count synthetic samples as the recipe does; how many sequences a text makes, its tokenizer
        decides."""
        count = self.data.synthetic.samples if self.data.synthetic else None
        return min(count, self.data.limit or count) if count is not None else None

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Note what is held out and not used."""
        path = Path(self.data.path).expanduser() if self.data.path else None
        if path is None or not path.exists():
            return super().survey(config)
        files = find_texts(path)
        notes = [f"not used: {names_of(files.unused)}"] if files.unused else []
        notes += [] if files.validation else held_note(None, None, self.data.validation_fraction)
        return Survey(self.epoch_samples(), tuple(notes))

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths | None:
        """Return the recipe's sequence, or as many positions as the model has."""
        sequence = self.data.sequence or (families.positions(config) if config else None)
        return None if sequence is None else Lengths(sequence)

    def example(self, question: str | None) -> tuple[str, int] | None:
        """Return a text to go on with; synthetic tokens are none."""
        return None if self.data.synthetic else super().example(question)


RECIPE = CausalLmRecipe
