"""precision=fp8 with real torchao, emulated on a CPU: what is converted, how near gradients and losses are to
bf16's, what is saved, and the products that a GPU would be given, by their shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import RecipeError
from muster.inputs.read import read_inputs
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import gradient_norms, losses, needs_torch, resumed_at_the_end, said, train_here

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.usefixtures("packages")]

SHAPE = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
ALL = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
STEPS = 12
# Micro-batches accumulate, gradients are clipped in every step, weights decay.
WORDS = [
    "model.init=random", "model.vocab_size=400", "model.config.model_type=llama",
    "data.library.megabytes=0.3",
    *(f"model.config.{name}={value}" for name, value in SHAPE.items()), f"train.max_steps={STEPS}",
    "train.warmup=0", "train.learning_rate=5e-3", "train.max_minutes=null", "train.clip=0.5",
    "train.weight_decay=0.1", "measure.window=1", "measure.warmup=3", "evaluate.limit=8", "launch.threads=1",
    "measure.hardware_seconds=1", "batch.micro=4", "batch.accumulation=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def packages() -> None:
    needs_torch()
    pytest.importorskip("torchao")


def made(kind: str = "llama", **changes: Any) -> Any:
    """A small decoder, always with the same weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=400, **{**SHAPE, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def converted(model: Any, device: str = "cpu", *, force: bool = True) -> tuple[Any, list[str]]:
    """The model in fp8, and what its run says of it. `force`: no GPU is asked what it can do."""
    from muster.worker.float8 import convert

    told: list[str] = []
    context: Any = SimpleNamespace(
        device=device,
        main=True,
        emit=lambda kind, text: told.append(text),
        recipe=SimpleNamespace(force=force),
    )
    convert(context, model)
    return model, told


def in_fp8(model: Any) -> set[str]:
    return {name for name, each in model.named_modules() if type(each).__name__ == "Float8Linear"}


OPT = {
    "ffn_dim": 128, "word_embed_proj_dim": 32, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "names", "of"),
    [
        (("llama", {}), ALL, 14),
        (("qwen3", {"head_dim": 16}), ALL, 14),
        # 100 is no multiple of 16: the feed-forward stays in bf16.
        (("llama", {"intermediate_size": 100}), {"q_proj", "k_proj", "v_proj", "o_proj"}, 14),
        (
            ("opt", OPT),
            {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "project_in", "project_out"},
            14,
        ),
    ],
    ids=["llama", "qwen3", "odd", "opt, its output tied"],
)
def test_linear_layers_but_the_output_are_converted(
    model: tuple[str, dict[str, Any]], names: set[str], of: int
) -> None:
    import torch

    from muster.worker.instruments import meta

    kind, changes = model
    plain = made(kind, **changes)
    before = {name: each.clone() for name, each in plain.state_dict().items()}
    weights = dict(plain.named_parameters())
    found, told = converted(plain)
    assert {name.rpartition(".")[2] for name in in_fp8(found)} == names
    assert type(found.get_output_embeddings()) is torch.nn.Linear
    assert dict(found.named_parameters()).keys() == weights.keys()
    assert all(each is weights[name] for name, each in found.named_parameters())  # tied ones stay tied
    assert all(torch.equal(each, before[name]) for name, each in found.state_dict().items())
    assert told and told[0].startswith(f"{len(in_fp8(found))} of {of} ") and "emulated" in told[0]
    # Counted as what they are: linear layers.
    batch = {"input_ids": torch.zeros((2, 8), dtype=torch.long, device="meta")}
    doubles = [meta.double(each) for each in (made(kind, **changes), found)]
    assert meta.count(doubles[0], batch) == meta.count(doubles[1], batch)
    assert in_fp8(found) and not in_fp8(doubles[1])


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(RecipeError, match="multiples of 16") as refused:
        converted(made("gpt2", n_embd=32, n_head=2, n_layer=1))
    assert refused.value.where == "precision"


def test_what_a_rank_lacks_is_said_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a host did not say what its GPU can do, or has another environment than it told."""
    import importlib.util

    import torch

    for name, able, needs in (
        ("NVIDIA A100-SXM4-80GB", (8, 0), "8.9"),
        ("AMD Instinct MI250X", (9, 0), "9.4"),
        ("AMD Instinct MI300X", (9, 4), ""),
        ("NVIDIA L40S", (8, 9), ""),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda able=able: able)
        if not needs:
            assert in_fp8(converted(made(), "cuda", force=False)[0])
            continue
        with pytest.raises(RecipeError, match=f"capability {needs}") as refused:
            converted(made(), "cuda", force=False)
        assert refused.value.hint == "precision=bf16"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="torchao is not installed") as refused:
        converted(made())
    assert refused.value.hint == "pip install torchao"


def passed(model: Any, rows: int = 3) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of a batch of 33 tokens, as the trainer computes them."""
    import torch

    tokens = torch.randint(0, 400, (rows, 33), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: each.grad for name, each in model.named_parameters()}


