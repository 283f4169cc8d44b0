"""`muster plan` on machines that are not there: what it says, what it writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.cli import main
from muster.cli.output import print_json
from muster.cli.views.plans import print_plan
from muster.core.errors import JobError, UsageError
from muster.core.hardware.links import LinkFigures
from muster.core.hardware.machines import parse_parts
from muster.core.inventory import parse_hosts
from muster.core.job import WARNINGS
from muster.core.recipe import Recipe
from muster.core.recipes import load_recipe
from muster.core.state import State
from muster.core.trace import Parameter, Pass, Trace, TraceRequest
from muster.engines.base import spec_of
from muster.inputs.read import INHERITED, check, read_inputs, read_recipe
from muster.planner.document import MemoryPlan, Plan
from muster.planner.machines import (
    UserFigures,
    calibration_file,
    hypothetical,
    load_calibration,
    save_calibration,
)
from muster.planner.plan import _worth_tracing, hosts_first, plan_first, plan_on, promised
from muster.planner.time.steptime import ALONE, Calibration
from muster.results.fold import fold, make_result
from tests.support import plan

pytestmark = pytest.mark.usefixtures("nothing_learned")

MACHINES = "a100-80gb:8x4,200Gbit-ib"
KEY = f"h200 bf16{ALONE}"  # nothing is traced here


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *argv])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return int(ended.value.code or 0), shown.out, shown.err


def test_parts_add_up_to_the_whole() -> None:
    made = plan(MACHINES, "model.name=opt-6.7b")
    assert made.memory is not None
    assert made.time is not None
    assert sum(made.memory.device.values()) == made.memory.device_bytes
    assert sum(made.memory.host.values()) == made.memory.host_bytes
    time = made.time
    parts = (time.compute, time.communication, time.optimizer, time.transfer, time.overhead)
    assert sum(parts) == pytest.approx(time.step)
    assert made.batch["global"] == made.batch["micro"] * made.batch["accumulation"] * made.ranks
    assert time.samples_per_second == pytest.approx(made.batch["global"] / time.step)
    assert time.total == pytest.approx(50 * time.step)  # the recipe's 50 updates


@pytest.mark.parametrize(
    ("words", "tokens", "steps"),
    [
        (["train.max_steps=400000", "train.warmup=4000"], 300_000_000, 573),
        (["train.max_steps=null", "train.epochs=3", "train.max_minutes=5"], 300_000_000, 573),
        (["train.max_steps=40"], None, 40),
        (["train.max_steps=null", "train.epochs=1.5"], None, 48),  # 32 steps an epoch
        (["train.max_steps=null", "train.epochs=1.51"], None, 49),
    ],
)
def test_one_number_of_steps(words: list[str], tokens: int | None, steps: int) -> None:
    """Of the training, of its time and of what is said of its warm-up."""
    words = ["model.name=opt-125m", "batch.micro=8", "batch.accumulation=8", *words]
    words += ["batch.tokens=null", "data.sequence=1024", "engine.zero=0"]
    made = plan("l4:8", *words, told=UserFigures(None if tokens else 16_000, tokens=tokens))
    assert made.training is not None and made.time is not None
    assert (made.training.steps, made.time.steps) == (steps, steps)
    assert made.training.length.endswith("(--tokens)") is (tokens is not None)
    assert any("no shorter than the training of 573" in note for note in made.notes) is ("4000" in words[3])


def test_tokens_that_fill_no_sample_are_one_more() -> None:
    words = ["model.name=opt-125m", "data.sequence=1024", "batch.tokens=null", "batch.micro=8"]
    for tokens, samples in ((1, 1), (512 * 1024, 512), (512 * 1024 + 1, 513)):
        made = plan("l4:8", *words, told=UserFigures(tokens=tokens)).training
        assert made is not None and made.samples == samples


@pytest.mark.parametrize(
    ("samples", "steps", "words"),
    [(16, None, "16 samples in batches of 12: its last batch is filled with 8 samples"), (1600, None, None),
     (2400, None, None), (24, None, None), (16, 1, None), (16, 2, "with 8 samples"), (11, None, "1 sample ")],
)  # fmt: skip
def test_samples_that_are_trained_twice_in_an_epoch_are_said(
    samples: int, steps: int | None, words: str | None
) -> None:
    """Not where they are few, or the training ends before."""
    given = ["batch.micro=12", "batch.accumulation=1", "batch.tokens=null", "train.epochs=2"]
    given.append(f"train.max_steps={steps or 'null'}")
    made = plan("l4:1", "model.name=opt-125m", "data.sequence=1024", *given, told=UserFigures(samples))
    notes = [note for note in made.data if "last batch" in note]  # which a run repeats
    assert words in notes[0] if words else not notes, notes


def test_prompts_are_drawn_again_and_fill_no_batch() -> None:
    given = ["generation.prompt=32", "generation.answer=32", "batch.micro=12", "batch.tokens=null"]
    made = plan("h100:1", *given, "train.max_steps=null", recipe="ppo", told=UserFigures(16))
    assert made.training is not None and made.training.samples == 16
    assert not any("last batch" in note for note in made.data)


def test_a_smaller_model_that_the_recipe_takes_is_named() -> None:
    """gpt2-micro has 256 positions."""
    words = ["model.name=gpt2", "model.config=null", "engine.name=ddp", "batch.accumulation=1"]
    for length, micro in ((256, 64), (1024, 16)):
        batch = (f"data.sequence={length}", f"batch.micro={micro}")
        made = plan("gtx-1080-ti:2", *words, *batch, recipe="causal-lm")
        assert made.memory is not None and made.memory.lacking and made.would_fit
        assert any("model.name=gpt2-micro" in way for way in made.would_fit) is (length == 256)


GATHERED = [
    "batch.tokens=null",
    "model.name=opt-6.7b",
    "batch.micro=1",
    "batch.accumulation=1",
    "train.gradient_checkpointing=true",
]


@pytest.mark.parametrize(
    ("machines", "engine", "said"),
    [
        ("a100-80gb:8x4,10Gbit", ["engine.name=fsdp", "engine.zero=0"], True),
        ("a100-80gb:8x4,10Gbit", ["engine.zero=3"], True),
        ("a100-80gb:8x4,3200Gbit-ib", ["engine.name=fsdp", "engine.zero=0"], False),  # nothing to gain
        ("a100-80gb:8x1", ["engine.name=fsdp", "engine.zero=0"], False),
        ("a100-80gb:1x8,10Gbit", ["engine.name=fsdp", "engine.zero=0"], False),
        ("a100-80gb:1x8,10Gbit", ["engine.name=fsdp", "engine.zero=0", "model.name=opt-1.3b"], False),
        ("a100-80gb:8x4,10Gbit", ["engine.zero=2"], False),  # gathers no weights for its passes
        (
            "a100-40gb:8x4,10Gbit",
            ["engine.name=fsdp", "engine.zero=0", "model.name=opt-30b"],
            False,
        ),  # too much
    ],
)
def test_groups_are_spoken_of_where_they_would_be_faster(
    machines: str, engine: list[str], said: bool
) -> None:
    made = plan(machines, *GATHERED, *engine)
    notes = [note for note in made.notes if note.startswith("engine.group=")]
    assert bool(notes) is said
    if said:
        grouped = plan(machines, *GATHERED, *engine, "engine.group=8")
        assert made.time and grouped.time and grouped.memory and made.memory
        times = made.time.step / grouped.time.step
        assert notes[0].startswith(f"engine.group=8 is predicted to be {times:.1f} times") and times > 1.1
        assert grouped.memory.device_bytes > made.memory.device_bytes
        assert not any("engine.group" in note for note in grouped.notes)
        assert grouped.engine == f"{made.engine} in groups of 8"


@pytest.mark.parametrize(("recipe", "size"), [("text2sql-t5-large", "t5-large"), ("vit-b16-cifar10", None)])
def test_what_is_no_decoder_is_planned_without_its_activations(recipe: str, size: str | None) -> None:
    """Neither traced nor in closed form: the rest is counted, and whether it fits stays open."""
    made = plan("a100-40gb:1", "batch.micro=auto", "train.gradient_checkpointing=auto", recipe=recipe)
    assert made.memory is not None and made.time is not None
    assert (made.memory.basis, made.memory.lacking) == ("not counted", None)
    assert "activations" not in made.memory.device and made.memory.device["parameters"] > 0
    assert [each.fits for each in made.candidates] == [None, None] and made.batch["micro"] == 8
    assert any("torch and transformers" in note for note in made.notes)
    assert promised(made.model_dump(mode="json")) is None


def test_no_groups_are_named_for_what_may_not_fit_in_them() -> None:
    words = ("model.name=t5-large", "engine.name=fsdp", "engine.zero=0")
    made = plan("a100-40gb:8x4,10Gbit", *words, recipe="seq2seq")
    assert made.memory is not None and made.memory.basis == "not counted"
    assert not [note for note in made.notes if "engine.group" in note]


SMALL = ("model.name=opt-350m", "batch.tokens=null", "engine.name=ddp", "engine.zero=0")


@pytest.mark.parametrize(
    "batch",
    [
        ["batch.micro=48", "batch.global=48", "batch.accumulation=1"],
        ["batch.micro=72", "batch.global=72", "batch.accumulation=auto"],
        ["batch.micro=auto", "batch.global=72", "batch.accumulation=1"],
    ],
)
def test_what_would_fit_is_accepted_and_fits(batch: list[str]) -> None:
    made = plan("a10:1", *SMALL, *batch)
    assert made.memory is not None and made.memory.lacking == "device"
    assert any("batch.micro" in way for way in made.would_fit)
    for way in made.would_fit:
        words = way.removesuffix(" such ranks").split()
        ranks = words.pop() if way.endswith("such ranks") else "1"
        overrides = [word for word in words if word != "on"]
        there = plan(f"a10:{ranks}", *SMALL, *batch, *overrides)
        assert there.memory is not None and there.memory.lacking is None, way


def test_json_has_no_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [float("inf"), (1.5, -float("inf"))], "c": "NaN"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, [1.5, None]], "c": "NaN"}


# About 32 billion parameters, of a family without closed forms.
OLMO = (
    "model.config={model_type: olmo2, hidden_size: 5120, intermediate_size: 27648, num_hidden_layers: 64, "
    "num_attention_heads: 40, num_key_value_heads: 8, vocab_size: 152064}"
)
A10 = {"name": "NVIDIA A10", "capability": [8, 6], "memory_total": 24 * 10**9}


def big_trace(recipe: Recipe, precision: str, device: str, ranks: int) -> Trace:
    """What a tracer would say of it."""
    passes = (Pass(2, 2000, 0, 0, 0, 3000, 10, 30, 0), Pass(4, 4000, 0, 0, 0, 6000, 20, 60, 0))
    tensors = tuple(Parameter(f"m{i}.weight", (500_000, 1000), True, f"m{i}") for i in range(64))
    arithmetic = spec_of(recipe.engine.name).arithmetic(precision, ranks)
    return Trace(
        tensors, passes, 0, arithmetic, device, recipe.train.checkpointing, (2,), {}, 0.0
    )  # fmt: skip


def test_images_that_have_no_tokens_have_a_time() -> None:
    """Swin, ConvNeXt, BEiT and ResNet have no closed form, and no length."""
    fields = {"model_type": "swin", "image_size": 224, "patch_size": 4, "num_labels": 10}
    words = ["model.name=null", "model.init=random", f"model.config={json.dumps(fields)}", "batch.micro=8"]
    words += ["train.compile=false"]
    recipe = read_recipe("vit-b16-cifar10", words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.planner.plan.tracer", lambda *given, say=None: big_trace(*given))
        made = plan_on(recipe, "l4:1", UserFigures(50_000)).plan
    assert made.time is not None and made.time.mfu is not None and 0 < made.time.mfu < 1


def test_train_traces_and_refuses_a_model_without_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.planner.plan.tracer", big_trace)
    about = {"w": {"cores": 8, "memory_total": 64 * 10**9, "gpus": [A10], "network": {}}}
    words = [OLMO, "model.init=random", "data={synthetic: {}, sequence: 512}", "engine.name=ddp"]
    inputs = check(read_recipe("causal-lm", words), parse_hosts("w:1"))
    with pytest.raises(UsageError, match="needs about") as refused:
        plan_first(inputs, about)
    assert refused.value.where == "memory"
    forced = check(read_recipe("causal-lm", [*words, "force=true"]), parse_hosts("w:1"))
    made = plan_first(forced, about).plan
    assert made is not None and made.memory is not None
    assert (made.memory.basis, made.memory.lacking) == ("traced", "device")
    silent = {"w": {"cores": 8, "gpus": [{"name": "NVIDIA A10", "capability": [8, 6]}]}}
    monkeypatch.setattr("muster.planner.plan.tracer", None)  # not called: there is nothing to check against
    made = plan_first(inputs, silent).plan
    assert made is not None and made.memory is None


def test_why_a_model_was_not_traced_is_a_warning_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, however many ways were asked for; closed forms take its place, and a run's result has it too."""
    why = "opt cannot be traced: it needs data"

    def tracer(recipe: Recipe, precision: str, device: str, ranks: int) -> None:
        raise JobError(why)

    monkeypatch.setattr("muster.planner.plan.tracer", tracer)
    about = {"w": {"cores": 8, "memory_total": 512 * 10**9, "gpus": [A10], "network": {}}}
    words = ["model.name=opt-125m", "engine.zero=auto", "train.gradient_checkpointing=auto"]
    decided = plan_first(check(read_recipe("opt-benchmark", words), parse_hosts("w:1")), about)
    assert decided.plan is not None and decided.plan.memory is not None
    assert decided.plan.memory.basis != "traced"
    assert [each["why"] for each in decided.plan.decisions if each["value"] in WARNINGS] == [why]
    print_plan(decided.plan)
    assert f"was not traced: {why}" in " ".join(capsys.readouterr().out.split())
    result = make_result(fold([]), decided.job, status=State.SUCCEEDED, failure=None, ended=9.0)
    assert f"the model: was not traced: {why}" in result.notes


