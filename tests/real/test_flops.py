"""FLOPs: what is counted of real models, what a run says of its own, and the profiles that it writes."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core import families
from muster.core.flops import MatmulWork, Shape, training
from muster.core.recipe import recipe_from
from muster.core.result import Result
from muster.reports.page import render
from muster.reports.rundata import gather
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import needs_torch, run, said

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

T5 = {
    "model_type": "t5", "vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1,
    "num_heads": 4,
}  # fmt: skip
BART = {
    "model_type": "bart", "vocab_size": 128, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 99}


def on_meta(fields: dict[str, Any], **changes: Any) -> Any:
    """A model without weights of a known size, or of a configuration."""
    needs_torch()
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        AutoModelForSeq2SeqLM,
    )

    fields = {**fields, **changes}
    kind = fields.pop("model_type")
    config = AutoConfig.for_model(kind, **fields)
    maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        return (AutoModelForImageClassification if kind == "vit" else maker).from_config(config)


def batch(model: Any, samples: int, *lengths: int) -> dict[str, Any]:
    """A batch as a workload's collator makes it, without data."""
    import torch

    def tokens(length: int) -> Any:
        return torch.zeros((samples, length), dtype=torch.long, device="meta")

    if model.config.is_encoder_decoder:
        source, target = lengths
        two = {"input_ids": tokens(source), "attention_mask": tokens(source)}
        return {**two, "decoder_input_ids": tokens(target), "labels": tokens(target)}
    if lengths:
        return {name: tokens(lengths[0]) for name in ("input_ids", "attention_mask", "labels")}
    images = torch.zeros((samples, 3, 224, 224), device="meta")
    return {"pixel_values": images, "labels": torch.zeros(samples, dtype=torch.long, device="meta")}


# --- formulas and the operations of real models --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("t5-small", (32, 96, 96)),
        ("gpt2-small", (2, 1024)),
        ("facebook/opt-350m", (1, 512)),
        ("opt-175b", (1, 2048)),
        ("llama-3-8b", (1, 4096)),
        ("vit-base", (8,)),
    ],
)
def test_formulas_say_what_real_models_do(name: str, shape: tuple[int, ...]) -> None:
    fields = families.size(name) or {}
    counted = counted_at_depth(fields, shape)
    products = families.products({**fields, "num_labels": 2}, Shape(*shape))
    assert products is not None
    formula = training(products)
    assert counted.forward == pytest.approx(formula.forward, rel=1e-5)  # 2 % would do
    assert counted.model == pytest.approx(formula.model, rel=1e-5)
    if name == "t5-small":
        assert round(counted.forward / 2e9, 2) == 191.26  # as DeepSpeed's profiler printed it for S2


def counted_at_depth(fields: dict[str, Any], shape: tuple[int, ...]) -> MatmulWork:
    """What a size's operations are. All layers of a model are alike: those of a deep one are counted in two
    shallow ones, since a layer takes time however free its weights are."""
    from muster.worker.instruments import meta

    depth = next(key for key in ("n_layer", "num_layers", "num_hidden_layers") if key in fields)
    if fields[depth] <= 6:
        model = on_meta(fields)
        return meta.count(meta.double(model), batch(model, *shape))
    one, two = (
        meta.count(meta.double(model), batch(model, *shape))
        for model in (on_meta(fields, **{depth: 1}), on_meta(fields, **{depth: 2}))
    )
    forward, total = (
        a + (fields[depth] - 1) * (b - a) for a, b in ((one.forward, two.forward), (one.model, two.model))
    )
    return MatmulWork(forward, total, total)


@pytest.mark.parametrize(
    ("name", "shape", "changes", "rel"),
    [
        ("t5-small", (4, 96, 48), {}, 0.02),
        ("gpt2-small", (1, 512), {"n_layer": 2}, 0.02),
        # Without dropout, a block's last matrix is not computed again: nothing needs its product.
        ("gpt2-small", (1, 512), {"n_layer": 2, "resid_pdrop": 0.0}, None),
    ],
)
def test_gradient_checkpointing_computes_blocks_twice(
    name: str, shape: tuple[int, ...], changes: dict[str, Any], rel: float | None
) -> None:
    model = on_meta(families.size(name) or {}, **changes)
    from muster.worker.instruments import meta

    double = meta.double(model)
    counted = meta.count(double, batch(model, *shape), checkpointing=True)
    products = families.products(model.config.to_dict(), Shape(*shape))
    assert products is not None
    formula = training(products, checkpointing=True)
    if rel is not None:
        assert counted.hardware == pytest.approx(formula.hardware, rel=rel)
    else:
        last = 2 * shape[0] * shape[1] * 2 * 768 * 3072
        assert counted.hardware == pytest.approx(formula.hardware - last, rel=1e-5)
    assert meta.count(double, batch(model, *shape)).hardware == training(products).model  # off again