def test_gradients_are_off_by_what_four_bits_of_a_mantissa_lose() -> None:
    """e4m3 rounds a value by up to 1 in 16 (bf16 by 1 in 256), and errors of a sum cancel in part: a weight's
    gradient is off by some percent. Of what no converted layer follows or precedes, none of it would be."""
    import torch

    def off(given: dict[str, Any], name: str) -> float:
        return float((given[name] - exact[name]).norm() / exact[name].norm())

    plain = made()
    tokens = torch.randint(0, 400, (3, 33), generator=torch.Generator().manual_seed(1))
    plain(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    exact = {name: each.grad for name, each in plain.named_parameters()}
    few_loss, few = passed(converted(made())[0])
    half_loss, half = passed(made())
    assert few_loss == pytest.approx(half_loss, rel=1e-3) and few_loss != half_loss
    layers = [name for name in exact if name.rpartition(".")[0].rpartition(".")[2] in ALL]
    assert len(layers) == 14
    for name in layers:
        assert few[name].dtype == torch.float32
        assert off(half, name) < 0.015 < 0.03 < off(few, name) < 0.15, name
    again, same = passed(converted(made())[0])
    assert again == few_loss and all(torch.equal(same[name], few[name]) for name in few)


def test_it_keeps_what_bf16_keeps_but_for_copies_of_weights() -> None:
    """What plans assume: autocast's bf16 copies of converted weights are not there, all else is."""
    import torch

    def kept(model: Any) -> int:
        """Bytes for the backward pass, beside parameters."""
        own = {each.untyped_storage()._cdata for each in model.parameters()}
        found: dict[int, Any] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            found.setdefault(storage._cdata, storage)
            return tensor

        tokens = torch.zeros((4, 32), dtype=torch.long)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each)
        with hooks, torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        assert loss.requires_grad
        return sum(each.nbytes() for address, each in found.items() if address not in own)

    few = converted(made())[0]
    inside = sum(few.get_submodule(name).weight.numel() for name in in_fp8(few))
    assert kept(made()) - kept(few) == 2 * inside


def test_checkpointing_computes_the_same() -> None:
    import torch

    plain, whole = passed(converted(made())[0])
    model = converted(made())[0]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    loss, found = passed(model)
    assert loss == plain
    assert all(torch.equal(each, whole[name]) for name, each in found.items())


