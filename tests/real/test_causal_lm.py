"""Language models by real ranks: the same curve on one and two, exact perplexity, resume, and going on with
text."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import UsageError
from muster.core.result import Result
from muster.inputs.read import read_inputs
from muster.runs.ask import ask
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.sealed import what_is_wrong
from tests.support import by_the_lines, gradient_norms, losses, needs_torch, resumed_at_the_end, said

pytestmark = [pytest.mark.real, pytest.mark.timeout(400), pytest.mark.usefixtures("torch_here")]

STEPS = 12
HELD_OUT = 37  # sequences: no multiple of any batch here
TINY = [
    "model.vocab_size=400", "model.config.n_layer=2", "model.config.n_embd=32", "model.config.n_head=2",
    "model.config.n_positions=64", "model.config.resid_pdrop=0", "model.config.embd_pdrop=0",
    "model.config.attn_pdrop=0", "data.library.megabytes=0.3", f"train.max_steps={STEPS}", "train.warmup=0",
    "train.learning_rate=5e-3", "train.max_minutes=null", "measure.window=1", "measure.warmup=3",
    f"evaluate.limit={HELD_OUT}", "launch.threads=1", "measure.hardware_seconds=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def torch_here() -> None:
    needs_torch()


@pytest.fixture(scope="module")
def cache(torch_here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The token cache of this module."""
    return tmp_path_factory.mktemp("cache")


def run(folder: Path, hosts: str, cache: Path, *overrides: str) -> tuple[RunFolder, Result]:
    target = RunFolder(folder)
    inputs = read_inputs("causal-lm", hosts, [*TINY, f"launch.workdir={cache}", *overrides])
    result = train(inputs, target)
    assert result.status == "succeeded", result.failure
    return target, result


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[RunFolder, Result]:
    """One process, the whole global batch in one micro-batch, a checkpoint in the middle."""
    folder = tmp_path_factory.mktemp("lm") / "runs" / "reference"
    return run(folder, "local:1", cache, "batch.micro=16", "evaluate.every=5", "checkpoint.every=6")


def evaluated(done: RunFolder) -> dict[int, events.Evaluated]:
    return {e.step: e for e in events.read_events(done.events) if isinstance(e, events.Evaluated)}


def test_it_learns_and_says_what_it_read(reference: tuple[RunFolder, Result], cache: Path) -> None:
    done, result = reference
    curve = losses(done)
    assert len(curve) == STEPS
    assert curve[0] == pytest.approx(math.log(400), rel=0.05)  # it knows nothing yet
    assert curve[-1] < curve[0] - 0.5
    assert result.samples == 16 * STEPS
    assert (
        sum(e.tokens for e in events.read_events(done.events) if isinstance(e, events.Window)) == 1024 * STEPS
    )
    read = next(e for e in events.read_events(done.events) if isinstance(e, events.DataRead))
    assert read.validation == HELD_OUT
    meta = json.loads(next((cache / "tokens").glob("*/meta.json")).read_text())
    assert read.train == meta["parts"]["train"]["tokens"] // 64
    assert any("the standard library of Python" in note and "kB" in note for note in result.notes)
    assert any("training tokens do not fill a sequence of 64" in note for note in result.notes)


