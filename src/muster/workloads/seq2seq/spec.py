"""Texts to texts, as the control side knows it: its data and recipe, and what is known before ranks
start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from muster.core import families
from muster.core.data import Data, SplitData
from muster.core.errors import DataError
from muster.core.families import t5
from muster.core.families.checking import check_length
from muster.core.recipe import DATA, WORKLOAD, Recipe
from muster.core.section import PositiveInt
from muster.core.workload import Lengths, Survey
from muster.store import databases
from muster.store.lines import MISSING, Skipped, text_of, value_at
from muster.store.records import (
    LoadedSamples,
    RowForm,
    Splits,
    find_data,
    held_note,
    hold_out,
    parts_of,
)
from muster.store.tokens import all_of, counter, some_of, too_long

if TYPE_CHECKING:
    from typing_extensions import Self

DATABASE = "database"  # data.schema: from the row's SQLite file
JOIN = " | "  # between a question and its schema; behind it, so that of a long input the schema is cut first
# Where data.input and data.target are not given: the first of these pairs that a row has.
PAIRS = (
    ("question", "answer"), ("question", "sql"), ("question", "query"), ("instruction", "output"),
    ("instruction", "response"), ("input", "target"), ("input", "output"), ("prompt", "completion"),
    ("prompt", "response"), ("source", "target"), ("text", "summary"), ("document", "summary"),
    ("dialogue", "summary"), ("article", "highlights"),
)  # fmt: skip


class PairData(SplitData):
    """Inputs and their targets."""

    exclusive: ClassVar[tuple[str, ...]] = (*Data.exclusive, "generated")
    pairs: ClassVar[tuple[tuple[str, str], ...]] = PAIRS
    executed: ClassVar[bool] = False  # targets are SQL, which a row's database runs

    input: str | None = Field(
        None,
        description="Name or dotted path of the field that holds the input. Null: with data.target, the "
        f"first pair that a row has of {', '.join('/'.join(pair) for pair in PAIRS)}; in small or capital "
        "letters.",
    )
    target: str | None = Field(
        None,
        description="Name or dotted path of the field that holds the text to learn. Null: see data.input.",
    )
    schema_: str | None = Field(
        None,
        alias="schema",
        description="The schema of the tables that a question is about, put behind it: `QUESTION | SCHEMA`. "
        "A field's name or dotted path (a text, or a list of names); or database: from the SQLite file "
        "that the row's field database or db_id names, as `table: column type, ... | table: ...`. Null: "
        "none.",
    )
    prefix: str = Field("", description='Text put before every input; "" for none.')
    max_source: PositiveInt = Field(
        96,
        description="Longest input in tokens, with prefix and schema; longer ones lose their end, which is "
        "the schema's, and are counted.",
    )
    max_target: PositiveInt = Field(
        96, description="Longest target in tokens; longer ones are truncated and counted."
    )
    padding: Literal["dynamic", "buckets", "fixed"] = Field(
        "dynamic",
        description="dynamic: samples of similar length share a batch and are padded to its longest. "
        "buckets: the same, to the next of eight shapes, chosen so that padding is least; each can be "
        "compiled. fixed: every sample is padded to max_source and max_target.",
    )
    hold_out: Literal["inputs", "schemas"] = Field(
        "inputs",
        description="What is held out where the data has no validation part. inputs: a share of the "
        "different inputs. schemas: a share of the different schemas with all of their samples, so that the "
        "held-out tables were never seen.",
    )

    @model_validator(mode="after")
    def _schemas_are_there(self) -> PairData:
        if self.hold_out == "schemas" and self.schema_ is None:
            raise ValueError("hold_out=schemas needs data.schema")
        if self.schema_ == DATABASE and self.name:
            raise ValueError("schema=database needs SQLite files next to data.path; a hub's data has none")
        return self

    @property
    def splits(self) -> Splits:
        """Which splits of a data set are read."""
        return Splits(self.train_split, self.held_out_split)

    @classmethod
    def key(cls, field: str) -> str:
        """Name a field as recipes call it: data.question."""
        return f"data.{cls.model_fields[field].alias or field}"

    def named(self, field: str) -> str | None:
        """Return the value of a field where it is not the default."""
        value: str | None = getattr(self, field)
        return None if value == type(self).model_fields[field].default else value

    def candidates(self) -> list[tuple[str, str]]:
        """Pair the fields that a row's input and target may be in; what the recipe names stays."""
        one, other = self.named("input"), self.named("target")
        return list(dict.fromkeys((one or pair[0], other or pair[1]) for pair in self.pairs))

    @property
    def form(self) -> RowForm[PairRow]:
        """How rows become inputs and targets."""
        more = (*((self.schema_,) if self.schema_ else ()), *databases.FIELDS)
        return RowForm(
            lambda row, place, folder: pair_of(row, self, place, folder),
            (*(field for pair in self.candidates() for field in pair), *more),
            lambda row, place: (*fields_of(row, self, place), *more),
        )

    def asked(self, question: str, schema: str) -> str:
        """Return the input without its prefix."""
        return f"{question}{JOIN}{schema}" if schema else question