def test_frozen_weights_need_no_gradient() -> None:
    """LoRA: forward and the activations' gradients through everything, weights' gradients of adapters."""
    model = on_meta(families.size("opt-125m") or {}, num_hidden_layers=4)
    from peft import LoraConfig, get_peft_model

    from muster.worker.instruments import meta

    lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(model, lora)
    shape = Shape(2, 256)
    counted = meta.count(meta.double(adapted), batch(model, 2, 256))
    products = families.products(model.config.to_dict(), shape)
    assert products is not None
    adapters = 2 * 256 * 4 * 2 * (2 * 768 * 8)
    frozen = training(products, frozen=True)
    assert counted.forward == frozen.forward + 2 * adapters
    expected = frozen.model + 3 * 2 * adapters
    # Nothing before the first adapters is trained, so nothing goes back to it: less, by a part of a layer.
    assert expected * 0.95 <= counted.model < expected


def test_the_double_is_apart_from_its_model() -> None:
    """Nothing is drawn, held or changed; ZeRO-3's empty parameters have their whole shapes."""
    needs_torch()
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from muster.worker.instruments import meta

    fields = {key: value for key, value in T5.items() if key != "model_type"}
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **fields)).eval()
    model.tie_weights()
    before = {name: (value.data_ptr(), value.sum().item()) for name, value in model.state_dict().items()}
    attention = model.config._attn_implementation
    expected = meta.count(meta.double(model), batch(model, 2, 8, 8))
    for parameter in model.parameters():  # as ZeRO-3 leaves them
        parameter.ds_shape = parameter.shape
    state, numbers = torch.get_rng_state(), random.getstate()
    double = meta.double(model)
    assert meta.count(double, batch(model, 2, 8, 8)) == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == numbers
    assert {value.device.type for value in (*double.parameters(), *double.buffers())} == {"meta"}
    assert double.get_input_embeddings().weight is double.lm_head.weight
    assert {n: (v.data_ptr(), v.sum().item()) for n, v in model.state_dict().items()} == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert (model.training, model.config._attn_implementation) == (False, attention)
    full = [parameter.shape for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = torch.empty(0)
    assert [parameter.shape for parameter in meta.double(model).parameters()] == full


# --- the instrument ------------------------------------------------------------------------------------


def instrument(model: Any, *, checkpointing: bool = False) -> tuple[Any, list[tuple[type, dict[str, Any]]]]:
    from muster.worker.instruments.flops import FlopsCounter

    told: list[tuple[type, dict[str, Any]]] = []

    def emit(kind: type, **content: Any) -> None:
        told.append((kind, content))

    recipe = recipe_from({"train": {"gradient_checkpointing": checkpointing}})
    context: Any = SimpleNamespace(emit=emit, main=True, recipe=recipe)
    return FlopsCounter(context, model), told


def seen(flops: Any, batches: list[dict[str, Any]]) -> dict[str, int | None]:
    """A window of one step."""
    for each in batches:
        flops.see(each)
    flops.step()
    return flops.close()


SHAPES = [(4, 24, 12), (4, 30, 9), (2, 17, 17), (1, 31, 5)]


@pytest.mark.parametrize(
    ("fields", "frozen", "method", "runs"),
    [
        (T5, False, "formula", 2),
        (BART, False, "polynomial", 2 + 6),
        (T5, True, "polynomial", 2 + 6),
    ],
    ids=["a known family", "an unknown one", "partly frozen"],
)
def test_few_runs_tell_the_operations_of_all_lengths(
    fields: dict[str, Any], frozen: bool, method: str, runs: int
) -> None:
    model = on_meta(fields)
    from muster.worker.instruments import meta

    if frozen:
        model.get_encoder().requires_grad_(False)
    flops, told = instrument(model)
    batches = [batch(model, *shape) for shape in SHAPES]
    first = seen(flops, batches[:2])
    double = meta.double(model)
    exact = [meta.count(double, each).model for each in batches]
    assert first == {"model_flops": sum(exact[:2]), "hardware_flops": sum(exact[:2])}
    assert seen(flops, batches)["model_flops"] == sum(exact)
    assert flops.runs == runs
    [(kind, content)] = told
    assert kind is events.FlopsCounted
    assert (content["method"], content["runs"], content["lengths"]) == (method, runs, [30, 9])
    assert content["model"] == exact[1]
    assert (content["formula"] == exact[1]) is (method == "formula")
    flops.see(batches[0])
    flops.step()
    assert flops.close({0}) == {"model_flops": 0, "hardware_flops": 0}


def test_one_length_is_counted_once_whatever_the_batch() -> None:
    model = on_meta(GPT2)
    flops, _ = instrument(model, checkpointing=True)
    both = seen(flops, [batch(model, 8, 64), batch(model, 3, 64)])
    products = families.products(model.config.to_dict(), Shape(11, 64))
    assert products is not None
    assert both["model_flops"] == training(products).model
    again = training(products, checkpointing=True).hardware
    assert both["hardware_flops"] == pytest.approx(again, rel=0.02)
    assert flops.runs == 2  # with and without checkpointing


def test_where_nothing_holds_every_length_is_counted() -> None:
    """A model that does more from a certain length on has no polynomial."""
    import torch

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)

        def forward(self, input_ids: Any) -> Any:
            hidden = self.embed(input_ids)
            return self.head(hidden if input_ids.shape[1] < 10 else torch.cat([hidden] * 3))

    flops, told = instrument(Odd())
    ids = [{"input_ids": torch.zeros((2, length), dtype=torch.long)} for length in (6, 12, 9, 18)]
    assert seen(flops, ids)["model_flops"] == 3 * 2 * 2 * 4 * 9 * (6 + 3 * 12 + 9 + 3 * 18)
    assert told[0][1]["method"] == "counted"


