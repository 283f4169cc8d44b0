"""Count the tokens of texts before ranks start: by the tokenizer that they will use, where this machine has
it. No torch is needed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from muster.core.recipe import Model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")

BYTES = 4  # of a token of English text, about: where no tokenizer is here
COUNTED = 1000  # samples of a data set whose tokens are counted
CHARACTERS = 4 << 20  # of their texts: counting these takes some seconds
PRIVATE = "\ue000"  # a character for which no tokenizer has a token

# A space belongs to the lower-case or all-capitals word after it ("employees", "SELECT"). It stands alone
# before a capitalised word and before a digit: so a value is the same tokens in a question ("in Karburg") and
# in SQL ("= 'Karburg'"), and a model can copy it. Digits stand alone: unseen numbers are seen digits.
PIECES = r"\d| ?\p{Lu}{2,}(?!\p{Ll})| ?\p{Ll}+|\p{Lu}\p{Ll}*| ?[^\s\p{L}\p{N}]+|\s|."


def named_tokenizer(model: Model) -> str | None:
    """Return the tokenizer's hub name or folder: the one that the recipe names, or the model's own; None: one
    is trained on the data."""
    if model.tokenizer != "auto":
        return None if model.tokenizer == "train" else model.tokenizer
    own = model.name and (model.init == "pretrained" or Path(model.name).is_dir())
    return model.name if own else None


def byte_level(
    texts: Iterable[str], vocab_size: int, special: list[str], *, by_words: bool = False
) -> Tokenizer:
    """Train a byte-level BPE. `special`: its first entries; `by_words`: texts are split by PIECES first, else
    as GPT-2 splits them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(special) + len(alphabet)
    if vocab_size < smallest:
        raise ValueError(f"a byte-level vocabulary needs at least {smallest} tokens, not {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not by_words)
    words = [pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), whole]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words) if by_words else whole
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# ----------------------------------------------------------------------------------------------------
# Counting.


@dataclass(frozen=True)
class Counter:
    """Counts the tokens of texts, without those that a tokenizer adds, which are `added` to each, such as its
    end, and `ended` to one that needs an end. `exact`: ranks will count the same."""

    count: Callable[[Sequence[str]], list[int]]
    exact: bool
    added: int = 1
    ended: int = 1
    unknown: Callable[[str], bool] = lambda character: True

    @property
    def by_bytes(self) -> bool:
        """Whether no tokenizer is here, so that tokens are a guess."""
        return self.count is _by_bytes

    def writes(self, text: str) -> bool:
        """Return whether it has a token for every character: ranks may add others, and count anew."""
        return not any(map(self.unknown, sorted(set(text))))


def counter(model: Model, texts: Callable[[], Iterable[str]]) -> Counter:
    """Return a counter for the tokenizer of a recipe's model. `texts`: what one is trained on, where the
    model has none; a part of the data is enough."""
    try:
        import tokenizers
    except ImportError:
        return Counter(_by_bytes, exact=False)
    name = named_tokenizer(model)
    if name is None:
        smallest = 300  # of the recipe's field
        made, exact = byte_level(texts(), max(model.vocab_size, smallest), ["</s>"], by_words=True), False
    else:
        folders = [Path(name), *snapshots(name, "models", os.environ)]
        file = next(
            (each / "tokenizer.json" for each in folders if (each / "tokenizer.json").is_file()), None
        )
        if file is None:
            return Counter(_by_bytes, exact=False)
        try:
            made, exact = tokenizers.Tokenizer.from_file(str(file)), True
        except Exception:  # the library's own kind, of any damaged file: ranks will say it
            return Counter(_by_bytes, exact=False)
    made.no_truncation()
    made.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        return [len(each.ids) for each in made.encode_batch(list(texts), add_special_tokens=False)]

    def last(text: str, *, special: bool = False) -> int:
        return (made.encode(text, add_special_tokens=special).ids or [-1])[-1]

    def unknown(character: str) -> bool:
        return last(character) == last(PRIVATE)

    added = made.num_special_tokens_to_add(is_pair=False) if exact else 1
    ends = not exact or last("a", special=True) != last("a")
    return Counter(count, exact, added, added if ends else added + 1, unknown)


def _by_bytes(texts: Sequence[str]) -> list[int]:
    return [-(-len(text.encode("utf-8", "replace")) // BYTES) for text in texts]


def snapshots(name: str, kind: str, env: Mapping[str, str]) -> list[Path]:
    """Return the folders of a model or data set (`kind`: models, datasets) in the Hugging Face hub's cache.
    """
    base = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(env.get("HF_HOME") or f"{base}/huggingface").expanduser()
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    folder = (Path(hub).expanduser() if hub else home / "hub") / f"{kind}--{name.replace('/', '--')}"
    return sorted(folder.glob("snapshots/*"))


def some_of(samples: Sequence[T], texts: Callable[[T], Iterable[str]]) -> list[T]:
    """Return at most COUNTED of the samples, drawn by chance; fewer where their texts have more than
    CHARACTERS."""
    some = _draw(samples, COUNTED)
    size = sum(len(text) for each in some for text in texts(each))
    return some if size <= CHARACTERS else _draw(some, max(1, len(some) * CHARACTERS // size))


def all_of(samples: Sequence[T], texts: Callable[[T], Iterable[str]]) -> Sequence[T]:
    """Return all samples where their texts have at most CHARACTERS, else none."""
    return samples if sum(len(text) for each in samples for text in texts(each)) <= CHARACTERS else ()


def _draw(samples: Sequence[T], most: int) -> list[T]:
    count = len(samples)
    drawn = range(count) if count <= most else sorted(random.Random(0).sample(range(count), most))
    return [samples[index] for index in drawn]


def too_long(lengths: Sequence[int], of: int, limit: int, *, exact: bool) -> tuple[str, int] | None:
    """Return how many of `of` texts are longer than `limit` tokens, in words, and the longest length; None:
    none is. `lengths`: of some of the texts, or of all."""
    over = sum(length > limit for length in lengths)
    if not over:
        return None
    about = "" if exact and len(lengths) == of else "about "
    return f"{about}{round(over * of / len(lengths)):,} of {of:,}", max(lengths)
