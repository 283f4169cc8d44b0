"""Text to SQL, as the control side knows it: its data and recipe, and what can be told before ranks start."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from muster.core.data import Data
from muster.core.errors import DataError
from muster.core.families import t5
from muster.core.recipe import DATA, Recipe
from muster.core.section import PositiveInt, Section
from muster.core.workload import Lengths
from muster.store.lines import text_of, value_at
from muster.store.records import find_data, parts_of, read_rows

if TYPE_CHECKING:
    from typing_extensions import Self

# Where data.sql is left at its default: a hub's WikiSQL has the parts of a query, Spider calls it otherwise.
ANSWERS = ("sql", "sql.human_readable", "query")


class Generated(Section):
    """The generated text-to-SQL set: how many questions, and the seed that makes them."""

    train: PositiveInt = Field(8000, description="Number of training questions.")
    validation: PositiveInt = Field(300, description="Number of held-out questions.")
    seed: int = Field(0, description="Seed of the generator: the same seed gives the same questions.")


class TextToSqlData(Data):
    """Questions and their SQL."""

    exclusive: ClassVar[tuple[str, ...]] = (*Data.exclusive, "generated")
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


class TextToSqlRecipe(Recipe):
    """An encoder-decoder model learns to translate questions."""

    families: ClassVar[tuple[ModuleType, ...]] = (t5,)
    traced: ClassVar[bool] = True
    loading: ClassVar[str] = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
words, model = AutoTokenizer.from_pretrained({model}), AutoModelForSeq2SeqLM.from_pretrained({model})
print(words.decode(model.generate(words({question}, return_tensors="pt").input_ids, max_new_tokens={new})\
[0], skip_special_tokens=True))"""

    data: TextToSqlData = Field(default_factory=TextToSqlData, description=DATA)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> None:
        """Read the files as the ranks will. Raises DataError."""
        if path is None:
            return
        files = find_data(path)
        questions = {row.question for row in read_pairs(files.train, self.data, limit=self.data.limit)}
        if files.validation:
            for _ in read_pairs(files.validation, self.data):
                pass
        else:
            held_out_questions(questions, self.data, self.train.seed)

    def describe_data(self, path: Path) -> str:
        """Files by name."""
        files = find_data(path)
        return parts_of(path, files.train, files.validation, self.data.validation_fraction)

    def short_data(self, samples: int) -> dict[str, Any]:
        """Fewer generated questions."""
        return {"generated": {"train": samples, "validation": 8}} if self.data.generated else {}

    def epoch_samples(self) -> int | None:
        """As the recipe says, or as the files have them; a hub data set's number is not known."""
        data = self.data
        if data.generated:
            return min(data.generated.train, data.limit or data.generated.train)
        if not data.path or not Path(data.path).exists():
            return None
        files = find_data(Path(data.path))
        questions = [row.question for row in read_pairs(files.train, data, limit=data.limit)]
        held = set() if files.validation else held_out_questions(questions, data, self.train.seed)
        return sum(question not in held for question in questions)

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths:
        """As the recipe limits questions and answers."""
        return Lengths(self.data.max_source, self.data.max_target)

    @property
    def padding_varies(self) -> bool:
        """With data.padding=dynamic."""
        return self.data.padding == "dynamic"

    def with_tokens(self, tokens: float) -> Self:
        """Questions and answers shortened alike."""
        data = self.data
        share = tokens / (data.max_source + data.max_target)
        lengths = {name: max(1, round(share * getattr(data, name))) for name in ("max_source", "max_target")}
        return self.model_copy(update={"data": data.model_copy(update={**lengths, "padding": "fixed"})})

    def example(self, question: str | None) -> tuple[str, int]:
        """With the prefix that the model has learned."""
        return self.data.prefix + (question or "The "), self.data.max_target


RECIPE = TextToSqlRecipe

# ----------------------------------------------------------------------------------------------------
# Questions and answers in files of rows.


@dataclass(frozen=True)
class PairRow:
    """A question and its answer as a row has them. `answer`: the field that the answer is from."""

    question: str
    sql: str
    answer: str
    database: str | None


def read_pairs(files: Iterable[Path], data: TextToSqlData, *, limit: int | None = None) -> Iterator[PairRow]:
    """The questions and answers of files, as data.question and data.sql name them; none is empty.

    Raises DataError with the file and the row.
    """
    count, where = 0, ""
    for file in files:
        where = str(file)
        for place, record in read_rows(file, fields=(data.question, data.sql, *ANSWERS, "database")):
            count += 1
            yield pair_of(record, data, place)
            if count == limit:
                return
    if not count:
        raise DataError("has no samples", where=where)


def pair_of(record: Mapping[str, Any], data: TextToSqlData, where: str, *, blank: bool = False) -> PairRow:
    """A row's question and answer. Raises DataError. `blank`: they may be empty."""
    answer = data.sql
    if answer == TextToSqlData.model_fields["sql"].default:
        answer = next((name for name in ANSWERS if isinstance(value_at(record, name), str)), answer)
    database = record.get("database")
    return PairRow(
        text_of(record, data.question, where, "data.question", blank=blank),
        text_of(record, answer, where, "data.sql", blank=blank),
        answer,
        database if isinstance(database, str) else None,
    )


def held_out_questions(questions: Iterable[str], data: TextToSqlData, seed: int) -> set[str]:
    """Which questions to hold out where a data set has no part for that; equal ones stay together. Raises
    DataError where none would be left to train on."""
    different = sorted(set(questions))
    if len(different) < 2:
        told = "sample is" if len(different) == 1 else "samples are"
        raise DataError(
            f"{len(different)} different {told} too few to hold some out",
            where=data.path or data.name,
            hint="more samples, or a validation file beside the train file",
        )
    random.Random(seed).shuffle(different)
    return set(different[: max(1, int(len(different) * data.validation_fraction))])
