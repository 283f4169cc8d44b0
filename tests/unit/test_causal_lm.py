"""The causal-lm workload before it trains: recipes, tokenizers, configurations, sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np

from muster.core import families
from muster.core.batch import resolve_batch
from muster.core.errors import DataError, RecipeError
from muster.core.recipe import Recipe, recipe_from
from muster.core.recipes import load_recipe
from muster.engines.deepspeed.config import deepspeed_config
from muster.inputs.model import model_config
from muster.inputs.read import read_inputs
from muster.planner.setting import sequence_of as planned_sequence
from muster.prepare.warm import warm_recipe
from muster.store.lines import Skipped
from muster.worker import together
from muster.worker.data.tokenizer import TEXT_END, train_text_tokenizer
from muster.workloads.causal_lm import train as causal_lm
from muster.workloads.causal_lm.model import make_config, positions_of, sequence_of
from muster.workloads.causal_lm.sources import source_of
from muster.workloads.causal_lm.spec import TextData
from muster.workloads.causal_lm.tokens import Packed, Tokenizing, Tokens, open_tokens

TEXTS = ["def f(x):\n    return x\n", "Ünïcödé 漢字 🙂 <|endoftext|> 12345\t\r\n"] * 20


def recipe(**fields: Any) -> Recipe:
    return recipe_from({"workload": "causal-lm", **fields})


def opened(folder: Path, text: bytes, data: Any = (), **fields: Any) -> tuple[Recipe, Tokens]:
    """A recipe of a file with this text, and its tokens."""
    file, model = folder / "a.txt", {"init": "random", "vocab_size": 300}
    if not file.exists() or file.read_bytes() != text:  # else its tokens are in the cache
        file.write_bytes(text)
    made = recipe(data={"path": str(file), **dict(data)}, model=model, **fields)
    return made, open_tokens(source_of(made.data), causal_lm.tokenizing(made), folder / "cache")  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "global_batch", "layers"), [("gpt2-micro", 32, 2), ("gpt2-small", 512, 12)])
def test_mistrals_recipes(name: str, global_batch: int, layers: int) -> None:
    """Their settings, and z2-small's; the accumulation follows from the number of ranks."""
    made = load_recipe(name)
    train = made.train
    assert (train.learning_rate, train.weight_decay, train.warmup, train.seed) == (6e-4, 0.1, 4000, 21)
    assert (made.batch.global_, made.batch.micro, made.batch.accumulation) == (global_batch, None, None)
    assert resolve_batch(4, None, global_batch, world_size=4).accumulation == global_batch // 16
    zero = deepspeed_config(made, resolve_batch(4, None, global_batch, world_size=4), "fp16")
    assert zero["zero_optimization"]["stage"] == 2
    assert zero["zero_optimization"]["reduce_bucket_size"] == 200_000_000
    config = make_config(made, train_text_tokenizer(TEXTS, 300))
    assert (config.n_layer, config.vocab_size, config.resid_pdrop) == (layers, 50257, 0.1)
    offline = load_recipe(name, ["data.path=here", "model.config.n_layer=1"])
    assert (offline.data.name, offline.data.path) == (None, "here")


# --- the tokenizer ---------------------------------------------------------------------------------------


def test_any_text_comes_back_and_nothing_is_added() -> None:
    tokenizer = train_text_tokenizer(TEXTS, 320)
    for text in (*TEXTS, " x", "", "\x00 \n\n  é"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.eos_token_id not in ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(TEXT_END) == 0
    assert train_text_tokenizer(iter(TEXTS), 320).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ValueError, match="at least 257"):
        train_text_tokenizer(TEXTS, 256)


def test_which_tokenizer_is_taken(tmp_path: Path) -> None:
    """The model's own where it has one; a known size from scratch has none, so one is trained."""
    folder = tmp_path / "own"
    train_text_tokenizer(TEXTS, 300).save_pretrained(folder)
    assert causal_lm.tokenizing(recipe(model={"name": "gpt2-small", "init": "random"})).tokenizer is None
    assert causal_lm.tokenizing(recipe(model={"tokenizer": "train", "name": str(folder)})).vocab_size == 2048
    for model in ({"name": str(folder)}, {"init": "random", "tokenizer": str(folder)}):
        assert len(causal_lm.tokenizing(recipe(model=model)).tokenizer) == 300
    with pytest.raises(RecipeError) as caught:
        causal_lm.tokenizing(recipe(model={"tokenizer": str(tmp_path / "nowhere")}))
    assert caught.value.where == "model.tokenizer"


