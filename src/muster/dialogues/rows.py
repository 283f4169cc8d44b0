"""Rows of files as dialogues: a prompt of one or several turns, an answer, and a rejected answer.

The common forms are found by their fields (PROMPTS and so on): text prompts with answers, pairs of a chosen
and a rejected answer, Alpaca's instructions, lists of chat messages, and whole dialogues that share their
begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.errors import DataError
from muster.store.lines import MISSING, check_unicode, text_of, value_at
from muster.store.records import RowForm

# Fields that are looked for where the recipe names none; the first that a row has.
PROMPTS = ("prompt", "messages", "conversations", "instruction", "question")
ANSWERS = ("chosen", "answer", "completion", "response", "output", "sql", "sql.human_readable", "query")
REJECTED = ("rejected",)
INPUT = "input"  # Alpaca's: what the instruction is about
BEFORE = ("system", "history")  # Alpaca's, and LLaMA-Factory's: earlier turns
TEXT, USER, ASSISTANT, SYSTEM = "text", "user", "assistant", "system"
# Names of roles -> ours. ShareGPT says human and gpt.
ROLES = {
    "user": USER, "human": USER, "prompter": USER,
    "assistant": ASSISTANT, "gpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT,
    "system": SYSTEM,
}  # fmt: skip
MESSAGE = ("role", "content", "from", "value", "weight")  # fields of a message
PROMPTS_NOTE = "muster_prompts"  # in a saved tokenizer's configuration, where prompts were plain text
LAST_TURN = "\n\nAssistant:"  # where the answer begins in dialogues that are one text


@dataclass(frozen=True)
class Turn:
    """A message. `role`: user, assistant or system; TEXT of a prompt that is taken as it is;
    `learned`: whether an answer is to be, OpenAI's weight."""

    role: str
    text: str
    learned: bool = True


@dataclass(frozen=True)
class Dialogue:
    """A prompt with its answers. `where`: the file and line; `database`: a SQLite file that runs the
    answer."""

    turns: tuple[Turn, ...]
    answer: str | None
    rejected: str | None
    where: str
    database: str | None = None

    @property
    def chat(self) -> bool:
        """Whether its turns have roles, so that a chat template is needed."""
        return any(turn.role != TEXT for turn in self.turns)

    @property
    def question(self) -> str:
        """The last message before the answer."""
        return self.turns[-1].text


@dataclass(frozen=True)
class Wanted:
    """What a workload needs of a row. Fields: names or dotted paths; None: found by their usual names."""

    prompt: str | None = None
    answer: str | None = None
    rejected: str | None = None
    answered: bool = True  # there is an answer
    pairs: bool = False  # there is a rejected one as well

    @property
    def form(self) -> RowForm[Dialogue]:
        """How rows become dialogues."""
        named = [name for name in (self.prompt, self.answer, self.rejected) if name]
        return RowForm(
            lambda row, place, folder: dialogue_of(row, self, place, folder),
            (*named, *PROMPTS, *ANSWERS, *REJECTED, INPUT, "database", *BEFORE),
            lambda row, _: fields_read(row, self),
            field_names,
        )


def dialogue_of(
    record: Mapping[str, Any], wanted: Wanted, where: str, folder: Path | None = None
) -> Dialogue:
    """Turn a row into a dialogue. `folder`: where its database is looked for. Raises DataError for what
    nothing can be learned from: an empty prompt or answer, a rejected answer that equals the chosen one."""
    name = wanted.prompt or _prompt(record, wanted)
    answer: str | None
    rejected: str | None = None
    if name is None and wanted.pairs:
        turns, answer, rejected = _shared_begin(record, wanted, where)
    else:
        name = name or PROMPTS[0]
        turns = _within(record, wanted, _turns(record, name, where), where)
        answer = _answer(record, wanted, turns, where)
        if answer is None and turns and turns[-1].role == ASSISTANT:
            answer, turns = _answer_of(turns[-1], name, where), turns[:-1]
        if wanted.pairs:
            rejected = _reply(record, wanted.rejected or REJECTED[0], turns, where, "data.rejected")
    if not turns or not turns[-1].text.strip():
        raise DataError("has an empty prompt", where=where)
    if wanted.answered and (answer is None or not answer.strip()):
        what = "has no answer" if answer is None else "has an empty answer"
        hint = f"data.answer names its field; the fields there are: {', '.join(map(str, record))}"
        if turns[-1].role != TEXT:
            what = f"{what}: its last message is the {turns[-1].role}'s"
        raise DataError(what, where=where, hint=hint if answer is None else None)
    if wanted.pairs and answer is not None and rejected is not None:
        if not rejected.strip():
            raise DataError("has an empty rejected answer", where=where)
        if answer.split() == rejected.split():
            raise DataError("its rejected answer is the chosen one", where=where)
    named = record.get("database")
    database_file = folder / named if folder and isinstance(named, str) else None
    database = str(database_file) if database_file and database_file.is_file() else None
    return Dialogue(turns, answer, rejected, where, database)


