"""Supervised fine-tuning, as the control side knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from muster.core.errors import RecipeError
from muster.core.recipe import DATA, WORKLOAD
from muster.core.units import counted
from muster.core.workload import Survey
from muster.dialogues.spec import DialogueData, DialogueRecipe

# Model types that keep packed samples apart by their positions (tests/unit/test_packing.py).
BY_POSITIONS = frozenset(
    {
        "codegen", "cohere", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj",
        "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "phi", "phi3", "qwen2", "qwen2_moe",
        "qwen3", "smollm3", "stablelm", "starcoder2",
    }
)  # fmt: skip
BY_MASK = frozenset({"opt"})  # by a mask of two samples' tokens, which SDPA alone reads as it is meant


def check_packing(kind: str, attention: str | None) -> None:
    """Raise RecipeError for a model that would let packed samples see each other. `kind`: its type;
    `attention`: Transformers' name of its attention; None: the model's usual one."""
    if kind in BY_POSITIONS or (kind in BY_MASK and attention in (None, "sdpa")):
        return
    what = f"{kind} keeps packed samples apart with model.attention=sdpa alone"
    raise RecipeError(
        f"is true, and {what if kind in BY_MASK else f'{kind} is not known to keep packed samples apart'}",
        where="data.packing",
        hint="data.packing=false",
    )


class SftData(DialogueData):
    """Prompts and the answers to learn."""

    learn: Literal["answers", "last", "everything", "padding"] = Field(
        "answers",
        description="Which tokens the loss counts. answers: those of all answers. last: of the last answer "
        "alone. everything: prompts as well. padding: prompts, answers and padding, as DeepSpeed-Chat's "
        "first step does.",
    )
    packing: bool = Field(
        False,
        description="Put several samples into one sequence. No sample attends to another. A sequence then "
        "counts as one sample.",
    )


class SftRecipe(DialogueRecipe):
    """A decoder learns the answers to prompts."""

    quantizes: ClassVar[bool] = True
    float8: ClassVar[bool] = True
    metric: ClassVar[str] = "exact match"
    split_words: ClassVar[tuple[str, ...]] = ("sft",)

    workload: str = Field("sft", description=WORKLOAD)
    data: SftData = Field(default_factory=SftData, description=DATA)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Check as all dialogues; packing leaves no padding to learn. Raises DataError and RecipeError."""
        if self.data.packing and self.data.learn == "padding":
            raise RecipeError(
                "is true, and data.learn=padding wants padded samples",
                where="data.packing",
                hint="data.learn=answers, or data.packing=false",
            )
        if self.data.packing and "model_type" in config:
            check_packing(str(config["model_type"]), config.get("attn_implementation"))
        return super().check_data(path, config)

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Count as all dialogues; of packed samples, the sequences are the samples."""
        read = super().survey(config, checked)
        if not self.data.packing or read.samples is None:
            return read
        note = f"{counted(read.samples, 'sample')} are packed: how many sequences they fill, ranks will find"
        return Survey(None, (*read.notes, note))

    @property
    def padding_varies(self) -> bool:
        """Packed sequences are full, but for a little."""
        return self.data.padding == "dynamic" and not self.data.packing


RECIPE = SftRecipe