# --- the model's configuration ---------------------------------------------------------------------------


def test_a_model_from_scratch_has_an_entry_for_every_token() -> None:
    tokenizer = train_text_tokenizer(TEXTS, 300)
    own = make_config(recipe(model={"init": "random", "config": {"n_layer": 1}}), tokenizer)
    assert (own.model_type, own.vocab_size, own.eos_token_id) == ("gpt2", 300, 0)
    opt = make_config(recipe(model={"init": "random", "name": "opt-125m"}), tokenizer)
    assert (opt.vocab_size, opt.pad_token_id) == (51_200, None)  # its pad would be a token of the text
    llama = make_config(recipe(model={"init": "random", "config": {"model_type": "llama"}}), None)
    assert llama.model_type == "llama"
    with pytest.raises(RecipeError, match="t5 is not a causal language model"):
        make_config(recipe(model={"init": "random", "name": "t5-small"}), None)


def test_the_sequence_has_to_fit_the_positions() -> None:
    config = make_config(recipe(model={"init": "random", "name": "gpt2-micro"}), None)
    assert positions_of(config) == sequence_of(TextData(), config) == 256
    assert sequence_of(TextData(sequence=100), config) == 100
    for sequence in (257, 1):
        with pytest.raises(RecipeError) as caught:
            sequence_of(TextData(sequence=sequence), config)
        assert caught.value.where == "data.sequence"


@pytest.mark.parametrize("left", [{}, {"n_positions": 32}, {"n_positions": 256}])
@pytest.mark.parametrize("given", [{}, {"max_position_embeddings": 64}])
@pytest.mark.parametrize("kind", ["gpt2", "opt", "llama", "mistral"])
def test_everybody_reads_the_same_positions(kind: str, given: dict[str, int], left: dict[str, int]) -> None:
    """The planner and the host that starts a run, from fields; the ranks, from Transformers' configuration:
    also where a field of another model is left over."""
    made = recipe(model={"init": "random", "config": {"model_type": kind, **left, **given}})
    config = make_config(made, None)
    found = positions_of(config)
    assert found == planned_sequence(made, model_config(made))
    assert found == (config.n_positions if kind == "gpt2" else config.max_position_embeddings)
    if given:
        assert found == 64
    fields = model_config(made) or {}
    made.model_copy(update={"data": TextData(sequence=found)}).check_data(None, fields)
    with pytest.raises(RecipeError, match=f"the model has {found:,} positions"):
        made.model_copy(update={"data": TextData(sequence=(found or 0) + 1)}).check_data(None, fields)


def test_positions_of_a_model_that_only_transformers_knows() -> None:
    """Ranks read its defaults, and its own name for them; who has but fields has what they say."""

    def of_ranks(fields: dict[str, Any]) -> int | None:
        return positions_of(make_config(recipe(model={"init": "random", "config": fields}), None))

    neox, gptj = {"model_type": "gpt_neox"}, {"model_type": "gptj", "n_positions": 32}
    assert (of_ranks(neox), families.positions(neox)) == (2048, None)
    assert families.positions({**neox, "max_position_embeddings": 64, "n_positions": 256}) == 64
    assert of_ranks(gptj) == families.positions(gptj) == 32
    assert families.positions({"model_type": "t5", "n_positions": 512}) is None  # they are relative
    assert families.positions({"model_type": "gpt2", "n_positions": "many"}) is None


# --- data ------------------------------------------------------------------------------------------------


def test_too_little_text(tmp_path: Path) -> None:
    made, tokens = opened(tmp_path, bytes(range(33, 123)))  # of which tokens are held out
    with pytest.raises(DataError, match="do not fill one sequence of 64"):
        causal_lm._packed(made, tokens, 64)
    train, held_out = causal_lm._packed(made, tokens, 4)
    assert len(train) and not len(held_out)
    notes = causal_lm._notes(tokens, train, held_out)
    assert notes[0].startswith("text: a.txt, 90 B")
    assert notes[-1] == "the held-out text does not fill one sequence: there is no perplexity"