class PairRecipe(Recipe):
    """An encoder-decoder model learns what each text becomes."""

    cut_by: ClassVar[str] = "data.max_source or data.max_target"
    families: ClassVar[tuple[ModuleType, ...]] = (t5,)
    traced: ClassVar[bool | str] = True
    loading: ClassVar[str] = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
words, model = AutoTokenizer.from_pretrained({model}), AutoModelForSeq2SeqLM.from_pretrained({model})
tokens = words(
    {question}, truncation=True, max_length={recipe.data.max_source}, return_tensors="pt").input_ids
made = model.generate(tokens, max_new_tokens={new}, num_beams={recipe.evaluate.beams}, do_sample=False)
print(words.decode(made[0], skip_special_tokens=True, clean_up_tokenization_spaces=False))"""

    workload: str = Field("seq2seq", description=WORKLOAD)
    data: PairData = Field(default_factory=PairData, description=DATA)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Read the files as the ranks will. Raises DataError, and RecipeError for texts that are longer than
        the model has positions."""
        positions = families.positions(config)
        for key in ("max_source", "max_target"):
            check_length(getattr(self.data, key), positions, f"data.{key}")
        return None if path is None else self._read(path)

    def _read(self, path: Path) -> Survey:
        """Read the pairs as ranks will have them. Raises DataError."""
        read = load_rows(self.data, self.train.seed, path)
        some = some_of(read.train, lambda row: (row.input, row.target))
        whole = all_of([*read.train, *read.held_out], lambda row: (row.input, row.target))
        return Survey(len(read.train), (*read.notes, *read.skipped.notes), tuple(some), whole=tuple(whole))

    def describe_data(self, path: Path) -> str:
        """Name the files, and the fields that are read."""
        files = find_data(path, self.data.splits)
        row = next(self.data.form.read(files.train, limit=1, skip=Skipped().where(self.data.bad)))
        parts = parts_of(path, files.train, files.validation, self.data.validation_fraction, files.unused)
        schema = f" with schema {self.data.schema_}" if self.data.schema_ else ""
        return f"{parts}; from field {row.fields[0]}{schema} to field {row.fields[1]}"

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Count the pairs as ranks will have them; with a model's configuration, note what max_source and
        max_target cut."""
        data = self.data
        if data.generated:
            return Survey(min(data.generated.train, data.limit or data.generated.train))
        if checked is None and not (data.path and Path(data.path).exists()):
            return Survey()
        read = checked or self._read(Path(str(data.path)))
        return read if config is None else self._counted(read)

    def _counted(self, read: Survey) -> Survey:
        """Return the survey with the lengths of its samples, and notes on inputs and targets that are cut."""
        data, some, whole = self.data, read.some, read.whole
        inputs, targets = [data.prefix + row.input for row in some], [row.target for row in some]
        counted = counter(self.model, lambda: [*inputs, *targets])
        notes, parts, longest = list(read.notes), [], list[int]()
        exact = counted.exact and counted.writes("".join(row.target for row in whole))
        for what, texts, every, key, more in (
            ("inputs", inputs, (data.prefix + row.input for row in whole), "max_source", counted.added),
            ("targets", targets, (row.target for row in whole), "max_target", counted.ended),
        ):
            limit = getattr(data, key)
            lengths = [number + more for number in counted.count(texts)]
            parts.append([min(length, limit) for length in lengths])
            if whole and exact:
                longest.append(min(limit, more + max(counted.count(list(every)))))
            if excess := too_long(lengths, read.samples or 0, limit, exact=counted.exact):
                notes.append(
                    f"{excess[0]} {what} are longer than data.{key}={limit} tokens and lose their end; the "
                    f"longest has {excess[1]:,}"
                )
        most = Lengths(*longest) if longest else None
        pairs = () if counted.by_bytes else tuple(zip(*parts, strict=True))
        return replace(read, notes=tuple(notes), lengths=pairs, longest=most)

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths:
        """Return the recipe's limits of inputs and targets."""
        return Lengths(self.data.max_source, self.data.max_target)

    @property
    def padding_varies(self) -> bool:
        """But with data.padding=fixed."""
        return self.data.padding != "fixed"

    @property
    def shapes_vary(self) -> bool:
        """With data.padding=dynamic."""
        return self.data.padding == "dynamic"

    def with_lengths(self, lengths: Lengths) -> Self:
        """Limit inputs and targets to so many tokens."""
        tokens, target = (max(1, each) for each in (lengths.tokens, lengths.target))
        update = {"max_source": tokens, "max_target": target, "padding": "fixed"}
        return self.model_copy(update={"data": self.data.model_copy(update=update)})

    def example(self, question: str | None) -> tuple[str, int]:
        """Put the prefix that the model has learned before a question."""
        return self.data.prefix + (question or "The "), self.data.max_target

    def with_schema(self, question: str, schema: str) -> str:
        """Put the schema behind the question, as in training."""
        data = self.data
        return data.asked(question, schema) if data.schema_ else super().with_schema(question, schema)

    def lacks_schema(self, question: str) -> bool:
        """Return whether the model was trained with schemas and there is none behind the question."""
        return self.data.schema_ is not None and JOIN not in question


