"""The longest sample of a data set, as a plan counts it, beside the tokens that ranks make."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.recipes import load_recipe

WORDS = ("select", "from", "a1", "é", "ﬁ", "½", "…", "日本", "\t", "Foo", "bar-baz", "'x'", "10.5", "  ")
STRANGE = (*WORDS, "<", "{")  # what some tokenizers have no token for
DICE = random.Random(1)


@dataclass
class _Sized:
    """A tokenizer of so many tokens."""

    size: int
    pad_token_id: int = 0
    eos_token_id: int = 1

    def __len__(self) -> int:
        return self.size


def _text(most: int, words: tuple[str, ...] = WORDS) -> str:
    return " ".join(["x", *(DICE.choice(words) for _ in range(DICE.randint(1, most)))])


def _tokenizer(kind: str, folder: Path) -> None:
    """Save one that begins texts, one that ends them and lacks characters, or one that does both."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    models, pre, trainers = tokenizers.models, tokenizers.pre_tokenizers, tokenizers.trainers
    special = ["<pad>", "</s>", "<unk>", "<s>"]
    names = {"pad_token": "<pad>", "eos_token": "</s>"} | ({} if kind == "bpe" else {"unk_token": "<unk>"})
    if kind == "bpe":
        made, before = tokenizers.Tokenizer(models.BPE()), pre.ByteLevel(add_prefix_space=False)
        alphabet = pre.ByteLevel.alphabet()
        how = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    elif kind == "unigram":
        made, before = tokenizers.Tokenizer(models.Unigram()), pre.Metaspace()
        made.normalizer = tokenizers.normalizers.NFKC()
        how = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    else:
        made, before = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>")), pre.BertPreTokenizer()
        how = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special)
    made.pre_tokenizer = before
    made.train_from_iterator([_text(20) for _ in range(300)], how)
    whole = {"bpe": "<s> $A", "unigram": "$A </s>", "wordpiece": "<s> $A </s>"}[kind]
    template = tokenizers.processors.TemplateProcessing
    made.post_processor = template(single=whole, special_tokens=[("<s>", 3), ("</s>", 1)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(str(folder))


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_no_sample_is_longer_than_the_longest(kind: str, strange: bool, tmp_path: Path) -> None:
    """Pairs: exactly, or not known where ranks add tokens for characters; dialogues: by one at most."""
    pytest.importorskip("torch")
    from transformers import AutoTokenizer

    from muster.dialogues.spec import load_samples
    from muster.dialogues.tokens import Fitting, Templates, learned
    from muster.workloads.seq2seq.train import Encoded, TextPair, cover_characters

    _tokenizer(kind, tmp_path)
    words = STRANGE if strange else WORDS
    rows = [{"input": _text(40, words), "target": _text(15, words)} for _ in range(60)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({**row, "prompt": row["input"]}) for row in rows))
    given = [f"data.path={file}", "data.generated=null", f"model.tokenizer={tmp_path}"]
    given.append("data.validation_fraction=0")

    pairs: Any = load_recipe("seq2seq", [*given, "data.prefix=to "])
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    added = cover_characters(tokenizer, [row["target"] for row in rows])
    made = Encoded([TextPair(row["input"], row["target"]) for row in rows], tokenizer, pairs.data)
    sources, targets = zip(*made.lengths, strict=True)
    longest = pairs.survey({}).longest
    assert (longest is None) == bool(added)
    assert longest is None or (longest.tokens, longest.target) == (max(sources), max(targets))

    told: Any = load_recipe("sft", [*given, "data.sequence=512", "data.answer=target"])
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    rank = learned(load_samples(told).train, Templates(tokenizer), Fitting(512), "answers", None)
    longest = told.survey({"model_type": "llama"}).longest
    assert longest is not None and 0 <= longest.tokens - max(rank.lengths) <= 1


def test_a_vocabulary_of_the_recipe_is_never_made_smaller() -> None:
    """As for decoders: the plan and the ranks have what is given, or the tokenizer's where that is more."""
    pytest.importorskip("torch")
    from muster.workloads.seq2seq.model import make_config

    config = {"model_type": "t5", "d_model": 16, "vocab_size": 100}
    for size, made in ((45, 100), (120, 120)):
        recipe = load_recipe("seq2seq", ["model.name=null", "model.init=random", f"model.config={config}"])
        context: Any = SimpleNamespace(recipe=recipe)
        assert make_config(context, _Sized(size)).vocab_size == made


def test_lengths_that_no_tokenizer_counted_are_not_known(tmp_path: Path) -> None:
    """Without a tokenizer tokens are a guess, and a chat template adds its own: times are for the longest."""
    pytest.importorskip("torch")
    _tokenizer("bpe", tmp_path)
    rows = [{"input": _text(40), "target": _text(15)} for _ in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    given = [f"data.path={file}", "data.generated=null", "data.validation_fraction=0"]
    for tokenizer, counted in ((tmp_path, True), ("an/unknown-one", False)):
        pairs = load_recipe("seq2seq", [*given, f"model.tokenizer={tokenizer}"])
        assert bool(pairs.survey({}).lengths) == counted
    words = [("user", "input"), ("assistant", "target")]
    chats = [{"messages": [{"role": role, "content": row[key]} for role, key in words]} for row in rows]
    file.write_text("\n".join(map(json.dumps, chats)))
    told: Any = load_recipe("sft", [*given, f"model.tokenizer={tmp_path}", "data.sequence=512"])
    assert told.survey({"model_type": "llama"}).lengths == () and told.survey(None).some
