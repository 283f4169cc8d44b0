"""A trace as data: lines through two micro-batches, peaks part by part, JSON, the cache, requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import JobError, RecipeError
from muster.core.recipe import Recipe, recipe_from
from muster.core.recipes import load_recipe
from muster.core.trace import AFTER_BLOCKS, Parameter, Pass, Trace, TraceRequest, from_json, to_json
from muster.inputs.model import whole_config
from muster.planner import tracing
from muster.planner.memory.fit import traced
from tests.shell import FakeShell


def made(samples: int, *, saved: int, peaks: dict[str, tuple[int, int]]) -> Pass:
    """A pass whose other figures grow with the samples."""
    return Pass(
        samples=samples,
        saved=saved,
        logits=10 * samples,
        copies=7,
        forward_peak=max(pair[0] for part, pair in peaks.items() if part.startswith("forward")),
        backward_peak=max(pair[0] for part, pair in peaks.items() if part.startswith("backward")),
        forward_flops=100 * samples,
        flops=300 * samples,
        moved=50 + 5 * samples,
        growing_peak=max(pair[1] for part, pair in peaks.items() if part.startswith("backward")),
        operations=40,
        peaks=peaks,
    )


SMALL = made(
    1, saved=110, peaks={"forward: a": (120, 120), "backward: a": (150, 150), "backward: b": (500, 900)}
)
LARGE = made(
    2, saved=210, peaks={"forward: a": (220, 220), "backward: a": (300, 300), "backward: b": (510, 910)}
)
TRACE = Trace(
    parameters=(Parameter("w", (3, 4), True, "block.0"), Parameter("b", (), False, "")),
    passes=(SMALL, LARGE),
    buffers=8,
    arithmetic="fp32",
    device="cpu",
    checkpointing=False,
    layers=(4,),
    versions={"torch": "2.13.0"},
    seconds=1.5,
)


def test_the_activations_of_a_trace_without_a_backward_pass_of_blocks() -> None:
    """As of models whose blocks are not parted: nothing comes after the loss's own peak."""
    at = made(1, saved=110, peaks={"forward: a": (120, 120), AFTER_BLOCKS: (150, 190)})
    found = traced(at)
    assert (found.later["temporary tensors"], found.growing, found.output) == (0, 0, 40)


def test_figures_are_lines_and_peaks_the_highest_of_lines() -> None:
    """A part that hardly grows is the highest of few samples, and not of many."""
    at = TRACE.at(10)
    assert (at.saved, at.logits, at.copies, at.moved, at.operations) == (1010, 100, 7, 100, 40)
    assert (at.forward_flops, at.flops) == (1000, 3000)
    assert at.forward_peak == 1020
    assert at.backward_peak == max(150 + 150 * 9, 500 + 10 * 9) == 1500
    assert at.growing_peak == 1500
    assert TRACE.at(1) == SMALL
    assert TRACE.at(2) == LARGE
    assert TRACE.at(2).growing_peak == 910
    assert [each.numel for each in TRACE.parameters] == [12, 1]


def test_without_parts_the_peaks_are_lines_themselves() -> None:
    plain = replace(TRACE, passes=(replace(SMALL, peaks={}), replace(LARGE, peaks={})))
    assert plain.at(3).backward_peak == 520
    assert plain.at(3).forward_peak == 320
    assert plain.at(0).saved == 10


def test_beyond_so_many_samples_other_passes_hold() -> None:
    above = (replace(SMALL, samples=5, saved=1000), replace(LARGE, samples=10, saved=1500))
    trace = replace(TRACE, most=4, beyond=above)
    assert [trace.at(samples).saved for samples in (4, 5, 10, 20)] == [410, 1000, 1500, 2500]


