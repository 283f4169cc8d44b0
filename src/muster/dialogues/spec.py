"""Data and recipes of prompts and answers, as the control side knows them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from muster.core import families
from muster.core.data import Data, Source, SplitData
from muster.core.errors import RecipeError
from muster.core.families import gpt2, llama, opt
from muster.core.families.checking import check_length
from muster.core.recipe import DATA, Recipe
from muster.core.section import PositiveInt
from muster.core.units import counted
from muster.core.workload import Lengths, Survey
from muster.dialogues.rows import (
    ASSISTANT,
    LAST_TURN,
    USER,
    Dialogue,
    Turn,
    Wanted,
    prompt_too_long,
)
from muster.store.lines import Skipped
from muster.store.records import (
    LoadedSamples,
    Splits,
    find_data,
    held_note,
    hold_out,
    parts_of,
)
from muster.store.tokens import COUNTED, Counter, all_of, counter, named_tokenizer, some_of, too_long

if TYPE_CHECKING:
    from typing_extensions import Self

SEQUENCE = 512  # tokens of a sample where neither the recipe nor the model says less
NEW_TOKENS = 128  # of an answer where the recipe does not say
SPLIT_SEED = 1234  # of the parts of data.split: the same for all steps, whatever their own seeds are


class DialogueData(SplitData):
    """Prompts and answers."""

    exclusive: ClassVar[tuple[str, ...]] = (*Data.exclusive, "mix", "generated")
    mix: list[Source] | None = Field(
        None,
        description="Several data sets. Where none has a share, all of their samples are trained on. Else "
        "each gives its share of the training samples; as many are taken as the shares allow without "
        "repeating one, and the others are counted.",
    )
    prompt: str | None = Field(
        None,
        description="Name or dotted path of the field that holds the prompt: a text, or a list of chat "
        "messages. Null: the first of prompt, messages, conversations, instruction (with input), question "
        "that a row has.",
    )
    answer: str | None = Field(
        None,
        description="Name or dotted path of the field that holds the answer. Null: the first of chosen, "
        "answer, completion, response, output, sql, query that a row has; or the last message.",
    )
    rejected: str | None = Field(
        None, description="Name or dotted path of the field with the rejected answer. Null: rejected."
    )
    split: list[Annotated[float, Field(ge=0)]] | None = Field(
        None,
        description="Cut the training samples into parts of these relative sizes, which share no sample: one "
        "for each step of RLHF, such as [2, 4, 4]. Null: every step trains on all.",
    )
    part: PositiveInt = Field(1, description="The part of `split` to train on, counted from 1.")
    sequence: PositiveInt | None = Field(
        None,
        description="Longest sample in tokens, prompt and answer together. Longer answers are cut, and "
        f"counted. Null: {SEQUENCE}, or as many positions as the model has, if that is less.",
    )
    template: Literal["auto", "chat", "plain"] = Field(
        "auto",
        description="How chat messages become text. auto: by the tokenizer's own chat template; plain where "
        "it has none. plain: lines that begin with Human: and Assistant:. Prompts that are plain text are "
        "taken as they are, unless others of the data are messages. chat: as auto, and plain text is a "
        "user's message.",
    )
    padding: Literal["dynamic", "fixed"] = Field(
        "dynamic",
        description="dynamic: samples of similar length share a batch and are padded to its longest. fixed: "
        "every sample is padded to `sequence`.",
    )

    @field_validator("split")
    @classmethod
    def _has_size(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and not sum(value) > 0:
            raise ValueError("has no part with a size above 0")
        return value

    def sources(self) -> tuple[Source, ...]:
        """Return those of the mix, or the one that is named; none where they are generated."""
        return tuple(self.mix) if self.mix else super().sources()


_LOADING = """\
from transformers import pipeline
model = pipeline("text-generation", model={model})
print(model(QUESTION, max_new_tokens={new}, num_beams={recipe.evaluate.beams}, do_sample=False,
    eos_token_id=model.tokenizer.eos_token_id, return_full_text=False,
    clean_up_tokenization_spaces=False)[0]["generated_text"])"""


class DialogueRecipe(Recipe):
    """A decoder learns from prompts and answers."""

    families: ClassVar[tuple[ModuleType, ...]] = (llama, opt, gpt2)
    traced: ClassVar[bool | str] = "muster.dialogues.tracing:LEARNED"
    cut_by: ClassVar[str] = "data.sequence"
    pairs: ClassVar[bool] = False  # a sample has a rejected answer as well
    answered: ClassVar[bool] = True  # a sample needs an answer
    split_words: ClassVar[tuple[str, ...]] = ()  # in the names of splits that are this workload's
    loading: ClassVar[str] = _LOADING.replace("QUESTION", "{question}")
    loading_chat: ClassVar[str] = _LOADING.replace("QUESTION", '[{{"role": "user", "content": {question}}}]')

    data: DialogueData = Field(default_factory=DialogueData, description=DATA)

    @property
    def wanted(self) -> Wanted:
        """What is needed of a row."""
        data = self.data
        return Wanted(data.prompt, data.answer, data.rejected, self.answered, self.pairs)

    @property
    def splits(self) -> Splits:
        """Which splits of a data set are read."""
        words = ("prefs", "pref", "preference", "preferences") if self.pairs else self.split_words
        return Splits(self.data.train_split, self.data.held_out_split, words)

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Read the files as the ranks will. Raises DataError and RecipeError."""
        data, positions = self.data, families.positions(config)
        if data.sequence is not None:
            check_length(self.sequence(config), positions, "data.sequence")
        if data.split and data.part > len(data.split):
            raise RecipeError(
                f"is {data.part}, and data.split has {len(data.split)} parts", where="data.part"
            )
        return self._read(config)

    def _read(self, config: Mapping[str, Any] | None = None) -> Survey | None:
        """Read the samples as ranks will have them; None: they are not all here. `config`: of the model, for
        which prompts must not be too long. Raises DataError."""
        sources = self.data.sources()
        if not sources or not all(source.path and Path(source.path).exists() for source in sources):
            return None
        samples = load_samples(self)
        self.check_rows(samples.train + samples.held_out)
        if config is not None:
            self._check_prompts(samples.train + samples.held_out[: self.evaluate.limit], config)
        plain = named_tokenizer(self.model) and not any(each.chat for each in samples.train)
        taken = (
            "prompts are plain text and taken as they are; data.template=chat puts a chat's template round"
        )
        notes = (*samples.notes, *samples.skipped.notes, *([taken] if plain else []))
        whole = all_of(samples.train + samples.held_out, texts_of)
        return Survey(
            len(samples.train), notes, tuple(some_of(samples.train, texts_of)), whole=tuple(whole)
        )

    def _check_prompts(self, samples: Sequence[Dialogue], config: Mapping[str, Any]) -> None:
        """Raise DataError for a prompt that ranks will refuse, where their tokenizer is here. A token has a
        byte at least, so that few prompts need counting."""
        if self.data.bad == "skip" or named_tokenizer(self.model) is None:
            return
        most, key = self.longest_prompt(config)
        sizes = [sum(len(text.encode("utf-8", "replace")) for text in kept_texts(each)) for each in samples]
        long = sorted(
            (index for index, size in enumerate(sizes) if size > most), key=lambda each: -sizes[each]
        )
        some = some_of([samples[index] for index in sorted(long[:COUNTED])], kept_texts)
        by = counter(self.model, list)
        if not some or not by.exact:
            return
        for sample in some:
            if (tokens := sum(by.count(kept_texts(sample)))) > most:
                raise prompt_too_long(tokens, most, key, sample.where, more=sample.chat)

    def check_rows(self, samples: Sequence[Dialogue]) -> None:
        """Raise DataError for a sample that this workload cannot use."""

    def describe_data(self, path: Path) -> str:
        """Name the files."""
        files = find_data(path, self.splits)
        return parts_of(path, files.train, files.validation, self.data.validation_fraction, files.unused)

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Count the samples as ranks will have them; with a model's configuration, note what its lengths
        cut."""
        data = self.data
        if data.generated:
            return Survey(part_size(data, min(data.generated.train, data.limit or data.generated.train)))
        read = checked or self._read() or Survey()
        return self._counted(read, config) if read.some and config is not None else read

    def _counted(self, read: Survey, config: Mapping[str, Any]) -> Survey:
        """Return the survey with the lengths of its samples, and notes on those that are longer than the
        recipe lets them be."""
        some, of = read.some, read.samples or 0
        by = counter(self.model, lambda: (text for each in some for text in texts_of(each)))
        chat = any(each.chat for each in (*some, *read.whole))  # a template adds its own
        exact = by.exact and not chat
        prompts, wholes = _sizes(some, by)
        (limit, key), longest = self.longest_prompt(config), self.sequence(config)
        notes = list(read.notes)
        if excess := too_long(prompts, of, limit, exact=exact):
            then = "left out" if self.data.bad == "skip" else "an error (data.bad=skip leaves them out)"
            notes.append(
                f"{excess[0]} prompts have no room in {key}, and are {then}; the longest: {excess[1]:,}"
            )
        fits = [whole for prompt, whole in zip(prompts, wholes, strict=True) if prompt <= limit]
        count = round(of * len(fits) / len(prompts)) if prompts else 0
        if self.answered and (excess := too_long(fits, count, longest, exact=exact)):
            notes.append(
                f"{excess[0]} samples are longer than data.sequence={longest:,} tokens and lose the end of "
                f"an answer; the longest has {excess[1]:,}"
            )
        counted = [] if by.by_bytes or chat else fits
        lengths = tuple((min(whole, longest),) * (2 if self.pairs else 1) for whole in counted)
        most = None
        if exact and read.whole and self.answered:
            tokens = by.added + max(1, *_sizes(read.whole, by)[1])  # a prompt's begin, and at least its end
            most = replace(self.lengths(config), tokens=min(longest, tokens))
        return replace(read, notes=tuple(notes), lengths=lengths, longest=most)

    def longest_prompt(self, config: Mapping[str, Any]) -> tuple[int, str]:
        """Return the tokens of the longest prompt that is used, and the key that limits it."""
        sequence = self.sequence(config)
        return sequence - 1, f"data.sequence={sequence:,}"

    def sequence(self, config: Mapping[str, Any] | None) -> int:
        """Return the tokens of the longest sample, for a model of this configuration."""
        positions = families.positions(config) if config else None
        return self.data.sequence or min(SEQUENCE, positions or SEQUENCE)

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths:
        """Return the recipe's limits of samples."""
        return Lengths(self.sequence(config), sequences=2 if self.pairs else 1)

    @property
    def padding_varies(self) -> bool:
        """With data.padding=dynamic."""
        return self.data.padding == "dynamic"

    def with_lengths(self, lengths: Lengths) -> Self:
        """Limit samples to so many tokens."""
        update = {"sequence": max(2, lengths.tokens), "padding": "fixed"}
        return self.model_copy(update={"data": self.data.model_copy(update=update)})

    def example(self, question: str | None) -> tuple[str, int]:
        """Return a prompt as it is, and the most tokens of its answer."""
        return question or "The ", self.new_tokens

    @property
    def new_tokens(self) -> int:
        """The most tokens of an answer to a question."""
        return self.evaluate.max_new_tokens or NEW_TOKENS