def prompt_too_long(tokens: int, most: int, key: str, where: str, *, more: bool = False) -> DataError:
    """Make the error of a prompt of more than `most` tokens. `key`: the recipe's, which allows as many;
    `more`: a chat template adds to them."""
    at_least = "at least " if more else ""
    return DataError(
        f"its prompt has {at_least}{tokens:,} tokens, and {key} has room for {most:,}",
        where=where,
        hint=f"a longer {key.partition('=')[0]}; data.bad=skip leaves such samples out",
    )


def fields_read(record: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """Name the fields that a row's dialogue is made of."""
    prompt = wanted.prompt or _prompt(record, wanted)
    answer = wanted.answer or _first(record, ANSWERS)
    # Two whole dialogues that are texts stand for themselves.
    alone = prompt is None and wanted.pairs and isinstance(value_at(record, str(answer)), str)
    names = [prompt, answer, "database", *(() if alone else BEFORE)]
    names += [wanted.rejected or REJECTED[0]] if wanted.pairs else []
    return [name for name in (*names, *([INPUT] if prompt == "instruction" else [])) if name]


def field_names(record: Mapping[str, Any]) -> list[str]:
    """Name a row's fields, and those of its messages beside role and text."""
    inside = {
        f"{name}.{key}": None  # in the order of their first message
        for name, value in record.items()
        if isinstance(_listed(value), list)
        for message in _listed(value)
        if isinstance(message, Mapping)
        for key, each in message.items()
        if key not in MESSAGE and each is not None
    }
    return [*record, *inside]


def _first(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Find the first field that holds a text or messages; else the first that is there, for the error's
    sake."""
    there = [name for name in names if value_at(record, name) not in (MISSING, None)]
    usable = (name for name in there if isinstance(_listed(value_at(record, name)), str | list))
    return next(usable, (*there, None)[0])


def _listed(value: Any) -> Any:
    """Wrap a message by itself as a list of messages; anything else stays."""
    alone = isinstance(value, Mapping) and not {"role", "from"}.isdisjoint(value)
    return [value] if alone else value


def _prompt(record: Mapping[str, Any], wanted: Wanted) -> str | None:
    """Find the field of the prompt, where the recipe names none: messages before a text that has no answer
    beside it (UltraChat's form)."""
    name = _first(record, PROMPTS)
    if not wanted.answered or wanted.answer or _first(record, ANSWERS) or name is None:
        return name
    return next((each for each in PROMPTS if isinstance(value_at(record, each), list)), name)


def _turns(record: Mapping[str, Any], name: str, where: str) -> tuple[Turn, ...]:
    """Read the prompt: messages, or a text; Alpaca's instruction with its input below it."""
    value = _listed(value_at(record, name))
    if isinstance(value, list):
        turns = tuple(_message(each, name, where) for each in value)
    else:
        text = text_of(record, name, where, "data.prompt")
        more = record.get(INPUT)
        if name == "instruction" and isinstance(more, str) and more.strip():
            text = f"{text}\n\n{more}"
        turns = (Turn(TEXT, text),)
    return _behind_earlier(record, turns, where)


def _behind_earlier(record: Mapping[str, Any], turns: tuple[Turn, ...], where: str) -> tuple[Turn, ...]:
    """Put a row's system and history before a prompt."""
    earlier, own = _earlier(record, where), [turn for turn in turns[:1] if turn.role == SYSTEM]
    if own:  # the messages' own
        earlier = tuple(turn for turn in earlier if turn.role != SYSTEM)
    return (*own, *earlier, *turns[len(own) :])


def _earlier(record: Mapping[str, Any], where: str) -> tuple[Turn, ...]:
    """Read the turns of a row's system and history. `history`: pairs of a user's text and an assistant's."""
    system, history = (record.get(name) for name in BEFORE)
    turns: tuple[Turn, ...] = ()
    if isinstance(system, str) and system.strip():
        turns = (Turn(SYSTEM, system),)
    for pair in history if isinstance(history, list) else ():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            hint = 'pairs of two texts: [["a question", "its answer"]]'
            raise DataError("its history has something that is no pair of texts", where=where, hint=hint)
        turns += (Turn(USER, pair[0]), Turn(ASSISTANT, pair[1]))
    return turns


def _within(
    record: Mapping[str, Any], wanted: Wanted, turns: tuple[Turn, ...], where: str
) -> tuple[Turn, ...]:
    """Turn a prompt that is a text into a user's message, where messages are beside it: earlier ones of the
    row, or those of its answer, which may begin with earlier turns (UltraFeedback's form)."""
    name = wanted.answer or _first(record, ANSWERS)
    value = _listed(value_at(record, name)) if name else None
    spoken = value if isinstance(value, list) else []
    if not turns or turns[-1].role != TEXT or not (spoken or len(turns) > 1):
        return turns
    *before, prompt = turns
    earlier = tuple(_message(each, str(name), where) for each in spoken[:-1])
    if earlier and earlier[-1].role == USER and earlier[-1].text.split() == prompt.text.split():
        return earlier if earlier[0].role == SYSTEM else (*before, *earlier)
    return (*before, Turn(USER, prompt.text))


def _message(value: Any, name: str, where: str) -> Turn:
    """Read {role, content}, or ShareGPT's {from, value}. Raises DataError."""
    given = value if isinstance(value, Mapping) else {}
    role, text = given.get("role", given.get("from")), given.get("content", given.get("value"))
    speaker = ROLES.get(role.lower()) if isinstance(role, str) else None
    if speaker is None or not isinstance(text, str):
        what = f"a message of {name!r} is not a role ({', '.join(sorted(set(ROLES.values())))}) with its text"
        hint = '{"role": "user", "content": "..."}; messages with tools or pictures are not trained on'
        raise DataError(what, where=where, hint=hint)
    check_unicode(text, where)
    weight = given.get("weight")
    if weight not in (None, 0, 1):
        raise DataError(f"a message of {name!r} has weight {weight!r}, and must have 0 or 1", where=where)
    return Turn(speaker, text, learned=weight != 0)


def _answer(record: Mapping[str, Any], wanted: Wanted, turns: tuple[Turn, ...], where: str) -> str | None:
    name = wanted.answer or _first(record, ANSWERS)
    if name is None or (wanted.answer is None and turns and turns[-1].role == ASSISTANT):
        return None
    return _reply(record, name, turns, where, "data.answer")


def _reply(record: Mapping[str, Any], name: str, turns: tuple[Turn, ...], where: str, key: str) -> str:
    """Read an answer to these turns: a text; a message; or a list of messages, all but the last of them the
    prompt's."""
    value = _listed(value_at(record, name))
    if not isinstance(value, list) or not value:
        return text_of(record, name, where, key)
    *before, last = (_message(each, name, where) for each in value)
    expected = [turn.text.split() for turn in turns[len(turns) - len(before) :]]
    if before and [turn.text.split() for turn in before] != expected:
        raise DataError(f"{name!r} has other messages before its answer than the prompt", where=where)
    return _answer_of(last, name, where)


def _answer_of(last: Turn, name: str, where: str) -> str:
    """Return the text of a dialogue's last message, which has to be an answer. Raises DataError."""
    if last.role != ASSISTANT:
        raise DataError(f"the last message of {name!r} is not the {ASSISTANT}'s", where=where)
    if not last.learned:
        what, hint = f"the last answer of {name!r} has weight 0", "end the dialogue with one that is learned"
        raise DataError(what, where=where, hint=hint)
    return last.text


def _shared_begin(record: Mapping[str, Any], wanted: Wanted, where: str) -> tuple[tuple[Turn, ...], str, str]:
    """Divide two whole dialogues with the same begin: lists of messages, or texts, whose last answer follows
    the last "Assistant:" that they share."""
    names = wanted.answer or "chosen", wanted.rejected or REJECTED[0]
    values = [_listed(value_at(record, name)) for name in names]
    if all(isinstance(value, list) and value for value in values):
        chosen, rejected = (
            tuple(_message(each, name, where) for each in value)
            for name, value in zip(names, values, strict=True)
        )
        if chosen[:-1] != rejected[:-1]:
            raise DataError("its two answers have different prompts", where=where)
        return (
            _behind_earlier(record, chosen[:-1], where) if len(chosen) > 1 else (),
            _answer_of(chosen[-1], names[0], where),
            _answer_of(rejected[-1], names[1], where),
        )
    texts = [
        text_of(record, name, where, key)
        for name, key in zip(names, ("data.answer", "data.rejected"), strict=True)
    ]
    shared = 0
    while shared < min(map(len, texts)) and texts[0][shared] == texts[1][shared]:
        shared += 1
    cut = texts[0].rfind(LAST_TURN, 0, shared)
    if cut < 0:
        raise DataError(
            "has no prompt",
            where=where,
            hint=f"data.prompt names its field; the fields there are: {', '.join(map(str, record))}",
        )
    cut += len(LAST_TURN)
    return (Turn(TEXT, texts[0][:cut]),), texts[0][cut:], texts[1][cut:]