def test_json_there_and_back() -> None:
    for trace in (TRACE, replace(TRACE, most=4, beyond=(SMALL, LARGE))):
        assert from_json(json.loads(json.dumps(to_json(trace)))) == trace
    whole = to_json(TRACE)
    for damage in ({"passes": []}, {"passes": None}, {"parameters": [{}]}, {"layers": 3}, {"more": 1}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            from_json({**whole, **damage})
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json({})


# --- the stage -------------------------------------------------------------------------------------------


def request(**others: Any) -> TraceRequest:
    return TraceRequest("causal-lm", {"model_type": "opt"}, 64, **others)


def answering(code: int, document: Any, err: bytes = b"") -> FakeShell:
    def answer(argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        return code, document if isinstance(document, bytes) else json.dumps(document).encode(), err

    return FakeShell(answer_run=answer).use()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch and Transformers were there."""
    monkeypatch.setattr(tracing, "NEEDED", ())


@pytest.mark.usefixtures("installed")
def test_a_trace_is_made_once(tmp_path: Path) -> None:
    shell = answering(0, to_json(TRACE))
    for _ in range(2):
        assert tracing.trace(request(), cache=tmp_path) == TRACE
    assert len(shell.started) == 1
    assert shell.started[0][1:] == ["-m", "muster.worker.tracing"]
    assert tracing.trace(request(checkpointing=True), cache=tmp_path) == TRACE
    assert len(shell.started) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_stages_that_cut_weights_have_a_trace_of_their_own() -> None:
    """A compiled graph ends in the loss only where ranks have whole weights."""
    asked = []

    def tracer(recipe: Recipe, *_: object) -> Trace:
        asked.append(recipe.engine.stage)
        return TRACE

    each = tracing.once(tracer)
    for stage in (1, 2, 3, 1, 3):
        engine, train = {"name": "deepspeed", "zero": stage}, {"compile": True}
        recipe = recipe_from({"workload": "causal-lm", "engine": engine, "train": train})
        assert each(recipe, "bf16", "cuda", 2) == TRACE
    assert asked == [1, 3]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"passes": [1, 2]}', b"null"])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    shell = answering(0, to_json(TRACE))
    tracing.trace(request(), cache=tmp_path)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert tracing.trace(request(), cache=tmp_path) == TRACE
    assert len(shell.started) == 2
    assert file.read_bytes() == whole


@pytest.mark.usefixtures("installed")
def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    place = tmp_path / "a file"
    place.write_text("in the way")
    answering(0, to_json(TRACE))
    assert tracing.trace(request(), cache=place) == TRACE


@pytest.mark.usefixtures("installed")
def test_many_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    answering(0, to_json(TRACE))
    found = []

    def one() -> None:
        found.append(tracing.trace(request(), cache=tmp_path))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [TRACE] * 8
    [file] = tmp_path.iterdir()
    assert from_json(json.loads(file.read_text())) == TRACE


@pytest.mark.usefixtures("installed")
def test_what_the_process_says_is_raised(tmp_path: Path) -> None:
    bad = {"error": {"what": "is 5", "where": "model.config.n_head", "host": None, "hint": "4"}}
    answering(2, bad)
    with pytest.raises(RecipeError) as refused:
        tracing.trace(request(), cache=tmp_path)
    assert (str(refused.value), refused.value.hint) == ("model.config.n_head: is 5", "4")
    answering(1, bad)
    with pytest.raises(JobError, match="is 5"):
        tracing.trace(request(), cache=tmp_path)
    for out in (b"", b"[1]", b"{}"):
        answering(1, out, b"Traceback\nMemoryError\n")
        with pytest.raises(JobError, match="cannot be traced: MemoryError"):
            tracing.trace(request(), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_started_where_torch_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "NEEDED", ("a_library_that_nobody_has",))
    FakeShell().use()
    assert tracing.trace(request(), cache=tmp_path) is None


def test_the_cache_lies_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tracing.cache_folder() == tmp_path / "muster" / "traces"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tracing.cache_folder() == tmp_path / ".cache" / "muster" / "traces"


# --- requests of recipes -----------------------------------------------------------------------------------


def asked(recipe: str, *overrides: str, precision: str = "fp32", device: str = "cpu", ranks: int = 1) -> Any:
    read = load_recipe(recipe, overrides)
    return tracing.request_of(read, whole_config(read), precision=precision, device=device, ranks=ranks)


def test_a_translation_on_gpus_is_padded_to_eights() -> None:
    found = asked("text2sql-t5-large", "data.max_source=90", "data.max_target=41", device="cuda")
    padding = load_recipe("text2sql-t5-large").data.padding  # type: ignore[attr-defined]
    assert (found.tokens, found.target) == ((96, 48) if padding == "dynamic" else (90, 41))
    assert asked("text2sql-t5-large", "data.padding=fixed", "data.max_source=90", device="cuda").tokens == 90
    assert found.workload == "text2sql"
    assert found.config["model_type"] == "t5"
    assert found.config["d_model"] == 1024


@pytest.mark.parametrize(
    ("engine", "precision", "ranks", "arithmetic"),
    [
        ("ddp", "fp32", 4, "fp32"), ("ddp", "bf16", 4, "autocast"), ("deepspeed", "bf16", 1, "half"),
        ("fsdp", "bf16", 4, "half"), ("fsdp", "fp16", 1, "autocast"), ("deepspeed", "fp32", 4, "fp32"),
    ],
)  # fmt: skip
def test_engines_have_their_arithmetic(engine: str, precision: str, ranks: int, arithmetic: str) -> None:
    found = asked("gpt2-micro", f"engine.name={engine}", "engine.zero=0", precision=precision, ranks=ranks)
    assert found.arithmetic == arithmetic


@pytest.mark.parametrize("key", ["train.autocast=false", "train.optimizer=adamw-bf16"])
def test_a_whole_model_in_bf16_is_traced_in_it(key: str) -> None:
    assert asked("gpt2-micro", "engine.name=ddp", "engine.zero=0", key, precision="bf16").arithmetic == "half"


@pytest.mark.parametrize(
    ("compile_", "fused", "engine", "ranks", "device", "compiled", "inside"),
    [
        ("true", "false", "ddp", 2, "cuda", True, True),
        ("cuda-graphs", "false", "ddp", 2, "cuda", True, True),
        ("true", "auto", "ddp", 2, "cuda", True, False), ("false", "false", "ddp", 2, "cuda", False, False),
        ("true", "false", "fsdp", 2, "cuda", True, False), ("true", "false", "fsdp", 1, "cuda", True, True),
        ("true", "false", "ddp", 2, "cpu", False, False),
    ],
)  # fmt: skip
def test_a_graph_is_traced_as_it_is_compiled(
    compile_: str, fused: str, engine: str, ranks: int, device: str, compiled: bool, inside: bool
) -> None:
    """With the loss inside where a rank has whole weights and the recipe leaves it there."""
    words = [f"train.compile={compile_}", f"train.fused_loss={fused}", f"engine.name={engine}"]
    found = asked("gpt2-micro", *words, "engine.zero=0", precision="bf16", device=device, ranks=ranks)
    assert (found.compiled, found.inside) == (compiled, inside)


def test_each_way_of_the_loss_has_a_trace_of_its_own() -> None:
    seen: list[Any] = []
    each = tracing.once(lambda recipe, *_: seen.append(recipe.train.fused_loss))  # type: ignore[func-returns-value]
    for fused in (True, False, "auto", False):
        each(recipe_from({"workload": "causal-lm", "train": {"fused_loss": fused}}), "bf16", "cuda", 1)
    assert seen == [True, False, "auto"]


def test_a_request_has_all_that_decides_a_trace() -> None:
    found = asked(
        "gpt2-micro", "data.sequence=128", "train.gradient_checkpointing=true", "train.label_smoothing=0.1",
        "lora.rank=4",
    )  # fmt: skip
    assert (found.tokens, found.checkpointing, found.label_smoothing) == (128, True, 0.1)
    assert found.lora["rank"] == 4
    image = asked("vit-b16-cifar10", "data.size=160", "model.config.num_labels=7")
    assert (image.workload, image.tokens, image.config["image_size"]) == ("image-classification", 0, 160)
    assert image.config["num_labels"] == 7


def test_what_trains_nothing_or_is_not_known_is_not_asked_for() -> None:
    assert asked("fabric") is None
    read = load_recipe("gpt2-micro")
    assert tracing.request_of(read, None, precision="fp32", device="cpu", ranks=1) is None
    other = recipe_from({"workload": "mine"})
    assert tracing.request_of(other, {"model_type": "gpt2"}, precision="fp32", device="cpu", ranks=1) is None