def _sizes(samples: Sequence[Dialogue], by: Counter) -> tuple[list[int], list[int]]:
    """Return the tokens of each prompt, and with its longer answer."""
    numbers = iter(by.count([text for each in samples for text in texts_of(each)]))
    prompts, wholes = [], []
    for each in samples:
        prompt = sum(next(numbers) for _ in each.turns)
        answers = [next(numbers) + 1 for text in (each.answer, each.rejected) if text]  # with its end
        prompts.append(prompt)
        wholes.append(prompt + max(answers, default=0))
    return prompts, wholes


# ----------------------------------------------------------------------------------------------------
# The samples of files: read, mixed, held out, split.


def kept_texts(sample: Dialogue) -> list[str]:
    """Return the texts of a prompt that are in its tokens whatever the chat template is: a template may leave
    out earlier answers, and trims."""
    if not sample.chat:
        return [turn.text for turn in sample.turns]
    return [turn.text.strip() for turn in sample.turns if turn.role != ASSISTANT]


def texts_of(sample: Dialogue) -> list[str]:
    """Return all texts of a sample in order."""
    answers = [text for text in (sample.answer, sample.rejected) if text]
    return [*(turn.text for turn in sample.turns), *answers]


def load_samples(recipe: DialogueRecipe, hub: Any = None) -> LoadedSamples[Dialogue]:
    """Load the recipe's samples. `hub`: reads those that have a hub name, `hub_samples`. Raises DataError
    with the file and the line."""
    data, form = recipe.data, recipe.wanted.form
    skipped = Skipped()
    skip = skipped.where(data.bad)
    trains, helds, abouts, notes = [], [], list[str](), list[str]()
    for source in data.sources():
        if source.path:
            read = form.load(Path(source.path).expanduser(), recipe.splits, skip=skip)
        else:
            read = hub(form, source.name, source.subset, recipe.splits, skip=skip)
        train, held = read.train, read.held_out
        abouts.append(source.path or str(source.name))
        notes += read.notes
        if not held:
            count = len(train)
            train, held = parted(train, data.validation_fraction, recipe.train.seed, abouts[-1])
            more = held_note(len(held), count, data.validation_fraction)
            notes += [f"{Path(abouts[-1]).name}: {each}" for each in more] if data.mix else more
        trains.append(train)
        helds.append(held)
    train = mixed(trains, [source.share for source in data.sources()])
    given = sum(map(len, trains))
    if len(train) < given:
        notes.append(
            f"the shares of data.mix leave out {given - len(train):,} of {given:,} training samples; without "
            "shares all are trained on"
        )
    train, held_out, more = in_one_form(train, [each for held in helds for each in held], data.template)
    part = split_part(data, train)
    if len(part) < len(train):
        notes.append(f"part {data.part} of data.split has {len(part):,} of {len(train):,} training samples")
    if data.limit is not None and data.limit < len(part):
        notes.append(f"data.limit leaves out {len(part) - data.limit:,} of {len(part):,} training samples")
    return LoadedSamples(
        part[: data.limit],
        held_out,
        skipped,
        f"samples: {', '.join(abouts)}",
        (*notes, *more),
    )