def test_hosts_are_chosen_by_a_trace_where_there_are_no_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tracer(recipe: Recipe, precision: str, device: str, ranks: int) -> Trace:
        asked.append(ranks)
        return big_trace(recipe, precision, device, ranks)

    about = {name: {"cores": 8, "memory_total": 512 * 10**9, "gpus": [A10], "network": {}} for name in "vw"}
    monkeypatch.setattr("muster.planner.plan.tracer", tracer)
    words = [OLMO, "model.init=random", "data={synthetic: {}, sequence: 512}", "launch.hosts=auto"]
    inputs = check(read_recipe("causal-lm", words), parse_hosts("v:1,w:1"))
    hosts_first(inputs, lambda asked: about)
    assert asked


def test_what_is_written_is_a_recipe_that_says_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "chosen.yaml"
    argv = ["opt-benchmark", "model.name=opt-1.3b", "engine.zero=auto", "train.gradient_checkpointing=auto"]
    code, out, _ = run(capsys, *argv, "--on", MACHINES, "--quick", "--json", "--write", str(file))
    assert code == 0
    made, recipe = Plan.model_validate(json.loads(out)), load_recipe(str(file))
    assert f"deepspeed ZeRO-{recipe.engine.stage}" == made.engine
    assert recipe.precision == made.precision
    assert (recipe.batch.micro, recipe.batch.accumulation, recipe.batch.global_) == tuple(
        made.batch[name] for name in ("micro", "accumulation", "global")
    )
    again = plan_on(recipe, MACHINES, UserFigures(), traced=False).plan
    assert again.batch == made.batch
    beside = json.loads(file.with_suffix(".deepspeed.json").read_text())
    assert beside["zero_optimization"]["stage"] == recipe.engine.stage
    assert beside["train_batch_size"] == made.batch["global"]