RECIPE = PairRecipe

# ----------------------------------------------------------------------------------------------------
# Inputs and targets in files of rows.


@dataclass(frozen=True)
class PairRow:
    """An input and its target as a row has them."""

    input: str  # with the schema at its end
    target: str
    fields: tuple[str, str]  # where both are from
    schema: str = ""
    database: Path | None = None
    missing: str | None = None  # the name of a database that is not there


def load_rows(data: PairData, seed: int, path: Path | None, hub: Any = None) -> LoadedSamples[PairRow]:
    """Read the rows of a file or folder. `hub`: reads those of data.name, where `path` is None,
    `hub_samples`. Raises DataError."""
    skipped = Skipped()
    skip = skipped.where(data.bad)
    if path is None:
        read = hub(data.form, data.name, data.subset, data.splits, limit=data.limit, skip=skip)
    else:
        read = data.form.load(path, data.splits, limit=data.limit, skip=skip)
    train, held_out, notes = read.train, read.held_out, [*(read.notes if data.path or data.name else ())]
    if not held_out:
        rows, kind = train, "schema" if data.hold_out == "schemas" else "sample"
        groups, where = (group_of(row, data) for row in rows), data.path or data.name
        held = hold_out(groups, data.validation_fraction, seed, where, kind=kind)
        held_out = [row for row in rows if group_of(row, data) in held]
        train = [row for row in rows if group_of(row, data) not in held]
        notes += held_note(len(held_out), len(rows), data.validation_fraction)
    kinds = Counter(row.fields for row in (*train, *held_out))
    if len(kinds) > 1:
        each = (f"{' and '.join(fields)} ({number:,})" for fields, number in kinds.most_common())
        notes.append(f"rows have different fields, and all are read: {', '.join(each)}")
    return LoadedSamples(train, held_out, skipped, read.about, tuple(notes))


