"""A recipe's samples and tokenizer, in the ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.core.data import Generated
from muster.core.errors import DataError
from muster.dialogues.rows import USER, Dialogue, Turn, Wanted
from muster.dialogues.spec import DialogueRecipe, load_samples, split_part, texts_of
from muster.dialogues.tokens import Templates, with_template
from muster.store.lines import Skipped
from muster.store.records import LoadedSamples
from muster.worker.context import Context
from muster.worker.data import sqlgen
from muster.worker.data.hub import hub_samples
from muster.worker.data.sqlgen.wrong import wrong_queries
from muster.worker.data.tokenizer import load_tokenizer, train_tokenizer, without_end
from muster.worker.decoders import make_config
from muster.worker.together import check_alike, first_on_disk, short_digest
from muster.worker.workloads.base import limit_notes


def samples_of(context: Context, recipe: DialogueRecipe) -> LoadedSamples[Dialogue]:
    """Read this machine's samples; all ranks must have the same ones. Raises DataError."""
    with first_on_disk(context) as first:
        samples = read(recipe, context.cache, may_write=first)
    check_alike(context, "the samples are", lambda: _digest(samples))
    recipe.check_rows(samples.train + samples.held_out)
    return samples


def read(recipe: DialogueRecipe, cache: Path, *, may_write: bool) -> LoadedSamples[Dialogue]:
    """Read the samples of files, of a hub, or generated ones in `cache`. Raises DataError."""
    if recipe.data.sources():
        return load_samples(recipe, hub_samples)
    generated = recipe.data.generated or Generated()
    if may_write:
        sqlgen.build(cache, seed=generated.seed, train=generated.train, validation=generated.validation)
    plain = Wanted("question", "sql", answered=True).form
    train, held = (
        _asked(list(plain.read([cache / name])), wrong=recipe.pairs, seed=generated.seed)
        for name in ("train.jsonl", "validation.jsonl")
    )
    return LoadedSamples(split_part(recipe.data, train)[: recipe.data.limit], held)


def _asked(samples: list[Dialogue], *, wrong: bool, seed: int) -> list[Dialogue]:
    """Turn generated questions into chat messages; with wrong SQL where it is wanted."""
    asked = [replace(each, turns=(Turn(USER, each.question),)) for each in samples]
    if not wrong:
        return asked
    queries = wrong_queries([(str(each.answer), Path(str(each.database))) for each in asked], seed)
    return [replace(each, rejected=query) for each, query in zip(asked, queries, strict=True)]


def _digest(samples: LoadedSamples[Dialogue]) -> str:
    digests = []
    for part in (samples.train, samples.held_out):
        texts = (
            text or ""
            for each in part
            for text in (*(turn.text for turn in each.turns), each.answer, each.rejected)
        )
        digests.append(f"{len(part):,} ({short_digest(texts)})")
    return f"{digests[0]} to train on and {digests[1]} held out"


def tokenizer_of(recipe: DialogueRecipe, samples: LoadedSamples[Dialogue]) -> tuple[Any, list[str]]:
    """Load the model's own tokenizer, or train one on the samples, with the chat template that they need. ->
    it, and notes."""
    made = load_tokenizer(recipe.model)
    if made is None:
        texts = (text for each in samples.train for text in texts_of(each))
        made = train_tokenizer(texts, recipe.model.vocab_size)
    without_end(made)
    if made.eos_token_id is None:
        raise DataError("the tokenizer has no end of text, so no answer would end", where="model.tokenizer")
    chats = {each.chat for each in (*samples.train, *samples.held_out)}
    if len(chats) > 1:
        raise DataError(
            "some prompts are chat messages and some are plain text",
            where="data",
            hint="write them in one form; a model learns one",
        )
    return made, with_template(made, chat=chats == {True}, template=recipe.data.template)


class Encoding:
    """Hold what every workload of dialogues makes tokens with: samples, tokenizer, templates, lengths."""

    def __init__(self, context: Context) -> None:
        assert isinstance(context.recipe, DialogueRecipe)
        self.recipe = context.recipe
        samples, limit = samples_of(context, self.recipe), self.recipe.evaluate.limit
        self.samples = replace(samples, held_out=samples.held_out[:limit])
        self.tokenizer, tokenizer_notes = tokenizer_of(self.recipe, self.samples)
        self._notes = [*tokenizer_notes, *limit_notes(len(samples.held_out), limit)]
        self.templates = Templates(self.tokenizer)
        self.config = make_config(self.recipe, self.tokenizer)  # of the model
        self.sequence = self.recipe.sequence(self.config.to_dict())
        self.errors: list[DataError] | None = [] if self.recipe.data.bad == "skip" else None
        self.multiple = context.padding_multiple

    @property
    def fixed(self) -> int | None:
        """The one length of all batches; None: each its own."""
        return self.sequence if self.recipe.data.padding == "fixed" else None

    @property
    def notes(self) -> list[str]:
        """For the result."""
        about = [self.samples.about] if self.samples.about else []
        return [*about, *self.samples.notes, *self._notes]

    @property
    def skipped(self) -> Skipped:
        """Samples that are left out."""
        skipped = replace(self.samples.skipped)
        for error in self.errors or []:
            skipped.add(error)
        return skipped