def in_one_form(
    train: list[Dialogue], held_out: list[Dialogue], template: str
) -> tuple[list[Dialogue], list[Dialogue], list[str]]:
    """Turn prompts that are plain text into a user's messages, where others are chat messages or the recipe
    wants them so; with a note. Text that has roles in it stays, and is refused beside messages."""
    texts = sum(not each.chat for each in (*train, *held_out))
    mixes = 0 < texts < len(train) + len(held_out)
    if not texts or not (mixes or template == "chat"):
        return train, held_out, []

    def spoken(each: Dialogue) -> Dialogue:
        if each.chat or LAST_TURN.strip() in each.question:
            return each
        return replace(each, turns=(*each.turns[:-1], Turn(USER, each.question)))

    what = f"the plain text of {counted(texts, 'prompt')} is taken as a user's message"
    why = [f"{what}, as the other prompts are messages"] if mixes else []
    return [spoken(each) for each in train], [spoken(each) for each in held_out], why


def parted(
    samples: list[Dialogue], fraction: float, seed: int, where: str
) -> tuple[list[Dialogue], list[Dialogue]]:
    """Divide samples into training and held-out ones; those with one prompt stay together. Raises
    DataError."""
    held = hold_out((_key(each) for each in samples), fraction, seed, where)
    return (
        [each for each in samples if _key(each) not in held],
        [each for each in samples if _key(each) in held],
    )


