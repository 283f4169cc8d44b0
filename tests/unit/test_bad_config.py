"""A model's configuration that makes no model, by the real command line: refused before anything is asked or
started, with the field and the nearest value that works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli import main
from muster.core import families
from muster.core.errors import RecipeError
from muster.core.families.checking import (
    FieldSource,
    check_config,
    check_names,
    near_divisors,
    near_multiples,
)
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.inputs.model import check_model

pytestmark = pytest.mark.usefixtures("nothing_learned")

QUICK = ("--on", "h200:8", "--quick")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str, str]:
    """-> exit code, what was printed, and the lines of the error and its hint."""
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    lines = shown.err.strip().splitlines()
    error = next((line for line in lines if line.startswith("error: ")), "")
    hint = next((line for line in lines if line.startswith("hint: ")), "")
    return int(ended.value.code or 0), shown.out, error, hint


def config(kind: str, **fields: Any) -> str:
    """As an override, in a model whose other fields are usual ones."""
    return f"model.config={json.dumps({'model_type': kind, **fields})}"


# What is wrong, in the recipe whose model it changes: the error, and what the hint has. More of them stand in
# tests/golden/commands.txt.
CASES = {
    "words for a number": (
        "causal-lm",
        config("llama", hidden_size="wide"),
        "hidden_size: must be a whole",
        "model.config.hidden_size=4096",
    ),
    "no layers": ("causal-lm", config("gpt2", n_layer=0), "n_layer: must be", "model.config.n_layer=1"),
    "GPT-2's heads": (
        "causal-lm",
        config("gpt2", n_embd=100, n_head=12),
        "n_head=12 does not divide n_embd=100",
        "model.config.n_head=10, or model.config.n_embd=96 or 108",
    ),
    "a field that GPT-2 has not": (
        "causal-lm",
        config("gpt2", foo=1),
        "config.foo: is not a field",
        "leave foo out",
    ),
    "a field of no formula's model": (
        "causal-lm",
        config("bloom", hidden_size=64, n_layerz=4),
        "n_layerz: is not a field",
        "did you mean model.config.n_layer?",
    ),
    "a field of another family": (
        "causal-lm",
        config("gpt_neox", hidden_size=64, hidden_sizes=3),
        "hidden_sizes: is not a field",
        "did you mean model.config.hidden_size?",
    ),
    "no space behind a colon": (
        "causal-lm",
        "model.config={model_type:bloom,hidden_size:1024}",
        "model.config: 'model_type:bloom' is a key without a value",
        "a space behind the colon: model_type: bloom",
    ),
    "patches": (
        "digits",
        "model.config.patch_size=3",
        "patch_size: patch_size=3 does not divide image_size=8",
        "model.config.patch_size=2 or 4",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("verb", ["train", "plan", "prepare"])
def test_every_verb_refuses_it_before_hosts_are_asked(
    name: str, verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, override, what, nearest = CASES[name]
    argv = ["local:1", recipe] if verb == "prepare" else [recipe, "--hosts", "local:1"]
    code, _, error, hint = run(capsys, verb, *argv, override)
    assert code == 2
    assert what in error and nearest in hint
    assert not list(tmp_path.glob("runs/*"))


def test_a_check_for_a_recipe_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("check", "local:1", "--recipe", "causal-lm", "model.config.n_head=3")
    code, _, error, hint = run(capsys, *argv)
    assert code == 2 and "n_head=3 does not divide n_embd=128" in error and "n_head=2 or 4" in hint


@pytest.mark.parametrize(
    ("name", "meant"), [("gpt2-smal", "gpt2-small"), ("opt-124m", "opt-125m"), ("lama-2-7b", "llama-2-7b")]
)
def test_a_misspelt_size_is_refused_before_hosts_are_asked(
    name: str, meant: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error, hint = run(capsys, "train", "causal-lm", "--hosts", "local:1", f"model.name={name}")
    assert code == 2 and error == f"error: model.name: there is no model named {name}"
    assert hint == f"hint: did you mean model.name={meant}?"
    for other in ("distilgpt2", "pythia-12b", "bert-base-uncased", "someone/opt-124m", "openai-gpt"):
        check_model(recipe_from({"workload": "causal-lm", "model": {"name": other}}))


def test_a_batch_that_no_device_holds_names_the_largest_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer samples; and where not even one fits, shorter ones. What is named does fit."""
    small = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 256}
    endless = config("llama", max_position_embeddings=10**7, **small)
    huge = [endless, "data.sequence=10000000", "batch.micro=2"]
    for wanted, named in ((["batch.micro=1000000000"], "batch.micro="), (huge, "data.sequence=")):
        argv = ["plan", "causal-lm", *wanted, "--on", "t4", "--quick", "--json"]
        code, out, error, _ = run(capsys, *argv)
        made = json.loads(out)
        assert (code, error) == (1, "") and made["memory"]["lacking"] == "device"
        way = made["would_fit"][0].split()
        assert way[0].startswith(named)
        code, out, _, _ = run(capsys, *argv, *way)
        assert code == 0 and json.loads(out)["memory"]["lacking"] is None