@pytest.mark.parametrize(("limit", "there"), [(None, False), (1 << 20, False), (3, True)])
def test_text_that_a_limit_leaves_out_is_told(limit: int | None, there: bool, tmp_path: Path) -> None:
    text, fraction = b"so many words that some are held out\n" * 50, {"validation_fraction": 0.5}
    made, tokens = opened(tmp_path, text, fraction, evaluate={"limit": limit})
    train, held_out = causal_lm._packed(made, tokens, 4)
    told = [each for each in causal_lm._notes(tokens, train, held_out) if "evaluate.limit" in each]
    assert bool(told) is there and len(held_out) == min(limit or 1 << 20, held_out.tokens // 4)  # type: ignore[union-attr]


def test_what_was_skipped_is_told_also_from_the_cache(tmp_path: Path) -> None:
    for _ in range(2):
        _, tokens = opened(tmp_path, b"good line\n" * 50 + b"\xff\xff\n", {"bad": "skip"})
        (note,) = Skipped(**tokens.meta["skipped"]).notes
        assert f"1; the first: {tmp_path}/a.txt:51" in note


def test_a_hub_data_set_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that `datasets` loads as it loads one of the hub; rows of lines are one document."""
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    for name, rows in (("train", [" = A = \n", "", "words here\n"] * 30), ("validation", ["held out\n"] * 9)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")

    def tokens_of(name: str, **more: str) -> Tokens:
        source = source_of(TextData(name=name, **more))  # type: ignore[arg-type]
        return open_tokens(source, Tokenizing(None, 300, 0.05), tmp_path / "cache")

    tokens = tokens_of(str(folder), field="body")
    documents = {name: part["documents"] for name, part in tokens.meta["parts"].items()}
    assert documents == {"train": 1, "validation": 1}
    path, dtype, _ = tokens.part("validation")
    text = tokens.tokenizer.decode(np.fromfile(path, dtype=dtype), clean_up_tokenization_spaces=False)
    assert text == "held out\n" * 9 + TEXT_END
    with pytest.raises(DataError, match="field 'text' is missing") as caught:
        tokens_of(str(folder))
    assert "body" in (caught.value.hint or "")
    with pytest.raises(DataError, match="cannot be loaded"):
        tokens_of(f"{folder}/no")


def test_the_library_is_the_same_each_time(tmp_path: Path) -> None:
    data = TextData.model_validate({"library": {"megabytes": 0.1}})
    source = source_of(data)
    assert source.identity == source_of(data).identity
    size = sum(len(piece.encode()) for document in source.train() for piece in document)
    assert 0 < size <= 100_000
    tokens = open_tokens(source, Tokenizing(None, 300, 0.05), tmp_path)
    assert len(Packed(*tokens.part("train"), 64)) > 100


def test_hosts_with_other_text_are_named(tmp_path: Path) -> None:
    digests = [opened(tmp_path, text)[1].digest for text in (b"one text\n" * 50, b"another text\n" * 50)]
    alike = [("node1", digests[0]), ("node2", digests[0])]
    together.compare("the text is", alike)
    with pytest.raises(DataError, match=r"node\[1-2\] has [0-9]+ tokens, .*; node3 has [0-9]+ tokens"):
        together.compare("the text is", [*alike, ("node3", digests[1])])


def test_the_warm_job_reads_no_text() -> None:
    inputs = read_inputs("gpt2-small", "node1:8", ["data.path=/nowhere/at/all"])
    data = warm_recipe(inputs, [], "~/c", 60)
    warm = recipe_from(data)
    assert warm.data.source == "synthetic" and warm.data.path is None
    assert warm.model.config == {"n_layer": 1} and warm.model.init == "random"


def test_damaged_weights_are_an_error_that_names_the_model(tmp_path: Path) -> None:
    """And no error of a library without a file's name."""
    import transformers

    from muster.worker.models import load_from

    folder = tmp_path / "model"
    transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8)).save_pretrained(
        folder
    )
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(RecipeError, match="model cannot be loaded") as caught:
        load_from(transformers.AutoModelForCausalLM.from_pretrained, str(folder), "model.name")
    assert caught.value.where == "model.name"