def _key(sample: Dialogue) -> str:
    return "\n".join(turn.text for turn in sample.turns)


def mixed(sets: Sequence[list[Dialogue]], shares: Sequence[float | None]) -> list[Dialogue]:
    """Mix each set's share, in a shuffled order; a single set stays as it is. The largest mix that repeats no
    sample: the set that is shortest for its share gives all it has. Without any share all sets are whole."""
    if len(sets) < 2:
        return [each for part in sets for each in part]
    whole = all(share is None for share in shares)
    parts = [len(part) if whole else share or 1.0 for part, share in zip(sets, shares, strict=True)]
    unit = min((len(part) / share for part, share in zip(sets, parts, strict=True) if share), default=0.0)
    dice = random.Random(SPLIT_SEED)
    chosen: list[Dialogue] = []
    for part, share in zip(sets, parts, strict=True):
        chosen += dice.sample(part, min(len(part), round(unit * share)))
    dice.shuffle(chosen)
    return chosen


def split_part(data: DialogueData, samples: list[Dialogue]) -> list[Dialogue]:
    """Cut the part of data.split out of the samples, in an order that all parts share."""
    if not data.split:
        return samples
    order = list(range(len(samples)))
    random.Random(SPLIT_SEED).shuffle(order)
    start, end = _bounds(data, len(samples))
    return [samples[index] for index in order[start:end]]


def part_size(data: DialogueData, count: int) -> int:
    """Return how many of so many samples `split_part` gives."""
    if not data.split:
        return count
    start, end = _bounds(data, count)
    return end - start


def _bounds(data: DialogueData, count: int) -> tuple[int, int]:
    sizes = data.split or [1.0]
    whole = math.fsum(sizes)
    before, after = (math.fsum(sizes[:end]) / whole for end in (data.part - 1, data.part))
    return round(before * count), round(after * count)