def test_compiled_code_has_the_layers_in_one_graph() -> None:
    """As Dynamo traces it, without a break. AOTAutograd's passes give the eager ones' numbers, but for the
    order of sums in attention's backward pass, behind which some values round the other way."""
    import torch

    model = converted(made())[0]
    plain, whole = passed(converted(made())[0])
    torch._dynamo.reset()
    try:
        graphs: list[Any] = []

        def backend(graph: Any, inputs: list[Any]) -> Any:
            from torch._dynamo.backends.debugging import aot_eager

            graphs.append(graph)
            return aot_eager(graph, inputs)

        model.compile(backend=backend, fullgraph=True)
        loss, found = passed(model)
    finally:
        torch._dynamo.reset()
    assert len(graphs) == 1
    calls = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("apply" in each for each in calls) == 14  # autograd functions
    assert loss == pytest.approx(plain, rel=1e-5)
    off = {name: float((found[name] - each).norm() / each.norm()) for name, each in whole.items()}
    assert max(off.values()) < 0.05
    assert {off[name] for name in off if "layers.1.mlp" in name or "lm_head" in name} == {0.0}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The matrices of every product that a GPU is given, in place of being computed there."""
    import torch

    given: list[tuple[Any, ...]] = []
    real = torch._scaled_mm

    def noted(left: Any, right: Any, *args: Any, **named: Any) -> Any:
        given.append((left, right, named["scale_a"], named["scale_b"]))
        return real(left, right, *args, **named)

    monkeypatch.setattr(torch, "_scaled_mm", noted)
    yield given


def test_products_are_such_as_a_gpu_takes(products: list[tuple[Any, ...]]) -> None:
    """On the meta device, without emulation: three products of each layer, also of 99 rows, which are no
    multiple of 16: fp8 on both sides, inner and right sides multiples of 16, the left one by rows and the
    right one by columns (torch/_meta_registrations.py checks a CUDA device's alone)."""
    import torch

    model = converted(made(), "cuda")[0].to("meta")
    for layer in map(model.get_submodule, sorted(in_fp8(model))):
        shape = (3, 33, layer.in_features)
        given = torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
        layer(given).sum().backward()
        assert (given.grad.dtype, layer.weight.grad.dtype) == (torch.bfloat16, torch.float32)
    assert len(products) == 3 * 14
    for left, right, _, _ in products:
        assert left.dtype == right.dtype == torch.float8_e4m3fn
        assert left.shape[1] == right.shape[0]
        assert left.shape[1] % 16 == right.shape[1] % 16 == 0
        assert left.stride(1) == 1 and right.stride(0) == 1
    assert {left.shape[0] for left, *_ in products[::3]} == {99}
    assert {left.shape[1] for left, *_ in products[2::3]} == {112}  # rows of weights' gradients, padded


# --- trainings -------------------------------------------------------------------------------------------


def recipe(folder: Path, *words: str) -> dict[str, Any]:
    return read_inputs("causal-lm", "local:1", [*WORDS, f"launch.workdir={folder}", *words]).recipe.as_dict()


def curve(told: list[events.Event]) -> list[float]:
    return [each.loss for each in told if isinstance(each, events.Log) and each.loss is not None]


def test_losses_follow_bf16_and_the_model_is_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from muster.worker import main

    given, real = list[dict[str, Any]](), main.training_arguments
    monkeypatch.setattr(main, "training_arguments", lambda context: given.append(real(context)) or given[-1])
    told = {}
    for precision in ("bf16", "fp8"):
        folder = tmp_path / precision
        folder.mkdir()
        told[precision] = train_here(folder, recipe(tmp_path, f"precision={precision}"), 4, 2, precision)
    assert [each["bf16"] for each in given] == [True, True]
    few, half = curve(told["fp8"]), curve(told["bf16"])
    assert len(few) == len(half) == STEPS
    assert few[-1] < few[0] - 0.5
    assert few == pytest.approx(half, abs=0.01)
    # Nothing computes as it would in bf16, from the first step on.
    norms = [[each.gradient_norm for each in told[name] if isinstance(each, events.Log)] for name in told]
    assert all(few_norm and half_norm and few_norm > 0.5 for half_norm, few_norm in zip(*norms, strict=True))
    assert max(abs(a - b) for a, b in zip(few, half, strict=True)) > 5e-4
    (started,) = [each for each in told["fp8"] if isinstance(each, events.Started)]
    assert started.arithmetic == "fp8"
    notes = [each.text for each in told["fp8"] if isinstance(each, events.Noted)]
    assert any(text.startswith("14 of 14 linear layers") for text in notes)
    counts = [[each.model for each in of if isinstance(each, events.FlopsCounted)] for of in told.values()]
    assert counts[0] == counts[1] != []
    # What is saved.
    model = tmp_path / "fp8" / "model"
    saved = load_file(model / "model.safetensors")
    assert saved.keys() == load_file(tmp_path / "bf16" / "model" / "model.safetensors").keys()
    assert {str(each.dtype) for each in saved.values()} == {"torch.float32"}
    assert "quantization_config" not in json.loads((model / "config.json").read_text())
    loaded = AutoModelForCausalLM.from_pretrained(model)
    assert not in_fp8(loaded)


def run(folder: Path, hosts: str, cache: Path, *words: str) -> RunFolder:
    done = RunFolder(folder)
    inputs = read_inputs("causal-lm", hosts, [*WORDS, "precision=fp8", f"launch.workdir={cache}", *words])
    result = train(inputs, done)
    assert result.status == "succeeded", result.failure
    assert (result.precision, result.steps) == ("fp8", STEPS)
    return done


@pytest.fixture(scope="module")
def alone(packages: None, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    base = tmp_path_factory.mktemp("fp8")
    return run(base / "runs" / "alone", "local:1", base / "cache", "checkpoint.every=6")


@pytest.mark.parametrize("engine", ["ddp", "fsdp", "fsdp alone"])
def test_ranks_follow_one_process(engine: str, alone: RunFolder, tmp_path: Path) -> None:
    """Micro-batch for micro-batch the same, whose columns have scales together. FSDP gathers weights in bf16
    and computes norms in it."""
    words = [f"engine.name={engine.partition(' ')[0]}"]
    single = engine == "fsdp alone"
    words += ["env.MUSTER_GROUP_OF_ONE=1"] if single else ["batch.accumulation=1"]
    done = run(tmp_path / "run", "local:1" if single else "local:2x1", tmp_path / "cache", *words)
    off = 1e-5 if engine == "ddp" else 2e-3
    assert losses(done) == pytest.approx(losses(alone), rel=off)
    assert gradient_norms(done) == pytest.approx(gradient_norms(alone), rel=50 * off)
    assert [each.text[:2] for each in said(done, events.Noted) if "fp8" in each.text] == ["14"]
    assert (done.model / "model.safetensors").stat().st_size == (
        alone.model / "model.safetensors"
    ).stat().st_size


def test_resumed_is_as_if_never_interrupted(alone: RunFolder, tmp_path: Path) -> None:
    """Weights byte for byte, and the trained model answers."""
    from muster.runs.ask import ask

    again, resumed = resumed_at_the_end(alone, tmp_path / "again", STEPS)
    assert losses(again) == losses(alone)
    weights = "model.safetensors"
    assert (again.model / weights).read_bytes() == (alone.model / weights).read_bytes()
    # Its perplexity in fp32 is that of the held-out loss, but for what fp8 rounds.
    measured = ask(again, [], evaluate=True)
    assert measured.figures["perplexity"] == pytest.approx(resumed.perplexity, rel=0.02)
    assert ask(again, ["import "]).rows[0]["predicted"]