def test_errors_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _, _ = run(capsys, "plan", "causal-lm", "model.config.n_head=3", *QUICK, "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["where"] == "model.config.n_head" and "n_head=2 or 4" in error["hint"]


# --- what is not refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in families.sizes() if name != "gpt2-micro"])
def test_no_known_size_is_refused(name: str) -> None:
    check_config(families.size(name) or {}, FieldSource())


@pytest.mark.parametrize(
    "given",
    [
        {"model_type": "mistral", "hidden_size": 100, "num_attention_heads": 12, "num_key_value_heads": 4},
        {"model_type": "llama", "num_key_value_heads": None, "head_dim": None},
        {"model_type": "t5", "d_model": 100, "num_heads": 12, "d_kv": 7},
        {"model_type": "vit", "image_size": [24, 48], "patch_size": [8, 12]},
        {"model_type": "opt", "n_layer": "left over", "n_embd": 0},  # another family's: OPT reads none
        {"model_type": "gpt2", "bos_token_id": "any", "layer_norm_epsilon": None},
        {"model_type": "bart", "d_model": "whatever"},
        {"model_type": "t5", "feed_forward_proj": "gated-silu", "dropout_rate": 0},
        {"model_type": "gpt2", "n_inner": None},
    ],
)  # fmt: skip
def test_what_makes_a_model_is_not_refused(given: dict[str, Any]) -> None:
    check_config(given, FieldSource(own=given))


@pytest.mark.parametrize(
    "given",
    [
        {"model_type": "gpt2", "hidden_size": 64, "torch_dtype": "float32", "max_length": 20, "_mine": 1},
        {"model_type": "llama", "rope_theta": 1e4, "rope_scaling": None, "pretraining_tp": 1},
        {"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000, "use_cache": False},
        {"model_type": "my_own", "depth": 3},
        {"model_type": "llama", "auto_map": {"AutoConfig": "mine.Config"}, "depth": 3},
    ],
)
def test_fields_that_a_class_has_renames_or_reads(given: dict[str, Any]) -> None:
    """A type that is not Transformers', or has code of its own, may have any."""
    check_names(given, given)


def test_a_type_is_given_where_several_are_trained() -> None:
    with pytest.raises(RecipeError, match="is not given") as caught:
        check_model(recipe_from({"workload": "causal-lm", "model": {"config": {"n_layer": 2}}}))
    assert caught.value.where == "model.config.model_type" and "gpt2" in (caught.value.hint or "")
    check_model(recipe_from({"workload": "seq2seq", "model": {"config": {"num_layers": 2}}}))


def test_a_folder_s_own_faults_are_named_by_their_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 100, "n_head": 12}))
    with pytest.raises(RecipeError, match="n_head=12 does not divide n_embd=100") as caught:
        check_model(recipe_from({"workload": "causal-lm", "model": {"name": str(tmp_path)}}))
    assert caught.value.where == f"{tmp_path}/config.json: n_head"
    mended = {"name": str(tmp_path), "config": {"n_head": 10}}
    check_model(recipe_from({"workload": "causal-lm", "model": mended}))


def test_a_reward_model_writes_nothing(tmp_path: Path) -> None:
    """Its output layer would be drawn anew."""
    config = {**families.filled({"model_type": "gpt2"}), "architectures": ["GPT2ForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for workload in ("sft", "dpo", "grpo", "rloo", "ppo", "causal-lm"):
        with pytest.raises(RecipeError, match="is a reward model") as found:
            check_model(recipe_from({"workload": workload, "model": {"name": str(tmp_path)}}))
        assert found.value.where == "model.name"
    named = {"name": str(tmp_path)}
    check_model(recipe_from({"workload": "reward", "model": named}))
    check_model(recipe_from({"workload": "sft", "model": {**named, "init": "random"}}))


def test_the_nearest_are_the_nearest() -> None:
    for total in range(1, 200):
        for parts in range(1, 40):
            near = near_divisors(total, parts)
            every = [each for each in range(1, total + 1) if total % each == 0]
            assert near == [n for n in every if abs(n - parts) == min(abs(e - parts) for e in every)]
            around = near_multiples(total, parts)
            assert all(n % parts == 0 and abs(n - total) <= parts and n for n in around) and around


def test_force_takes_a_field_of_a_newer_version() -> None:
    own = config("gpt2", new_field=1)
    with pytest.raises(RecipeError, match="in Transformers"):
        check_model(load_recipe("causal-lm", [own]))
    check_model(load_recipe("causal-lm", [own, "force=true"]))