def plain_loss(model: Path, cache: Path) -> float:
    """The held-out loss per token of a saved model, without any of Muster's batches, losses or trainers."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    folder = next((cache / "tokens").glob("*/meta.json")).parent
    tokens = np.fromfile(folder / "validation.bin", dtype="uint16").astype(np.int64)
    rows = torch.from_numpy(tokens[: HELD_OUT * 64].reshape(HELD_OUT, 64))
    whole = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        each = [whole(row[None], labels=row[None]).loss.item() for row in rows]
    return sum(each) / len(each)


def test_the_perplexity_is_exact(reference: tuple[RunFolder, Result], cache: Path) -> None:
    """At every interval and after the last step; the last batch has 5 of 16 sequences."""
    done, result = reference
    found = evaluated(done)
    assert sorted(found) == [5, 10, STEPS]
    assert all(e.perplexity == pytest.approx(math.exp(e.loss)) for e in found.values())
    assert result.evaluation_loss == pytest.approx(plain_loss(done.model, cache), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.evaluation_loss or 0))
    assert result.seconds.evaluation


ENGINES = {
    "ddp": ["batch.micro=4", "batch.accumulation=2", "train.fused_loss=true"],
    "fsdp": ["batch.micro=8", "engine.name=fsdp", "train.fused_loss=true"],
    "zero2": ["batch.micro=4", "batch.accumulation=2", "engine.name=deepspeed", "engine.zero=2"],
}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_follow_one_process(
    engine: str, reference: tuple[RunFolder, Result], cache: Path, tmp_path: Path
) -> None:
    """Token for token the same batches; the held-out mean is exact however its sequences fall on ranks."""
    done, result = run(tmp_path / "run", "local:2", cache, *ENGINES[engine])
    assert losses(done) == pytest.approx(losses(reference[0]), rel=1e-3)
    norms = gradient_norms(reference[0])
    assert len(norms) == STEPS
    assert gradient_norms(done) == pytest.approx(norms, rel=1e-3)
    assert sorted(evaluated(done)) == [STEPS]
    assert result.flops is not None and result.flops.model_per_second > 0
    assert result.evaluation_loss == pytest.approx(plain_loss(done.model, cache), rel=1e-4)
    assert result.evaluation_loss == pytest.approx(reference[1].evaluation_loss, rel=1e-3)
    assert len(list((cache / "tokens").glob("*/meta.json"))) == 1


def test_resumed_is_as_if_never_interrupted(reference: tuple[RunFolder, Result], tmp_path: Path) -> None:
    """From the checkpoint in the middle: equal losses, equal parameters, equal perplexity."""
    from safetensors.torch import load_file

    whole, result = reference
    again, resumed = resumed_at_the_end(whole, tmp_path / "again", STEPS)
    assert losses(again) == losses(whole)
    assert resumed.evaluation_loss == result.evaluation_loss
    ours, theirs = (load_file(each.model / "model.safetensors") for each in (again, whole))
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


def test_a_text_too_small_to_hold_some_out(tmp_path: Path) -> None:
    """Of which nothing can be evaluated, though the recipe wants it at every interval: a note says so."""
    text = tmp_path / "small.txt"
    text.write_text(Path(argparse.__file__).read_text(encoding="utf-8")[:3000])
    few = ["data.library=null", f"data.path={text}", "evaluate.every=1", "train.max_steps=2", "batch.micro=2"]
    done, result = run(tmp_path / "run", "local:1", tmp_path / "cache", *few)
    assert "the held-out text does not fill one sequence: there is no perplexity" in result.notes
    assert (result.steps, result.evaluation_loss, said(done, events.Evaluated)) == (2, None, [])


# --- Mistral's gpt2-micro, shrunk ------------------------------------------------------------------------


def test_gpt2_micro_as_shipped_but_for_its_size(tmp_path: Path) -> None:
    """Its ZeRO-2 options and batch of 32 on two ranks, a text file of one's own, a schedule of pairs of which
    the last two checkpoints stay, and the attention monitor."""
    text = tmp_path / "text.txt"
    text.write_text(Path(argparse.__file__).read_text(encoding="utf-8"))
    small = [
        "model.vocab_size=400", "model.config.vocab_size=400", "model.config.n_embd=32",
        "model.config.n_positions=64", f"data.path={text}", "train.max_steps=14", "train.warmup=4",
        "checkpoint.every=[[2,6],[4,null]]", "measure.window=2", "measure.attention=true",
        "evaluate.limit=8", "launch.threads=1", "measure.hardware_seconds=1",
        f"launch.workdir={tmp_path}/work",
    ]  # fmt: skip
    done = RunFolder(tmp_path / "run")
    result = train(read_inputs("gpt2-micro", "local:2", small), done)
    assert result.status == "succeeded", result.failure
    assert (result.engine, result.global_batch, result.steps) == ("deepspeed ZeRO-2", 32, 14)
    zero = done.read_json(done.job)["deepspeed"]["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"], zero["reduce_scatter"]) == (2, True, True)
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 200_000_000
    saved = [event.step for event in said(done, events.Saved)]
    assert saved == [2, 4, 6, 8, 12, 14, None]  # the last one beside the schedule, then the model
    assert {path.name for path in done.checkpoints.iterdir()} == {"checkpoint-12", "checkpoint-14"}
    assert all(what_is_wrong(str(path))[0] is None for path in done.checkpoints.iterdir())
    looks = said(done, events.Attention)
    assert [look.step for look in looks] == [2, 4, 6, 8, 10, 12, 14]
    for look in looks:
        assert len(look.layers) == len(look.largest) == len(look.smallest) == 2
        pairs = zip(look.smallest, look.largest, strict=True)
        assert all(low is not None and high is not None and low < high for low, high in pairs)
    assert result.attention is not None and result.attention.windows == 7
    assert result.attention.largest is not None and result.attention.smallest is not None
    assert result.attention.largest.logit == max(high for look in looks for high in look.largest)
    assert result.perplexity == pytest.approx(math.exp(result.evaluation_loss or 0))
    assert losses(done)[-1] < losses(done)[0]


# --- asking ----------------------------------------------------------------------------------------------


def muster(where: RunFolder, *arguments: str) -> Any:
    argv = [sys.executable, "-m", "muster", "ask", "reference", *arguments, "--json"]
    done = subprocess.run(argv, cwd=where.path.parent.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ask_goes_on_with_text(reference: tuple[RunFolder, Result]) -> None:
    """Greedily, as the model itself says: token by token, without a cache."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done, _ = reference
    prompts = ["def __init__(self", "import os\n", "import os\n" * 200]
    answers = muster(done, *prompts)
    assert [row["question"] for row in answers["answers"]] == prompts
    tokenizer = AutoTokenizer.from_pretrained(done.model)
    model = AutoModelForCausalLM.from_pretrained(done.model).eval()
    row = tokenizer(prompts[0], return_tensors="pt")["input_ids"][
        :, -32:
    ]  # half of the positions are for new ones
    with torch.no_grad():
        known = row.size(1)
        while row.size(1) < known + 32:
            row = torch.cat([row, model(row).logits[:, -1:].argmax(-1)], 1)
            if row[0, -1] == tokenizer.eos_token_id:
                break
    expected = tokenizer.decode(row[0, known:], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert answers["answers"][0]["predicted"] == expected
    assert expected


def test_transformers_loads_it(reference: tuple[RunFolder, Result]) -> None:
    """The lines go on with a text as `muster ask` does."""
    told = muster(reference[0], "The ")["answers"][0]["predicted"]
    assert by_the_lines(reference[0]) == told.strip() and told


def test_ask_evaluate_gives_the_perplexity(reference: tuple[RunFolder, Result]) -> None:
    done, result = reference
    figures = muster(done, "--evaluate")
    assert figures["perplexity"] == pytest.approx(result.perplexity, rel=1e-5)
    assert (figures["sequences"], figures["tokens"]) == (HELD_OUT, HELD_OUT * 63)


# --- synthetic tokens ------------------------------------------------------------------------------------


def test_synthetic_tokens_need_nothing(tmp_path: Path) -> None:
    """OPT by its name, made small: as many samples as its steps use, no tokenizer, and nothing to ask."""
    small = ["model.config.num_hidden_layers=1", "model.config.hidden_size=32", "model.config.ffn_dim=32"]
    overrides = [
        "workload=causal-lm", "model.name=opt-8m", "model.init=random", "data.synthetic.seed=3",
        "data.sequence=32", "train.max_steps=3", "batch.micro=2", "measure.window=1", "engine.zero=3",
        "model.config.word_embed_proj_dim=32", "model.config.vocab_size=500",
        f"launch.workdir={tmp_path}/work",
    ]  # fmt: skip
    recipe = tmp_path / "synthetic.yaml"
    recipe.write_text("workload: causal-lm\nengine: {name: deepspeed}\n")
    done = RunFolder(tmp_path / "run")
    result = train(read_inputs(str(recipe), "local:2", [*overrides, *small]), done)
    assert result.status == "succeeded", result.failure
    assert result.samples == 3 * 4
    assert result.perplexity == pytest.approx(500, rel=0.1)
    read = next(e for e in events.read_events(done.events) if isinstance(e, events.DataRead))
    assert (read.train, read.validation) == (12, 16)
    with pytest.raises(UsageError, match="was trained on synthetic tokens"):
        ask(done, ["hello"])
    assert not (tmp_path / "work").exists()