def _own_file(folder: Path, **sections: Any) -> list[str]:
    """Return the words with which a DeepSpeed file of one's own is used."""
    file = folder / "mine.json"
    file.write_text(json.dumps({"bf16": {"enabled": True}, **sections}))
    return ["model.name=opt-350m", f"engine.config={file}"]


def test_what_a_file_of_ones_own_trains_is_written_next_to_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = _own_file(tmp_path, zero_optimization={"stage": 2}, train_batch_size="auto")
    mine, file = tmp_path / "mine.json", tmp_path / "chosen.yaml"
    before = mine.read_bytes()
    assert run(capsys, "opt-benchmark", *words, "--on", MACHINES, "--quick", "--write", str(file))[0] == 0
    made = json.loads((tmp_path / "chosen.deepspeed.json").read_text())
    recipe = load_recipe(str(file))
    assert made["train_batch_size"] == recipe.batch.global_ and made["zero_optimization"] == {"stage": 2}
    assert mine.read_bytes() == before and recipe.engine.config == str(mine)
    mine.rename(tmp_path / "next.deepspeed.json")  # which is not written over
    words[1] = f"engine.config={tmp_path / 'next.deepspeed.json'}"
    file = tmp_path / "next.yaml"
    assert run(capsys, "opt-benchmark", *words, "--on", MACHINES, "--quick", "--write", str(file))[0] == 0
    assert (tmp_path / "next.deepspeed.json").read_bytes() == before


