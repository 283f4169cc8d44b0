"""Prompts and answers as tokens: chat templates, what of a sample is learned, packing, batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset

from muster.core.errors import DataError
from muster.dialogues.rows import ASSISTANT, PROMPTS_NOTE, TEXT, Dialogue, Turn, prompt_too_long
from muster.worker.data.padding import padded
from muster.worker.loss import IGNORED
from muster.worker.workloads.base import Counts

T = TypeVar("T")

# Chat messages as the data sets of DeepSpeed-Chat have them. `Templates` adds the end to each answer: a
# tokenizer may take it for text where it stands in one.
PLAIN = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '\\n\\nAssistant: ' + message['content'] }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] }}"
    "{% else %}{{ '\\n\\nHuman: ' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n\\nAssistant: ' }}{% endif %}"
)


@dataclass(frozen=True)
class TokenPart:
    """Tokens of one piece of a sample; `learned`: they are an answer's."""

    tokens: list[int]
    learned: bool


class Templates:
    """How dialogues become tokens with one tokenizer.

    Plain prompts are taken as they are, and an answer ends with the tokenizer's end of text. Chat messages go
    through the chat template. Prompt and answers are made tokens apart, so that what the model is asked later
    is just what it saw.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end = tokenizer.eos_token_id

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """Return the tokens before an answer."""
        if turns[0].role == TEXT:
            tokens = self._tokens(turns[0].text, start=True)
            return tokens or [self.end]
        return [token for part in self._rendered(turns, None) for token in part.tokens]

    def answer(self, turns: Sequence[Turn], text: str) -> list[int]:
        """Return an answer's tokens, with its end."""
        if turns[0].role == TEXT:
            return [*self._tokens(text), self.end]
        return self._rendered(turns, text)[-1].tokens

    def parts(self, sample: Dialogue) -> list[TokenPart]:
        """Return a sample's pieces in order. All answers of several turns are learned, unless a turn has
        weight 0."""
        if sample.turns[0].role == TEXT:
            return [
                TokenPart(self.prompt(sample.turns), False),
                TokenPart(self.answer(sample.turns, sample.answer or ""), True),
            ]
        return self._rendered(sample.turns, sample.answer or "")

    def _rendered(self, turns: Sequence[Turn], answer: str | None) -> list[TokenPart]:
        """Render messages through the template, cut where answers begin and end. `answer`: the last one;
        None: it is still to come. Raises DataError where the template changes what it has already written."""
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        learned = [*(turn.learned for turn in turns), True]
        if answer is not None:
            messages.append({"role": ASSISTANT, "content": answer})
        parts, done, over = [], "", list[int]()
        for index, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before = self._render(messages[:index], ask=True)
            after = self._render(messages[: index + 1], ask=False)
            spoken, rest = self._ended(self._new(before, after))
            parts += [TokenPart([*over, *self._new(done, before)], False), TokenPart(spoken, learned[index])]
            done, over = after, rest
        if answer is None:
            parts.append(TokenPart([*over, *self._new(done, self._render(messages, ask=True))], False))
        return parts

    def _new(self, before: str, after: str) -> list[int]:
        """Return the tokens of what the template has added."""
        if not after.startswith(before):
            raise DataError(
                "the tokenizer's chat template rewrites earlier turns, so no answer can be cut out",
                where="data.template",
                hint="data.template=plain, or samples of one question and one answer",
            )
        return self._tokens(after[len(before) :])

    def _ended(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Cut an answer behind its end, which it is given where the template has none. -> it, and what the
        template has behind that: a model that stops at the end never writes it."""
        if self.end not in tokens:
            return [*tokens, self.end], []
        size = len(tokens) - tokens[::-1].index(self.end)
        return tokens[:size], tokens[size:]

    def _render(self, messages: Sequence[Mapping[str, str]], *, ask: bool) -> str:
        if not messages:
            return ""
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=ask
            )
        except Exception as error:  # a template is a program: jinja2's errors, and its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"does not fit the tokenizer's chat template: {reason}", where="data") from None
        return text

    def _tokens(self, text: str, *, start: bool = False) -> list[int]:
        """Tokenize a text without its end. `start`: with what the tokenizer puts before a text (Llama's and
        OPT's do)."""
        tokens: list[int] = self.tokenizer(text, add_special_tokens=start)["input_ids"]
        return tokens[:-1] if start and len(tokens) > 1 and tokens[-1] == self.end else tokens


def with_template(tokenizer: Any, *, chat: bool, template: str) -> list[str]:
    """Give the tokenizer the chat template that is used, and the end of an answer that it writes; where
    prompts are plain text, a note of it, so that who asks the saved model does as the training did. -> notes.
    """
    notes = []
    tokenizer.init_kwargs.pop(PROMPTS_NOTE, None)
    tokenizer.init_kwargs |= {} if chat else {PROMPTS_NOTE: TEXT}
    if not chat and tokenizer.chat_template:
        notes.append(
            "prompts are plain text and taken as they are: the tokenizer's chat template is not used "
            "(data.template=chat takes them as a user's messages)"
        )
    elif chat and (template == "plain" or not tokenizer.chat_template):
        tokenizer.chat_template = PLAIN
    end = closing(tokenizer) if chat else None
    if end not in (None, tokenizer.eos_token_id):
        ending = tokenizer.convert_ids_to_tokens(end)
        notes.append(
            f"the chat template ends an answer with {ending}, and the tokenizer a text with "
            f"{tokenizer.eos_token}: {ending} is the end of an answer, of the saved tokenizer as well"
        )
        tokenizer.eos_token = ending
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return notes


def closing(tokenizer: Any) -> int | None:
    """Return the special token that the chat template puts behind an answer; None: none."""
    example = [{"role": "user", "content": "question"}, {"role": ASSISTANT, "content": "answer"}]
    try:
        text: str = tokenizer.apply_chat_template(example, tokenize=False)
    except Exception:  # a template is a program that may refuse this; real samples say what is wrong
        return None
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    tokens = tokenizer(text.rpartition("answer")[2], add_special_tokens=False)["input_ids"]
    return next((token for token in tokens if token in special), None)


def converses(tokenizer: Any) -> bool:
    """Return whether prompts are chat messages for a model with this tokenizer."""
    return bool(tokenizer.chat_template) and PROMPTS_NOTE not in tokenizer.init_kwargs


def turns_of(tokenizer: Any, text: str, before: Sequence[Turn] = ()) -> tuple[Turn, ...]:
    """Return a question as the saved model reads it. `before`: earlier turns of the conversation."""
    if converses(tokenizer):
        return (*before, Turn("user", text))
    return (Turn(TEXT, "".join(turn.text for turn in before) + text),)


class Fitting:
    """Cuts samples to a number of tokens. `cut` counts those that lost the end of an answer."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.cut = 0

    def prompt(self, tokens: list[int], where: str) -> list[int]:
        """Check that a prompt leaves room for an answer. -> it. Raises DataError."""
        if len(tokens) >= self.sequence:
            key = f"data.sequence={self.sequence:,}"
            raise prompt_too_long(len(tokens), self.sequence - 1, key, where)
        return tokens

    def answers(self, prompt: list[int], *answers: list[int]) -> list[list[int]]:
        """Cut answers to what fits after the prompt."""
        room = self.sequence - len(prompt)
        self.cut += any(len(answer) > room for answer in answers)
        return [answer[:room] for answer in answers]


class Rows(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Samples as tokens. `lengths`: tokens of each; `cut`: how many lost something."""

    def __init__(self, rows: Sequence[dict[str, Any]], lengths: Sequence[int], cut: int = 0) -> None:
        self.rows, self.lengths, self.cut = rows, list(lengths), cut

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def length_of(rows: Sequence[Sequence[int]], multiple: int) -> int:
    """Return the length of the longest row, rounded up to a multiple."""
    return -(-max(map(len, rows)) // multiple) * multiple


def usable(
    samples: Iterable[Dialogue], make: Callable[[Dialogue], T], errors: list[DataError] | None
) -> list[T]:
    """Make something of each sample. `errors` gains those of samples that cannot be used, with their places;
    None: they are raised."""
    rows = []
    for sample in samples:
        try:
            rows.append(make(sample))
        except DataError as error:
            placed = DataError(error.what, where=sample.where, hint=error.hint)
            if errors is None:
                raise placed from None
            errors.append(placed)
    return rows


def pairs(samples: Sequence[Dialogue], templates: Templates, fitting: Fitting, errors: Any) -> Rows:
    """Tokenize samples with two answers: prompt_ids, chosen_ids and rejected_ids (without the prompt), as TRL
    calls them."""

    def make(sample: Dialogue) -> dict[str, list[int]]:
        prompt = fitting.prompt(templates.prompt(sample.turns), sample.where)
        answers = [templates.answer(sample.turns, text or "") for text in (sample.answer, sample.rejected)]
        chosen, rejected = fitting.answers(prompt, *answers)
        if chosen == rejected:
            raise DataError(
                f"its answers are the same in their first {len(chosen):,} tokens, the rest does not fit",
                where=sample.where,
                hint="a longer data.sequence; data.bad=skip leaves such samples out",
            )
        return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}

    rows = usable(samples, make, errors)
    lengths = [len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in rows]
    return Rows(rows, lengths, fitting.cut)


@dataclass(frozen=True)
class PreferenceCollator:
    """Rows -> (2 x batch, length): the chosen answers, then the rejected ones, as TRL's trainers want them.

    A row that only fills up a held-out batch has nothing in its completion_mask.
    """

    pad: int
    fixed: int | None = None
    multiple: int = 1

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return input_ids, attention_mask and completion_mask, each (2 x batch, length)."""
        names = ("chosen_ids", "rejected_ids")
        both = [(row["prompt_ids"], row[name], row.get("ignored")) for name in names for row in rows]
        whole = [[*prompt, *answer] for prompt, answer, _ in both]
        inputs, mask = padded(whole, self.pad, self.fixed or length_of(whole, self.multiple))
        answered = mask.clone()
        for index, (prompt, _, ignored) in enumerate(both):
            answered[index, : None if ignored else len(prompt)] = 0
        return {"input_ids": inputs, "attention_mask": mask, "completion_mask": answered}


def count_pairs(inputs: Mapping[str, Any]) -> Counts:
    """Count a pair as one sample; the tokens are those of both of its texts."""
    mask = inputs["attention_mask"]
    return Counts(int(mask.shape[0]) // 2, mask.sum(), mask.numel())


def learned(
    samples: Sequence[Dialogue], templates: Templates, fitting: Fitting, what: str, errors: Any
) -> Rows:
    """Tokenize samples into input_ids and labels. `what`: answers, last (the last answer alone), or
    everything."""

    def make(sample: Dialogue) -> dict[str, list[int]]:
        parts = templates.parts(sample)
        *before, final = parts
        prompt = fitting.prompt([token for part in before for token in part.tokens], sample.where)
        (answer,) = fitting.answers(prompt, final.tokens)
        labels: list[int] = []
        for part in before:
            counts = what == "everything" or (what == "answers" and part.learned)
            labels += part.tokens if counts else [IGNORED] * len(part.tokens)
        return {"input_ids": [*prompt, *answer], "labels": [*labels, *answer]}

    rows = usable(samples, make, errors)
    return Rows(rows, [len(row["input_ids"]) for row in rows], fitting.cut)


def packed(rows: Rows, sequence: int) -> Rows:
    """Pack several samples into each row of at most `sequence` tokens, the longest first, each into a row
    that it fills best (best-fit decreasing). `sizes` has the length of each."""
    room: list[int] = []  # of each row
    bins: list[list[int]] = []
    by_room: list[deque[int]] = [deque() for _ in range(sequence + 1)]  # so that no row is looked for
    for index in sorted(range(len(rows)), key=lambda index: (-rows.lengths[index], index)):
        length = rows.lengths[index]
        left = next((left for left in range(length, sequence + 1) if by_room[left]), None)
        if left is None:
            number = len(bins)
            bins.append([])
            room.append(sequence)
        else:
            number = by_room[left].popleft()
        bins[number].append(index)
        room[number] -= length
        by_room[room[number]].append(number)
    made = []
    for members in bins:
        inputs = [token for index in members for token in rows[index]["input_ids"]]
        labels = [
            label if place else IGNORED  # the first token of a sample is predicted by none
            for index in members
            for place, label in enumerate(rows[index]["labels"])
        ]
        sizes = [rows.lengths[index] for index in members]
        made.append({"input_ids": inputs, "labels": labels, "sizes": sizes})
    return Rows(made, [sequence - left for left in room], rows.cut)


@dataclass(frozen=True)
class LearnedCollator:
    """Rows -> a padded batch. `pads`: padding is learned as well, as DeepSpeed-Chat's first step does.

    Packed rows get positions that begin anew in each sample, by which models keep samples apart.
    """

    pad: int
    fixed: int | None = None
    multiple: int = 1
    pads: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return (batch, length) input_ids, labels and attention_mask; of packed rows also position_ids."""
        texts = [row["input_ids"] for row in rows]
        length = self.fixed or length_of(texts, self.multiple)
        inputs, mask = padded(texts, self.pad, length)
        labels = torch.full_like(inputs, IGNORED)
        for index, row in enumerate(rows):
            size = len(row["input_ids"])
            if row.get("ignored"):  # it only fills up a held-out batch
                continue
            labels[index, :size] = torch.tensor(row["labels"])
            if self.pads:
                labels[index, size:] = self.pad
        labels[:, 0] = IGNORED  # predicted by none, and Transformers counts labels where they stand
        made = {"input_ids": inputs, "labels": labels, "attention_mask": mask}
        if "sizes" in rows[0]:
            made["position_ids"] = positions_of([row["sizes"] for row in rows], length)
        return made


def positions_of(sizes: Sequence[Sequence[int]], length: int) -> torch.Tensor:
    """Return (batch, length) positions in rows of samples of these sizes: they begin anew in each, and in
    what pads the row."""
    return torch.stack(
        [torch.cat([torch.arange(size) for size in (*row, length - sum(row))]) for row in sizes]
    )


def apart(positions: torch.Tensor) -> torch.Tensor:
    """Return (batch, 1, length, length) masks of packed rows, true where a token may look: at its own sample,
    up to itself."""
    samples = (positions == 0).cumsum(1)
    return (samples[:, :, None] == samples[:, None, :]).tril()[:, None]


def count_learned(inputs: Mapping[str, Any]) -> Counts:
    """Count a row as a sample, also where several are packed in it."""
    mask = inputs["attention_mask"]
    return Counts(int(mask.shape[0]), mask.sum(), mask.numel())