@pytest.mark.parametrize("where", ["copy", "run"])
def test_what_cannot_be_counted_is_told_and_none(where: str) -> None:
    import torch

    class Stubborn(torch.nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            if where == "copy":
                raise TypeError("there is only one of me")
            return super().__reduce_ex__(4) and Stubborn(2, 2, device="meta")

        def forward(self, x: Any) -> Any:
            return super().forward(x) if float(x.sum()) else x

    flops, told = instrument(Stubborn(2, 2))
    for _ in range(2):
        got = seen(flops, [{"x": torch.ones(3, 2)}])
        assert got == {"model_flops": None, "hardware_flops": None}
    [(kind, content)] = told
    assert kind is events.Noted
    assert content["text"].startswith("the model's FLOPs could not be counted: ")


# --- runs ----------------------------------------------------------------------------------------------

SOURCE, TARGET, STEPS = 40, 36, 14
Runs = Callable[..., tuple[RunFolder, Result]]


def hand_count(config: dict[str, Any], samples: int, source: int, target: int) -> int:
    """Forward and backward of the tiny T5 by hand: two layers a stack, width 32, 2 heads of 16, 64 within."""
    square, inner = 32 * 32, 2 * 32 * 64
    encoder = 2 * source * (4 * square + inner)
    decoder = 2 * (target * (6 * square + inner) + source * 2 * square)
    attention = 2 * 2 * 32 * (source * source + target * target + target * source)
    head = target * 32 * config["vocab_size"]
    return 3 * 2 * samples * (encoder + decoder + attention + head)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """Batches of one shape, with DeepSpeed's breakdown, on an engine that is not DeepSpeed."""
    needs_torch()
    done, result = run(
        tmp_path_factory.mktemp("fixed") / "run", "local:2", "engine.name=ddp", "engine.zero=0",
        "batch.micro=4", "batch.accumulation=2", f"train.max_steps={STEPS}", "data.padding=fixed",
        f"data.max_source={SOURCE}", f"data.max_target={TARGET}", "measure.window=5", "measure.profile=flops",
        "measure.profile_step=8", "measure.peak_tflops=0.5", "measure.flops=true",
    )  # fmt: skip
    assert result.status == "succeeded", result.failure
    return done, result


def test_a_run_counts_what_a_hand_counts(fixed: tuple[RunFolder, Result]) -> None:
    done, result = fixed
    config = json.loads((done.model / "config.json").read_text())
    windows = said(done, events.Window)
    for window in windows:
        expected = hand_count(config, window.samples, SOURCE, TARGET)
        assert (window.model_flops, window.hardware_flops) == (expected, expected)
    assert sum(window.samples for window in windows) == result.samples == 16 * STEPS
    found = result.flops
    assert found is not None
    assert result.throughput is not None
    each = hand_count(config, 1, SOURCE, TARGET)
    assert found.model_per_second == pytest.approx(each * result.throughput.samples_per_second / 2)
    assert found.model_per_second == found.hardware_per_second
    assert (found.peak, found.peak_source) == (0.5e12, "measure.peak_tflops")
    assert found.mfu == found.hfu == pytest.approx(found.model_per_second / 0.5e12)
    [counted] = said(done, events.FlopsCounted)
    assert counted.runs == 1  # one shape
    assert counted.model == counted.formula == hand_count(config, 4, SOURCE, TARGET)
    assert found.counting_seconds == counted.seconds > 0
    page = render(gather(done))
    assert "MFU" in page
    assert "measure.peak_tflops" in page


def test_the_breakdown_and_its_step_apart(fixed: tuple[RunFolder, Result]) -> None:
    done, result = fixed
    text = (done.profile / "flops-rank0.txt").read_text()
    assert [path.name for path in done.profile.iterdir()] == ["flops-rank0.txt"]
    config = json.loads((done.model / "config.json").read_text())
    found = re.search(r"fwd MACs per GPU: +([0-9.]+) MMACs", text)
    assert found is not None
    assert float(found[1]) == pytest.approx(hand_count(config, 4, SOURCE, TARGET) / 6e6, abs=0.01)
    assert "T5LayerCrossAttention" in text
    ends = [(w.step, w.steps, w.profiled) for w in said(done, events.Window) if w.rank == 1]
    assert ends == [(5, 5, False), (7, 2, False), (8, 1, True), (10, 2, False), (14, 4, False)]
    assert result.throughput is not None
    assert (result.throughput.measured_steps, result.throughput.windows) == (8, 3)  # 5 of 13 are warm-up
    [note] = [note for note in result.notes if "under a profiler" in note]
    assert note.startswith("step 8 ran under a profiler, outside every throughput; breakdown by module: ")
    assert str(done.profile / "flops-rank0.txt") in note


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """Batches of many lengths under ZeRO-3 with gradient checkpointing; both ranks traced for two steps."""
    needs_torch()
    done, result = run(
        tmp_path_factory.mktemp("sharded") / "run", "local:2", "engine.name=deepspeed", "engine.zero=3",
        "batch.micro=4", "batch.accumulation=1", "train.max_steps=8", "train.gradient_checkpointing=true",
        "model.config.dropout_rate=0.1", "measure.window=3", "measure.profile=trace",
        "measure.profile_step=4", "measure.profile_steps=2", "measure.profile_ranks=[0,1]",
        "measure.flops=true",
    )  # fmt: skip
    assert result.status == "succeeded", result.failure
    return done, result


def test_padded_lengths_are_counted_under_zero_3(sharded: tuple[RunFolder, Result]) -> None:
    """The batches made again from the data, each rank's part padded to its longest."""
    from transformers import AutoTokenizer

    from muster.worker.data.sampler import GroupedSampler

    done, result = sharded
    config = json.loads((done.model / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(str(done.model))
    recipe = json.loads(done.job.read_text())["recipe"]
    most = (recipe["data"]["max_source"], recipe["data"]["max_target"])
    rows = [json.loads(line) for line in next((done.path / "data").glob("train*")).read_text().splitlines()]
    lengths = [
        (
            min(most[0], len(tokenizer("translate to SQL: " + row["question"])["input_ids"])),
            min(most[1], len(tokenizer(row["sql"])["input_ids"])),
        )
        for row in rows
    ]
    order = list(GroupedSampler(lengths, 8, recipe["train"]["seed"]))
    expected = {0: 0, 1: 0}
    for step in range(8):
        for rank in expected:
            mine = [lengths[index] for index in order[8 * step + 4 * rank : 8 * step + 4 * rank + 4]]
            source, target = (max(side) for side in zip(*mine, strict=True))
            expected[rank] += hand_count(config, 4, source, target)
    windows = said(done, events.Window)
    for rank, count in expected.items():
        assert sum(w.model_flops for w in windows if w.rank == rank) == count
    for window in windows:  # once more through the blocks, and not through the output
        assert 1.2 < window.hardware_flops / window.model_flops < 4 / 3
    assert result.flops is not None
    assert result.flops.hardware_per_second > result.flops.model_per_second
    assert result.flops.peak is None  # on CPUs
    assert (result.flops.mfu, result.flops.hfu) == (None, None)


def test_traces(sharded: tuple[RunFolder, Result]) -> None:
    done, result = sharded
    assert sorted(path.name for path in done.profile.iterdir()) == [
        "trace-rank0-lines.json.gz",
        "trace-rank0.json.gz",
        "trace-rank1-lines.json.gz",
        "trace-rank1.json.gz",
    ]
    with gzip.open(done.profile / "trace-rank1.json.gz", "rt") as file:
        trace = json.load(file)
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"aten::mm", "aten::softmax"} & names
    assert sum(1 for event in trace["traceEvents"] if event.get("name") == "aten::mm") > 20
    told = said(done, events.Profiled)
    profiled = sorted((event.rank, event.first_step, event.last_step) for event in told)
    assert profiled == [(0, 4, 7), (1, 4, 7)]
    ends = [(w.step, w.steps, w.profiled) for w in said(done, events.Window) if w.rank == 0]
    assert ends == [(3, 3, False), (7, 4, True), (8, 1, False)]
    assert any(note.startswith("steps 4 to 7 ran under a profiler") for note in result.notes)


def test_where_a_step_goes(sharded: tuple[RunFolder, Result]) -> None:
    """Of both ranks, in the result and on the page; the further step names lines alone."""
    from muster.reports.page import render
    from muster.reports.rundata import gather
    from muster.worker.instruments.kineto import read, summarize

    done, result = sharded
    profiled = [(each.rank, each.first_step, each.last_step) for each in result.profiles]
    assert profiled == [(0, 5, 6), (1, 5, 6)]
    assert Result.model_validate_json(done.result.read_text()).profiles == result.profiles
    page = render(gather(done))
    for profile in result.profiles:
        assert profile.busy is None and len(profile.kernels) == 10 and profile.waits == []
        assert {line.split("::")[0] for line in (each.name for each in profile.kernels)} & {"aten", "c10d"}
        assert all(text in page for _, text in profile.lines)
    traces = [read(done.profile / f"trace-rank0{each}.json.gz") for each in ("", "-lines")]
    assert [list(trace.steps) for trace in traces] == [[4, 5, 6], [7]]
    assert not traces[0].lines and traces[1].lines
    for trace in traces:  # if each value that is read had waited for a GPU
        for thread, spans in trace.operators.items():
            trace.waits += [(span, thread) for span in spans if span.name == "aten::_local_scalar_dense"]
        trace.waits.sort()
    places = [wait.place or "" for wait in summarize(*traces).waits]
    assert any(place.startswith("deepspeed/") for place in places), places


def test_off_is_off(tmp_path: Path) -> None:
    done, result = run(
        tmp_path / "run", "local:1", "engine.name=ddp", "engine.zero=0", "batch.micro=4", "train.max_steps=2",
        "measure.profile=trace", "measure.profile_step=2",
    )  # fmt: skip
    assert result.status == "succeeded", result.failure
    assert result.flops is None
    assert said(done, events.FlopsCounted) == []
    assert {(w.model_flops, w.hardware_flops) for w in said(done, events.Window)} == {(None, None)}
    assert [path.name for path in done.profile.iterdir()] == ["trace-rank0.json.gz"]  # no further step
    assert [(each.first_step, each.last_step) for each in result.profiles] == [(2, 2)]