WARMUP = {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5, "warmup_num_steps": 5}}


@pytest.mark.parametrize(
    ("sections", "replaced"),
    [
        ({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.9], "weight_decay": 0}}},
         {"learning_rate", "beta2", "weight_decay"}),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}}, set()),
        ({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, {"learning_rate", "beta2"}),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}, "scheduler": WARMUP},
         {"learning_rate", "beta2", "warmup"}),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}}, set()),
        ({}, set()),
    ],
)  # fmt: skip
def test_inherited_settings_that_a_file_of_ones_own_replaces_are_not_said(
    sections: dict[str, Any], replaced: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor the stage; what the file leaves to the recipe is."""
    words = _own_file(tmp_path, **sections)
    inherited = {"learning_rate", "warmup", "beta2", "weight_decay"}
    _, out, _ = run(capsys, "opt-benchmark", *words, "--on", MACHINES, "--quick", "--json")
    read = read_inputs("opt-benchmark", "a:8", words)
    by_file = next(each["why"] for each in json.loads(out)["decisions"] if each["field"] == INHERITED)
    assert by_file == next(each.why for each in read.noted if each.field == INHERITED)
    said = {word.partition("=")[0] for word in by_file.split()}
    assert {name for name in inherited if f"train.{name}" not in said} == replaced
    assert "engine.zero" not in said and "data.sequence" in said


def test_what_was_learned_is_kept(tmp_path: Path) -> None:
    assert load_calibration() == Calibration()
    learned = Calibration(efficiency={KEY: 0.5}, links={"10Gbit": LinkFigures(1e9)}, hosts={"h200": 2e11})
    save_calibration(learned)
    assert load_calibration() == learned
    slow = plan("h200:8x2,10Gbit", "model.name=opt-1.3b")
    save_calibration(Calibration(efficiency={KEY: 0.25}))
    slower = plan("h200:8x2,10Gbit", "model.name=opt-1.3b")
    assert slow.time is not None
    assert slower.time is not None
    assert slow.time.calibrated
    assert slower.time.compute == pytest.approx(2 * slow.time.compute)


@pytest.mark.parametrize(
    "text",
    [
        "{", '"x"', '{"links": {"a": [1]}}', '{"version": 2, "efficiency": []}',
        '{"version": 2, "efficiency": {"h200 bf16": 0}}', '{"hosts": {"h200": 0}}',
        '{"version": 2, "more": 1}',
    ],
)  # fmt: skip
def test_a_damaged_calibration_is_said(text: str) -> None:
    file = save_calibration(Calibration())
    file.write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        plan("h200:8", "model.name=opt-125m")


def test_of_an_earlier_version_links_are_read() -> None:
    """What devices reach meant something else in it."""
    file = save_calibration(Calibration())
    file.write_text(
        '{"efficiency": {"cpu fp32": 0.3}, "overhead": 0.001, "links": {"10Gbit": {"bandwidth": 1e9}}}'
    )
    assert load_calibration() == Calibration(links={"10Gbit": LinkFigures(1e9)})
    save_calibration(Calibration(efficiency={"cpu fp32": 0.3}))
    assert load_calibration() == Calibration(efficiency={"cpu fp32": 0.3})


def test_figures_by_hand_are_neither_calibrated_nor_a_hosts_name() -> None:
    machines = "h200{bf16=700}:8x2,10Gbit{usable=0.5}"
    known = Calibration(efficiency={KEY: 0.5}, links={"10Gbit": LinkFigures(1.2e9)})
    save_calibration(known)
    made = plan(machines, "model.name=opt-1.3b", told=UserFigures(samples=1000))
    save_calibration(Calibration())
    without = plan(machines, "model.name=opt-1.3b", told=UserFigures(samples=1000))
    assert made.time is not None and without.time is not None and not made.time.calibrated
    assert "products reach 54% of h200{bf16=700}'s stated peak" in made.time.assumed
    assert made.time.step == without.time.step
    assert "10Gbit{usable=0.5} network" in (made.sentence or "")
    inventory, *_ = hypothetical(parse_parts(machines), "--on", None)
    assert [host.name for host in inventory.hosts] == ["h200-1", "h200-2"]


def test_a_calibration_that_cannot_be_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")
    with pytest.raises(UsageError, match="cannot be written"):
        save_calibration(Calibration())
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert calibration_file().is_absolute()


def test_what_does_not_fit_is_not_written_as_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    argv = ["opt-benchmark", "model.name=opt-30b", "engine.zero=0", "--on", "a100-40gb:8x1", "--quick"]
    code, _, _ = run(capsys, *argv, "--write", str(file))
    assert code == 1
    assert load_recipe(str(file)).force is False


def test_a_fixed_global_batch_stays_on_any_number_of_hosts() -> None:
    made, alone = (plan(on, "model.name=opt-1.3b", "batch.global=512") for on in (MACHINES, "a100-80gb:8x1"))
    assert made.scaling[0].hosts == 1 and alone.batch["global"] == 512
    assert alone.time is not None
    assert made.scaling[0].step == pytest.approx(alone.time.step)
    assert made.scaling[0].changes == {"batch.micro": str(alone.batch["micro"])}


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        # Found by a stranger: 2.1 times as fast was said, since one host had the stage of four.
        ("a100-40gb:4x8,10Gbit",
         ["model.name=opt-6.7b", "batch.global=256", "train.gradient_checkpointing=auto"]),
        ("a100-80gb:8x3,100Gbit", ["model.name=opt-13b", "batch.tokens=3000000", "engine.zero=3"]),
        ("rtx-3090:2x2,rtx-3090:1x1,10Gbit", ["model.name=opt-1.3b", "batch.global=60"]),
        ("a100-80gb:8x2,100Gbit",
         ["model.name=opt-6.7b", "engine.name=fsdp", "engine.zero=0", "batch.micro=2"]),
    ],
)  # fmt: skip
def test_each_number_of_hosts_has_its_own_best_settings(machines: str, words: list[str]) -> None:
    """As the plan of so many hosts has them; and the sentence compares these."""
    own = [] if any("micro" in word for word in words) else ["batch.micro=auto"]
    own += [] if any("zero" in word for word in words) else ["engine.zero=auto"]
    made = plan(machines, *words, *own)
    assert len(made.scaling) > 1 and made.time is not None
    speeds = {}
    for each in made.scaling:
        alone = plan(machines, *words, *own, f"launch.hosts={each.hosts}")
        assert alone.time is not None and alone.memory is not None and alone.memory.lacking is None
        assert (each.step, each.ranks) == (pytest.approx(alone.time.step), alone.ranks)
        there = {"batch.micro": str(made.batch["micro"]), **each.changes}
        assert there["batch.micro"] == str(alone.batch["micro"])
        zero = each.changes.get("engine.zero")
        assert zero is None or alone.engine == f"deepspeed ZeRO-{zero}"
        assert each.changes.get("engine.zero") or alone.engine == made.engine
        speeds[each.hosts] = alone.time.samples_per_second
    times = speeds[made.hosts] / speeds[min(speeds)]
    assert times < 1 or f"{times:.1f} times as fast" in (made.sentence or "")


def test_what_a_plan_promises_its_run() -> None:
    made = plan(MACHINES, "model.name=opt-1.3b")
    promise = promised(made.model_dump(mode="json"))
    assert promise is not None
    assert made.memory is not None
    assert made.time is not None
    assert promise.memory == made.memory.device_bytes
    assert promise.samples_per_second == made.time.samples_per_second
    assert promised({"decisions": []}) is None


@pytest.mark.parametrize("recipe", ["sft", "dpo", "seq2seq"])
def test_a_step_is_as_long_as_the_samples_are(recipe: str, tmp_path: Path) -> None:
    """Where the data are here: their mean length, with the padding of GPUs; memory is for the longest."""
    rows = [
        {"prompt": text, "input": text, "chosen": "b" * n, "rejected": "b", "target": "b" * n}
        for text, n in zip([f"{i} {'a' * 40}" for i in range(200)], (8, 40) * 100, strict=True)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths = ["data.max_source=160", "data.max_target=160"] if recipe == "seq2seq" else ["data.sequence=256"]
    pretrained = ["model.init=random", "model.tokenizer=train", "precision=bf16", "data.generated=null"]
    words = [f"data.path={file}", *lengths, *pretrained, "train.max_steps=4", "batch.micro=64"]

    def planned(padding: str) -> Plan:
        read = read_recipe(recipe, [*words, f"data.padding={padding}"])
        return plan_on(read, "h100:1", UserFigures(), traced=False).plan

    fixed, dynamic = planned("fixed"), planned("dynamic")
    assert fixed.time is not None and dynamic.time is not None
    assert dynamic.memory is not None and "the recipe" in (dynamic.memory.samples or "")
    assert dynamic.memory.model_copy(update={"samples": None}) == fixed.memory
    [words_of_time] = [each for each in dynamic.time.assumed if "mean with padding" in each]
    tokens = int(words_of_time.split(" tokens")[0].rsplit(" ", 1)[1])
    longest = {"sft": 256, "dpo": 512, "seq2seq": 320}[recipe]
    assert 4 < tokens < longest / 2
    assert dynamic.time.compute == pytest.approx(fixed.time.compute * tokens / longest, rel=0.05)
    assert dynamic.time.tokens_per_second == pytest.approx(dynamic.time.samples_per_second * tokens, rel=0.05)
    work = [each.time.mfu * each.time.step for each in (fixed, dynamic) if each.time and each.time.mfu]
    assert work[1] == pytest.approx(work[0] * tokens / longest, rel=0.05)


def test_what_takes_seconds_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has to be traced; one that was traced before takes no time, and is not said again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def traced(request: TraceRequest) -> Trace:
        made = big_trace(read_recipe("opt-benchmark", ["model.name=opt-8m"]), "bf16", request.device, 8)
        return replace(made, arithmetic=request.arithmetic, checkpointing=request.checkpointing)

    monkeypatch.setattr("muster.planner.tracing._traced", traced)
    said: list[str] = []
    for _ in range(2):
        planned = plan_on(
            read_recipe("opt-benchmark", ["model.name=opt-8m"]), "h200:8", UserFigures(), say=said.append
        )
        assert planned.plan.memory is not None and planned.plan.memory.basis == "traced"
    assert len(said) == 1
    assert "opt-8m" in said[0] and "tracing" in said[0]


def test_what_cannot_fit_by_far_is_refused_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tracer(recipe: Recipe, precision: str, device: str, ranks: int) -> None:
        asked.append(ranks)

    monkeypatch.setattr("muster.planner.plan.tracer", tracer)
    about = {"w": {"cores": 8, "memory_total": 512 * 10**9, "gpus": [A10], "network": {}}}
    for size, traced in (("opt-13b", False), ("opt-1.3b", True)):
        words = [f"model.name={size}", "engine.zero=0", "batch.micro=1"]
        with pytest.raises(UsageError, match="needs about"):
            plan_first(check(read_recipe("opt-benchmark", words), parse_hosts("w:1")), about)
        assert bool(asked) is traced


@pytest.mark.parametrize(
    ("name", "lora", "trained"),
    [
        ("Qwen/Qwen2.5-7B", ["lora.rank=64", "lora.targets=all-linear"], 161_480_704),
        ("meta-llama/Llama-3.2-1B", ["lora.rank=8"], 851_968),
        ("meta-llama/Llama-3.2-1B", ["lora.rank=8", "lora.targets=all-linear"], 5_636_096),
        ("Qwen/Qwen3-0.6B", ["lora.rank=8", "lora.targets=all-linear"], 5_046_272),
        ("gpt2", ["lora.rank=8"], 294_912),
        ("facebook/opt-350m", ["lora.rank=8", "lora.targets=all-linear"], 3_563_520),
    ],
)
def test_adapters_are_counted_by_their_targets(name: str, lora: list[str], trained: int) -> None:
    """As PEFT makes them."""
    made = plan("a100-40gb:1x1", f"model.name={name}", *lora, recipe="causal-lm")
    assert made.trainable == trained


def test_mfu_of_unlike_devices_is_of_the_sum_of_their_peaks() -> None:
    """rtx-3070: 20.3 TFLOP/s in fp32, gtx-1070: 6.5."""
    settings = ["model.name=gpt2", "precision=fp32", "batch.micro=2"]
    slow = plan("gtx-1070:1x2,10Gbit", *settings, recipe="causal-lm").time
    unlike = plan("rtx-3070:1x1,gtx-1070:1x1,10Gbit", *settings, recipe="causal-lm").time
    assert slow is not None and unlike is not None and slow.mfu and unlike.mfu
    rates = unlike.samples_per_second / slow.samples_per_second
    assert unlike.mfu == pytest.approx(slow.mfu * rates * 2 * 6.5 / (20.3 + 6.5), rel=0.01)


@pytest.mark.parametrize(("whole", "needed", "traced"), [(True, 9, False), (False, 9, True), (True, 2, True)])
def test_a_model_without_a_closed_form_is_traced_however_large(
    whole: bool, needed: int, traced: bool
) -> None:
    """What would fit is found by traces alone."""
    way = SimpleNamespace(lacks=SimpleNamespace(needed=needed, has=1), needed=SimpleNamespace(whole=whole))
    decided = SimpleNamespace(refused=UsageError("too large"), room=None, setting=None, way=way)
    assert _worth_tracing(decided) == traced  # type: ignore[arg-type]


def _words_of(tmp_path: Path, recipe: str, train: Sequence[tuple[int, int]], held: int) -> list[str]:
    """Return the words for rows of so many tokens, prompts and answers, and a held-out one."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    for name, sizes in (("train", train), ("validation", [(held, held)] if held else [])):
        rows = ((("a " * one).strip(), ("b " * other).strip()) for one, other in sizes)
        lines = [
            json.dumps({"prompt": a, "input": a, "chosen": b, "target": b, "rejected": "a"}) for a, b in rows
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    if not held:
        (tmp_path / "validation.jsonl").unlink()
    return [
        f"data.path={tmp_path}", f"model.tokenizer={tmp_path}", "model.init=random", "data.generated=null",
        "train.max_steps=4", "batch.micro=8", "precision=bf16", "data.validation_fraction=0",
    ]  # fmt: skip


SHORT = [(n % 30 + 1, n % 20 + 1) for n in range(60)]  # with the end of the answer at most 51


@pytest.mark.parametrize(
    ("train", "held", "most", "longest"),
    [
        (SHORT, 0, 4096, 56),  # on GPUs a multiple of 8
        ([*SHORT, (300, 5)], 0, 4096, 312),
        (SHORT, 200, 4096, 408),  # a held-out sample is evaluated
        (SHORT, 0, 48, 48),  # cut before it is padded
        (SHORT * 1500, 0, 4096, None),  # too many to count
    ],
)
def test_memory_is_that_of_the_longest_sample_that_there_is(
    train: list[tuple[int, int]], held: int, most: int, longest: int | None, tmp_path: Path
) -> None:
    """Where all are counted; else of the longest that the recipe allows."""
    words = _words_of(tmp_path, "sft", train, held)

    def planned(*more: str, told: UserFigures | None = None) -> MemoryPlan:
        given = [*words, "model.name=Qwen/Qwen2.5-0.5B", *more]
        made = plan("l4:1", *given, recipe="sft", told=told).memory
        assert made is not None
        return made

    made = planned(f"data.sequence={most}")
    alike = planned(f"data.sequence={longest or most}", "data.padding=fixed")
    assert made.device == alike.device and alike.samples is None
    if longest is None:
        assert made.samples == f"{most:,} tokens, as long as the recipe lets one be" and made.lacking
        return
    assert made.samples == f"{longest:,} tokens, the longest of the data" and not made.lacking
    assert planned(f"data.sequence={most}", told=UserFigures(len(train))) == made  # what is here, said again
    packed = planned(f"data.sequence={most}", "data.packing=true")  # which is full
    other = planned(f"data.sequence={most}", told=UserFigures(10_000))  # of data that are not here
    assert packed.device == other.device == planned(f"data.sequence={most}", "data.padding=fixed").device


@pytest.mark.parametrize("recipe", ["dpo", "seq2seq"])
def test_memory_of_samples_in_two_parts(recipe: str, tmp_path: Path) -> None:
    words = [*_words_of(tmp_path, recipe, SHORT, 0), "data.limit=55"]
    pair = recipe == "dpo"
    limits = ["data.sequence=1024"] if pair else ["data.max_source=512", "data.max_target=64"]
    model = ["model.name=opt-125m"] if pair else ["model.config={model_type: t5}"]
    traced: list[tuple[int, int]] = []

    def tracer(made: Recipe, precision: str, device: str, ranks: int, *, say: object = None) -> None:
        lengths = made.lengths({})
        assert lengths is not None
        traced.append((lengths.tokens, lengths.target))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.planner.plan.tracer", tracer)
        made = plan_on(read_recipe(recipe, [*words, *limits, *model]), "l4:1", UserFigures()).plan
    assert made is not None and made.memory is not None
    tokens = (48, 0) if pair else (32, 24)  # 20 + 20 + an end; 30 and 20 + an end, each in multiples of 8
    assert set(traced) == {tokens}
    assert made.memory.samples == f"{96 if pair else 56} tokens, the longest of the data"


def test_a_held_out_pair_may_be_the_longest(tmp_path: Path) -> None:
    words = [*_words_of(tmp_path, "seq2seq", SHORT, 200), "data.max_source=512", "data.max_target=512"]
    longest = load_recipe("seq2seq", words).survey({}).longest
    assert longest is not None and (longest.tokens, longest.target) == (200, 201)  # with its end


@pytest.mark.parametrize("recipe", ["ppo", "grpo"])
def test_memory_of_answers_that_are_drawn_is_not_that_of_the_datas(recipe: str, tmp_path: Path) -> None:
    words = [*_words_of(tmp_path, recipe, SHORT, 0), "reward.execution=false", "reward.model=/judge"]
    made = plan("l4:1", *words, "model.name=opt-125m", recipe=recipe).memory
    assert made is not None and "the recipe" in (made.samples or "")


def test_a_job_is_refused_by_its_longest_sample_and_not_by_what_the_recipe_allows(tmp_path: Path) -> None:
    """Its limit would not fit; nor where hosts are chosen."""
    words = [*_words_of(tmp_path, "sft", SHORT, 0), "model.name=Qwen/Qwen2.5-0.5B", "data.sequence=30000"]
    about = {name: {"cores": 8, "memory_total": 512 * 10**9, "gpus": [A10], "network": {}} for name in "ab"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.planner.plan.tracer", None)
        for hosts in ("null", "auto"):
            inputs = check(read_recipe("sft", [*words, f"launch.hosts={hosts}"]), parse_hosts("a:1,b:1"))
            inputs, chosen = hosts_first(inputs, lambda _: about)
            assert plan_first(inputs, about, chosen).works
            fixed = read_recipe("sft", [*words, "data.padding=fixed"])
            with pytest.raises(UsageError, match="needs about"):
                plan_first(check(fixed, parse_hosts("a:1")), {"a": about["a"]})
