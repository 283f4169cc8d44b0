"""A tokenizer trained on the data, for models that start from scratch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from muster.core.recipe import Model

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2, as T5 has them
LENGTH = 512

# A space belongs to the lower-case or all-capitals word after it ("employees", "SELECT"). It stands alone
# before a capitalised word and before a digit: so a value is the same tokens in a question ("in Karburg") and
# in SQL ("= 'Karburg'"), and a model can copy it. Digits stand alone: unseen numbers are seen digits.
PIECES = r"\d| ?\p{Lu}{2,}(?!\p{Ll})| ?\p{Ll}+|\p{Lu}\p{Ll}*| ?[^\s\p{L}\p{N}]+|\s|."


def named_tokenizer(model: Model) -> str | None:
    """The tokenizer's hub name or folder: the one that is asked for, or the model's own; None: one is trained
    on the data."""
    if model.tokenizer != "auto":
        return None if model.tokenizer == "train" else model.tokenizer
    own = model.name and (model.init == "pretrained" or Path(model.name).is_dir())
    return model.name if own else None


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in T5's style: `</s>` is appended, and any text comes back unchanged.

    The texts should be what the model will see: prefixed questions and SQL. The same texts give the same
    tokenizer.
    """
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = _byte_level(texts, vocab_size, pieces, [PAD, END, UNKNOWN])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=LENGTH,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "</s>" typed by a user is text
    )


def without_end(tokenizer: Any) -> None:
    """Have a tokenizer put no end of text behind a text, as a decoder needs it, which goes on with the text.
    What it puts before a text stays."""
    backend, end = getattr(tokenizer, "backend_tokenizer", None), tokenizer.eos_token_id
    whole = tokenizer("a")["input_ids"]
    before = len(whole) - 1 - len(tokenizer("a", add_special_tokens=False)["input_ids"])
    if backend is None or end is None or before < 0 or whole[-1] != end:
        return
    if getattr(tokenizer, "add_eos_token", False):
        tokenizer.add_eos_token = False
    first = tokenizer.convert_ids_to_tokens(whole[:before])
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A"],
        pair=[*first, "$A", "$B:1"],
        special_tokens=[*dict(zip(first, whole, strict=False)).items()],
    )


TEXT_END = "<|endoftext|>"


def train_text_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in GPT-2's style: any text comes back unchanged, nothing is added to it.

    Entry 0 is `<|endoftext|>`, which joins documents. The same texts give the same tokenizer. There are fewer
    entries than `vocab_size` where the texts have no more pairs to merge.
    """
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(texts, vocab_size, pieces, [TEXT_END]),
        bos_token=TEXT_END,
        eos_token=TEXT_END,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "<|endoftext|>" in a text is text
    )


def _byte_level(texts: Iterable[str], vocab_size: int, pieces: Any, special: list[str]) -> Tokenizer:
    """A trained byte-level BPE. `pieces`: how a text is split first; `special`: the first entries."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(special) + len(alphabet)
    if vocab_size < smallest:
        raise ValueError(f"a byte-level vocabulary needs at least {smallest} tokens, not {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