def pair_of(record: Mapping[str, Any], data: PairData, where: str, folder: Path | None = None) -> PairRow:
    """Read a row's input and target. Raises DataError. `folder`: where its database is looked for."""
    fields = fields_of(record, data, where)
    question = text_of(record, fields[0], where, data.key("input"), blank=False)
    target = text_of(record, fields[1], where, data.key("target"), blank=False)
    names = (record.get(field) for field in databases.FIELDS)
    named = next((name for name in names if isinstance(name, str) and name), None)
    database = databases.find_database(named, folder) if named and folder else None
    schema = schema_of(record, data, where, named, database) if data.schema_ else ""
    missing = named if database is None else None
    return PairRow(data.asked(question, schema), target, fields, schema, database, missing)


def fields_of(record: Mapping[str, Any], data: PairData, where: str) -> tuple[str, str]:
    """Find the fields of a row's input and target: those that the recipe names, else the first known pair
    that it has. Raises DataError where it has none, or two known inputs for one target."""
    given = (data.named("input"), data.named("target"))
    if given[0] and given[1]:
        return given[0], given[1]
    pairs = _spelt(type(data).pairs, *given, tuple(record))
    values = {field: value_at(record, field) for pair in pairs for field in pair}
    texts = [pair for pair in pairs if all(isinstance(values[field], str) for field in pair)]
    texts = [pair for pair in texts if values[pair[0]].strip()] or texts
    rivals = [one for one, other in texts if other == texts[0][1]]
    if len(rivals) > 1:
        rival_names = " and ".join(rivals)
        hint = f"{data.key('input')}={rivals[0]}, and data.schema={rivals[1]} where the model shall read both"
        raise DataError(f"the input may be any of the fields {rival_names}", where=where, hint=hint)
    there = texts or [pair for pair in pairs if all(values[field] is not MISSING for field in pair)]
    if there:
        return there[0]
    one, other = given[0] or data.input, given[1] or data.target
    if one and other:
        return one, other
    has = [str(name) for name in record][:10]
    names = [name for name in has if isinstance(record.get(name), str)]
    example = names if len(names) == 2 else ["NAME", "NAME"]
    raise DataError(
        "has no known pair of input and target",
        where=where,
        hint=f"the fields there are: {', '.join(has)}; {data.key('input')}={one or example[0]} "
        f"{data.key('target')}={other or example[1]} names the two",
    )


@lru_cache(maxsize=64)
def _spelt(
    pairs: tuple[tuple[str, str], ...], one: str | None, other: str | None, names: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Spell `pairs` as a row with fields of these names does, and keep those that it may have. `one`,
    `other`: the recipe's input and target. Called for each row, and alike for all of a file."""
    spelt = {**{str(name).lower(): str(name) for name in names}, **{name: name for name in names}}
    given = dict.fromkeys((one or spelt.get(a, a), other or spelt.get(b, b)) for a, b in pairs)
    return [pair for pair in given if all({field, field.partition(".")[0]} & {*names} for field in pair)]


def schema_of(
    record: Mapping[str, Any], data: PairData, where: str, named: str | None, database: Path | None
) -> str:
    """Return the schema of a row's tables, as data.schema names it. `named`, `database`: the row's, if it has
    one and it is there. Raises DataError."""
    assert data.schema_ is not None
    if data.schema_ != DATABASE:
        value = value_at(record, data.schema_)
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            record = {data.schema_: ", ".join(value)}
        return text_of(record, data.schema_, where, "data.schema").strip()
    if named is None:
        fields = " or ".join(databases.FIELDS)
        hint = f"data.schema=database takes it from a SQLite file; the fields there are: {', '.join(record)}"
        raise DataError(f"names no database: it has no field {fields}", where=where, hint=hint)
    if database is None:
        hint = f"a SQLite file next to the data: {named}, {named}.sqlite or database/{named}/{named}.sqlite"
        raise DataError(f"has the database {named!r}, and there is no such file", where=where, hint=hint)
    try:
        return databases.tables_of(database)
    except DataError as error:
        raise DataError(f"has a database that {error.what}", where=where, hint=str(database)) from None


def group_of(row: PairRow, data: PairData) -> str:
    """Return what of a row stays on one side of the split."""
    return row.schema if data.hold_out == "schemas" else row.input
