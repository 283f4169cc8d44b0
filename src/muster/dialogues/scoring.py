"""What answers are worth: by a reward model, by a user's function, or by running them."""

from __future__ import annotations

import importlib
import importlib.util
import math
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification, AutoTokenizer

from muster.core.errors import DataError, RecipeError
from muster.dialogues.rewarding import read_at_end, rewards
from muster.dialogues.rl import RolloutRecipe
from muster.dialogues.rows import Dialogue
from muster.dialogues.tokens import Templates
from muster.worker.context import Context
from muster.worker.data.sqlexec import QueryFailed, run_query, same_result
from muster.worker.models import computed_in, load_from, whole

Function = Callable[[list[str], list[str], list[Any]], Sequence[float]]


class Scorer:
    """The recipe's rewards, added up."""

    def __init__(self, context: Context, recipe: RolloutRecipe, tokenizer: Any) -> None:
        self.reward, self.tokenizer, self.device = recipe.reward, tokenizer, context.device
        self.model = load_reward_model(context, tokenizer) if recipe.reward.model else None
        self.function = load_function(recipe.reward.function) if recipe.reward.function else None
        self.templates = Templates(tokenizer)

    def __call__(self, samples: Sequence[Dialogue], answers: Sequence[Sequence[int]]) -> list[float]:
        """Return the reward of each answer, in tokens, to its sample's prompt. Raises DataError where one is
        no number."""
        texts = [
            text.strip()
            for text in self.tokenizer.batch_decode(
                [list(answer) for answer in answers],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            )
        ]
        by_source = (
            self._by_model(samples, answers),
            self._by_function(samples, texts),
            self._by_execution(samples, texts),
        )
        return [sum(each, 0.0) for each in zip(*filter(None, by_source), strict=True)]

    def _by_model(self, samples: Sequence[Dialogue], answers: Sequence[Sequence[int]]) -> list[float] | None:
        if self.model is None:
            return None
        texts = [
            [*self.templates.prompt(sample.turns), *answer]
            for sample, answer in zip(samples, answers, strict=True)
        ]
        values: list[float] = rewards(self.model, texts, self.tokenizer.pad_token_id).tolist()
        return _checked(values, samples, "the reward model")

    def _by_function(self, samples: Sequence[Dialogue], texts: list[str]) -> list[float] | None:
        if self.function is None:
            return None
        name = self.reward.function or ""
        try:
            # Lists of its own: what it does to them changes nothing here.
            prompts, expected = [each.question for each in samples], [each.answer for each in samples]
            values = _listed(self.function(prompts, [*texts], expected), name)
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"raised {type(error).__name__}: {' '.join(str(error).split())}{_line_of(error)}", where=name
            ) from error
        if len(values) != len(texts):
            raise DataError(f"gave {len(values):,} rewards for {len(texts):,} answers", where=name)
        return _checked(values, samples, name)

    def _by_execution(self, samples: Sequence[Dialogue], texts: Sequence[str]) -> list[float] | None:
        if not self.reward.executes:
            return None
        return [float(_executes(sample, text)) for sample, text in zip(samples, texts, strict=True)]


def _executes(sample: Dialogue, text: str) -> bool:
    """Return whether the SQL gives the same rows. Where the expected ones are none, or zeros alone, much
    wrong SQL gives them as well: there it has to be the same SQL."""
    assert sample.database and sample.answer  # RolloutRecipe.check_rows
    try:
        _, rows = run_query(Path(sample.database), sample.answer)
        if not any(value not in (None, 0) for row in rows for value in row):
            return text.split() == sample.answer.split()
        return same_result(Path(sample.database), text, sample.answer)
    except QueryFailed as error:
        raise DataError(f"its expected SQL cannot be run: {error}", where=sample.where) from None


def _checked(values: Sequence[Any], samples: Sequence[Dialogue], name: str) -> list[float]:
    numbers = []
    for value, sample in zip(values, samples, strict=True):
        try:
            numbers.append(float(value))
        except (TypeError, ValueError, OverflowError):
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise DataError(
                f"gave {reprlib.repr(value)} for an answer to the prompt of {sample.where}", where=name
            )
    return numbers


def _listed(values: Any, name: str) -> list[Any]:
    """List what a function returned, in its order. Raises DataError for what has none."""
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise DataError(f"returned a {type(values).__name__}, and not a list of numbers", where=name)
    return list(values)


def _line_of(error: BaseException) -> str:
    """Name the last line of the user's own file in a traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def load_function(name: str) -> Function:
    """Load a user's function. Raises RecipeError."""
    place, _, function = name.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location("muster_reward", place)
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        loaded: Function = getattr(module, function)
    except Exception as error:
        raise RecipeError(
            f"{name} cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}",
            where="reward.function",
            hint="the file must be on every host, and its packages installed there",
        ) from error
    return loaded


def check_tokenizer(name: str, tokenizer: Any, where: str) -> None:
    """Raise RecipeError unless the trained model of this name reads the same tokens. `where`: its key."""
    own = load_from(AutoTokenizer.from_pretrained, name, where)
    if own.get_vocab() != tokenizer.get_vocab():
        raise RecipeError(
            f"{name} has another tokenizer than the model: it would read other words",
            where=where,
            hint="train it with `reward`, starting from this model",
        )


def load_reward_model(context: Context, tokenizer: Any) -> Any:
    """Load the recipe's reward model, whole on every rank, in the precision that is computed in. Raises
    RecipeError where its tokenizer is another one."""
    recipe = context.recipe
    assert isinstance(recipe, RolloutRecipe) and recipe.reward.model
    name = recipe.reward.model
    check_tokenizer(name, tokenizer, "reward.model")
    with whole():
        kind = AutoModelForSequenceClassification
        model = load_from(kind.from_pretrained, name, "reward.model", dtype=computed_in(context))
    if model.config.num_labels != 1:
        raise RecipeError(
            f"{name} gives {model.config.num_labels} numbers for a text, and a reward is one",
            where="reward.model",
        )
    read_at_end(model)
    device = f"cuda:{context.local_rank}" if context.device == "cuda" else "cpu"
    return model.to(device).eval().requires_grad_(False)
