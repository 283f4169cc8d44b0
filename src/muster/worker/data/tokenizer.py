"""A tokenizer trained on the data, for models that start from scratch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from muster.core.recipe import Model
from muster.store.tokens import byte_level, named_tokenizer
from muster.worker.models import load_from

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2, as T5 has them
LENGTH = 512


def load_tokenizer(model: Model) -> Any | None:
    """Load the tokenizer that a recipe names, or its model's own; None: one is to be trained on the data.
    Raises RecipeError."""
    name = named_tokenizer(model)
    where = "model.name" if model.tokenizer == "auto" else "model.tokenizer"
    return None if name is None else load_from(AutoTokenizer.from_pretrained, name, where)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer in T5's style: `</s>` is appended, and any text comes back unchanged.

    The texts should be what the model will see: prefixed questions and SQL. The same texts give the same
    tokenizer.
    """
    tokenizer = byte_level(texts, vocab_size, [PAD, END, UNKNOWN], by_words=True)
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
    """Train a byte-level BPE tokenizer in GPT-2's style: any text comes back unchanged, nothing is added to
    it.

    Entry 0 is `<|endoftext|>`, which joins documents. The same texts give the same tokenizer. There are fewer
    entries than `vocab_size` where the texts have no more pairs to merge.
    """
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(texts, vocab_size, [TEXT_END]),
        bos_token=TEXT_END,
        eos_token=TEXT_END,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "<|endoftext|>" in a text is text
    )
