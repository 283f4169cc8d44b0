"""The kit for a GPU machine: what is run, what is kept, and what goes on where it stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import calls, cost, kit, levers, page, profile, proof, speed, wheels
from benchmarks.gpu.jobs import Failed, environment
from benchmarks.gpu.kit import GROUPS, Figures, Machine, Piece, Results
from benchmarks.gpu.pieces import pieces
from benchmarks.gpu.schedule import BY_ROW

from muster.core.recipes import load_recipe

MACHINE = {
    "processor": "a CPU",
    "gpus": ["a GPU"],
    "cores": 2,
    "python": "3.12",
    "versions": {"torch": "2.11"},
}


def piece(name: str = "one", **more: Any) -> Piece:
    return Piece("proof", name, more.get("limit", 60.0), more.get("run", lambda machine: {"figure": 1}))


def ran(tmp_path: Path, run: Any) -> dict[str, Any]:
    (tmp_path / "folder").mkdir(exist_ok=True)
    kit.child(piece(run=run), True, tmp_path / "told.json", tmp_path / "folder", Results(tmp_path))
    found: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    return found


def test_every_piece_has_a_name_of_its_own_and_those_of_proof_come_first() -> None:
    names = [each.key for each in pieces()]
    assert len(names) == len(set(names)) and len([name for name in names if name.startswith("memory/")]) >= 24
    groups = list(dict.fromkeys(name.partition("/")[0] for name in names))
    assert groups == [group for group in GROUPS if group in groups] and set(GROUPS) <= set(page.GROUPS)


def test_what_a_piece_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "before")

    def failing(_: Machine) -> Figures:
        raise ValueError("no such kernel")

    passed = {"status": "passed", "figures": {"tiny": True}}
    assert ran(tmp_path, lambda machine: {"tiny": machine.tiny}) == passed
    assert ran(tmp_path, lambda machine: machine.needs_cuda())["status"] == "not applicable"
    failed = ran(tmp_path, failing)
    assert failed["status"] == "failed" and "no such kernel" in failed["error"]
    assert Path.cwd() == tmp_path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {**MACHINE, "code": "code"}
    monkeypatch.setattr(kit, "described", lambda tiny: found | {"tiny": tiny})
    monkeypatch.setattr(kit, "commit", lambda: "abc")
    monkeypatch.setattr(calls, "source", lambda piece: found["code"])
    return found


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ends: dict[str, str], minutes: float = 9, **more: Any
) -> list[str]:
    """Run pieces that end so; -> those that were begun, in order."""
    begun: list[str] = []

    def instead(each: Piece, results: Results, limit: float, tiny: bool, cut: bool) -> dict[str, Any]:
        begun.append(each.name)
        return {"status": ends[each.name], "seconds": 1.0}

    monkeypatch.setattr(kit, "run_piece", instead)
    calls.run_all([piece(name) for name in ends], Results(folder), minutes, False, **more)
    return begun


def test_a_call_goes_on_where_the_last_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    """With --changed, also what changed code concerns is run again."""
    assert run(monkeypatch, tmp_path, {"a": "passed"}, minutes=0.1) == []
    ends = {"a": "passed", "b": "failed", "c": "not applicable", "d": "timed out", "f": "cut short"}
    assert run(monkeypatch, tmp_path, ends) == ["a", "b", "c", "d", "f"]
    assert run(monkeypatch, tmp_path, ends | {"e": "passed", "f": "passed"}) == ["f", "e"]
    assert run(monkeypatch, tmp_path, ends, changed=True) == ["b", "d"]
    machine["code"] = "mended"
    ends |= {"f": "passed"}
    assert run(monkeypatch, tmp_path, ends | {"b": "passed"}) == ["b", "d"]
    assert run(monkeypatch, tmp_path, ends) == []
    kept = Results(tmp_path).read("proof")
    assert kept["machine"] == machine | {"tiny": False}
    sources = {name: entry["source"] for name, entry in kept["pieces"].items()}
    assert sources == {"a": "code", "b": "mended", "c": "code", "d": "mended", "e": "code", "f": "code"}
    assert {(entry["commit"], entry["at_a_time"]) for entry in kept["pieces"].values()} == {("abc", 1)}
    assert run(monkeypatch, tmp_path, ends, changed=True) == ["a", "c", "d", "f"]


@pytest.mark.parametrize(("minutes", "cut"), [(0.75, True), (9, False)])
def test_a_piece_that_the_call_ends_is_cut_short_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], minutes: float, cut: bool
) -> None:
    """The piece's own limit is a minute, and it usually takes half of that."""
    given: list[tuple[float, bool]] = []

    def instead(each: Piece, results: Results, limit: float, tiny: bool, cut: bool) -> dict[str, Any]:
        given.append((limit, cut))
        return {"status": "passed", "seconds": 1.0}

    monkeypatch.setattr(kit, "run_piece", instead)
    calls.run_all([piece()], Results(tmp_path), minutes, False)
    [(limit, was_cut)] = given
    assert was_cut == cut and (30 < limit <= 45 if cut else limit == 60)


def test_a_call_goes_on_from_another_folder_of_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    """A machine that is given back keeps nothing: what it wrote travels to the next one."""
    run(monkeypatch, tmp_path / "one", {"a": "passed"})
    for versions, others in (({"torch": "2.11"}, []), ({"torch": "2.13"}, ["proof"])):
        machine["versions"] = versions
        results = Results(tmp_path / versions["torch"])
        left = results.begin_with(tmp_path / "one", machine | {"tiny": False})
        assert [file.stem for file in left] == others
        assert list(results.read("proof")["pieces"]) == ([] if others else ["a"])


def test_results_of_another_machine_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any]
) -> None:
    run(monkeypatch, tmp_path, {"a": "passed"})
    with pytest.raises(SystemExit, match="tiny"):
        calls.run_all([piece("a")], Results(tmp_path), 9, True)
    machine["gpus"] = ["another GPU"]
    with pytest.raises(SystemExit, match="another GPU"):
        run(monkeypatch, tmp_path, {"a": "passed", "b": "passed"})


def test_an_engine_is_held_against_the_run_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ddp in fp32, whose job is not run again for each engine."""
    begun: list[str] = []

    def short(machine: Machine, name: str, *more: str) -> dict[str, Any]:
        begun.append(name)
        loss = {"loss_first": 7.0, "loss_final": 6.0 if name == "run" else 6.1}
        return loss | {"memory": {"allocator_peak": None}}

    monkeypatch.setattr(proof, "_short", short)
    monkeypatch.setattr(proof, "events", lambda name: [{"kind": "started", "arithmetic": "fp32"}])
    engine = {each.name: each for each in proof.pieces()}
    machine = Machine("cpu", True, tmp_path, Results(tmp_path))
    with pytest.raises(Failed, match="apart"):
        engine["fsdp-fp32"].run(machine)
    assert begun == ["run", "base"]
    figures = engine["ddp-fp32"].run(machine)
    machine.results.add(engine["ddp-fp32"], MACHINE, {"status": "passed", "figures": figures})
    assert engine["fsdp-fp32"].run(machine)["apart"] == [0.0, 0.0]
    assert begun == ["run", "base", "run", "run"]


def test_a_resumed_run_is_as_close_to_whole_ones_as_they_are_to_each_other() -> None:
    """Losses up to the first checkpoint are those of the same attempt, and do not count."""

    def losses(*last: float, first: float = 9.0) -> dict[int, float]:
        values = [first, *([9.0] * (proof.FIRST - 1)), *last]
        return dict(enumerate(values, 1))

    whole, again = losses(4.0, 2.0), losses(4.0, 2.002)
    assert proof.distances(losses(4.004, 2.0), whole, again) == pytest.approx((0.001, 0.001))
    equal = losses(4.0, 2.0, first=8.0)
    assert proof.distances(equal, whole, whole) == (0.0, 0.0)
    with pytest.raises(Failed, match="12"):
        proof.distances(equal | {99: 1.0}, whole, whole)


def test_a_document_of_nvidia_smi_does_not_tell_which_gpu_it_is_of() -> None:
    text = "<gpu><serial>16</serial><uuid>GPU-1</uuid><pdi>0x8</pdi><ecc>9</ecc>\n  <supported_clocks>\n 1\n"
    assert proof.anonymous(text + "</supported_clocks></gpu>") == (
        "<gpu><serial>N/A</serial><uuid>N/A</uuid><pdi>N/A</pdi><ecc>9</ecc></gpu>"
    )


def test_what_a_device_does_in_a_step() -> None:
    """Of three kernels, two at a time, a copy beside them, and nothing in between."""
    spans = [(0.0, 10.0), (5.0, 20.0), (30.0, 40.0), (32.0, 34.0)]
    assert levers.covered(spans) == 30.0 and levers.covered([]) == 0.0
    names = ["gemm", "softmax", "gemm", "Memcpy HtoD (Pinned -> Device)"]
    figures = levers.of_device([(name, *span) for name, span in zip(names, spans, strict=True)], 2)
    assert figures["busy_milliseconds"] == pytest.approx(0.015) and figures["kernels"] == 1.5
    assert figures["copy_milliseconds"] == pytest.approx(0.001)
    assert figures["longest"][0] == ["gemm", pytest.approx(0.01)]


@pytest.mark.parametrize(
    ("index", "weights", "attention"),
    [  # GPT-2: 12 width^2 a layer and the output layer; OPT's small one has no projections
        (0, 2 * 12 * 64**2 + 64 * 1000, 6 * 2 * 64 * 32),
        (1, 2 * (4 * 64**2 + 2 * 64 * 128) + 64 * 1000, 6 * 2 * 64 * 32),
    ],
)
def test_operations_of_a_step(index: int, weights: int, attention: int) -> None:
    shape = levers.SHAPES[index].small()
    model = levers.model_of(shape, levers.LEVERS[1], "cpu")
    assert levers.operations(model, shape) == shape.batch * shape.sequence * (6 * weights + attention)


def test_levers_have_the_loss_of_the_model_and_mfu_is_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output layer in parts, and in one with the loss, predict the same tokens."""
    import torch

    monkeypatch.setattr(levers, "peak_of", lambda cuda: 1e12)
    machine, shape = Machine("cpu", True, tmp_path, Results(tmp_path)), levers.SHAPES[0].small()
    plain = next(each for each in levers.LEVERS if each.name == "no mask")
    model, tokens = levers.model_of(shape, plain, "cpu"), torch.arange(64).reshape(2, 32)
    model.transformer.wte.weight.data.mul_(20)  # so that some tokens are likelier than others
    each = [replace(plain, loss=loss, parts=2) for loss in ("model", "parts", "fused")]
    losses = [levers.loss_function(model, one)(tokens) for one in each if not levers.lacking(one)]
    found = [float(loss.detach()) for loss in losses]
    assert found == pytest.approx([found[0]] * len(found), rel=1e-4) and len(found) > 1
    row = levers.row(shape, replace(plain, compiled=False), machine)
    per_second = levers.operations(model, shape) / (row["milliseconds"] / 1e3)
    assert row["mfu"] == pytest.approx(per_second / 1e12)


def test_a_lever_that_this_pytorch_lacks_is_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("cpu", True, tmp_path, Results(tmp_path), seconds=600.0)
    names = ("eager", "no mask, loss in 4 parts", "no mask, blocking copies")
    some = [each for name in names for each in levers.LEVERS if each.name == name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(levers, "LEVERS", some)
    monkeypatch.setattr(levers, "lacking", lambda lever: "such layer" if lever.parts == 4 else None)
    rows = levers.pieces()[0].run(machine)["rows"]
    assert [row.get("error") for row in rows] == [None, "this PyTorch has no such layer", None], rows
    assert rows[0]["loss"] == pytest.approx(rows[2]["loss"], rel=1e-4) and rows[0]["samples_per_second"] > 0
    late = replace(machine, seconds=-1.0)
    assert {row["error"] for row in levers.pieces()[0].run(late)["rows"]} == {"no time"}


def test_a_piece_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "PATIENCE", 0.2)
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = f"{ignore}; print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline()
    assert not kit._wait(process, 0.1)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


def test_the_page_tells_what_was_measured_and_what_failed(tmp_path: Path) -> None:
    """What docs/gpu.md does not have: nothing at all, a traceback, a piece that was cut short."""
    results = Results(tmp_path)
    assert "Nothing was measured" in page.page(results)
    failed = {"status": "failed", "error": "a traceback\nNCCL is not there", "note": "A driver was missing."}
    results.add(piece("ddp-fp32"), MACHINE, failed)
    results.add(piece("smi"), MACHINE, {"status": "cut short", "error": "ended after 9 s"})
    row = next(each for each in speed.rows() if each.name == "llama-8b-shape")
    alone = {"status": "passed", "figures": compared(row, (rate(4),))}  # no peer, no plan, and no MFU
    results.add(next(each for each in pieces() if each.key == f"speed/{row.name}"), MACHINE, alone)
    text = page.page(results)
    assert "MFU not known, bar 0.45" in text
    missed, lacking = section(text, "Missed"), section(text, "Not measured")
    assert "| proof/ddp-fp32 | NCCL is not there. A driver was missing | passes |" in missed
    assert "a traceback" not in text and "Memory" not in text
    assert "smi" in lacking and "matmul-fp16" in lacking and "ddp-fp32," not in lacking


def section(text: str, name: str) -> str:
    return re.split(r"\n##", text.partition(f"# {name}\n")[2])[0]


def test_the_committed_page_is_what_the_kit_makes_of_the_committed_results() -> None:
    machines = kit.every_result(kit.MEASURED)
    made = page.page(*machines)
    assert (kit.ROOT / "docs" / "gpu.md").read_text() == made
    assert sum(file.stat().st_size for file in kit.MEASURED.rglob("*.json")) < 200_000
    for group, results in product(page.GROUPS, machines):
        for name, entry in results.read(group)["pieces"].items():
            for bar in (entry.get("figures") or {}).get("bars", {}).values():
                assert bar["met"] or f"| {group}/{name} |" in made


def test_of_a_piece_that_shared_the_gpu_no_figure_of_the_device_is_kept() -> None:
    """And no time, but of rows and levers, which were timed alone."""
    for group, results in product(page.GROUPS, kit.every_result(kit.MEASURED)):
        for name, entry in results.read(group)["pieces"].items():
            if entry["at_a_time"] > 1 and name not in ("check", "command"):
                text = json.dumps(entry.get("figures"))
                figures = json.loads(text) or {}
                if group not in BY_ROW:
                    assert "samples_per_second" not in text and "step_seconds" not in figures, (group, name)
                assert not figures.get("measured_bytes") and "device_peak" not in text, (group, name)


@pytest.mark.parametrize("tiny", [True, False])
@pytest.mark.parametrize("row", speed.rows(), ids=lambda row: row.name)
def test_both_sides_of_a_row_train_on_as_many_samples(row: speed.Row, tiny: bool, tmp_path: Path) -> None:
    """And its profile covers ten steps, with usual ones before and after."""
    shape = speed.Shape(row, Machine("cpu", tiny, tmp_path, Results(tmp_path)))
    data = str(tmp_path) if row.peer in ("pairs", "images") else ""
    recipe, work = load_recipe(row.recipe, shape.overrides(data)), shape.work(data)
    micro, accumulation, steps = recipe.batch.micro, recipe.batch.accumulation, recipe.train.max_steps
    assert isinstance(micro, int) and isinstance(accumulation, int) and steps
    assert micro * accumulation * steps == work["batch"] * work["steps"] >= (32 if tiny else row.samples)
    assert 0 < recipe.measure.warmup <= steps / 3 and 0 < work["warmup"] < work["steps"]
    assert recipe.model.name == work["model"] and not (tiny and recipe.train.compile is True)
    assert row.peer == "images" or recipe.model.config == work["config"]

    traced = load_recipe(row.recipe, profile.overrides(shape, data))
    profiled, last = traced.measure.profiled, traced.train.max_steps
    assert traced.measure.profile == "trace" and len(profiled) == 12 and last is not None
    assert profiled.start > traced.measure.warmup + 1 and profiled.stop <= last
    assert last // 4 < profile.USUAL  # the peer's warm-up


@pytest.mark.parametrize("profiles", [[], [{"busy": None}]])
def test_a_profile_without_a_gpu_has_failed_there(
    profiles: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no machine that cannot be profiled: the piece would count as done."""
    monkeypatch.setattr(profile, "train", lambda *_: {"profiles": profiles, "notes": ["why"]})
    row = next(each for each in profile.pieces() if each.name == "llama-8b-shape")
    with pytest.raises(Failed, match="why"):
        row.run(Machine("cuda", False, tmp_path, Results(tmp_path)))


STEPS = """
import json, subprocess, sys, time
import torch

# A process that is started here, as Inductor starts its compilers, lives on and has no turn.
waiting = "import torch, time; print('up', flush=True); time.sleep(60)"
helper = subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE)
helper.stdout.readline()
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
times = []
for _ in range(8):
    time.sleep(0.05)
    times.append(time.monotonic())
    optimizer.step()
print(json.dumps(times), flush=True)
sys.stdin.read()  # all have had their turn, and this one still lives
helper.kill()
helper.wait()
"""


def test_processes_warm_up_together_and_are_timed_one_at_a_time(tmp_path: Path) -> None:
    machine = Machine("cpu", True, tmp_path, Results(tmp_path))
    env = environment(machine.turn(3, 6))
    argv = [sys.executable, "-c", STEPS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(argv, env=env, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    times = sorted([json.loads(each.stdout.readline()) for each in ranks], key=lambda each: each[3])
    assert [each.communicate() and each.returncode for each in ranks] == [0] * 3
    assert not (tmp_path / "turn.lock.late").exists()
    assert max(each[2] for each in times) < min(each[3] for each in times)  # all had warmed up
    for one, after in pairwise(times):
        assert one[5] < after[3]


def compared(row: speed.Row, *pairs: tuple[Figures, ...]) -> Figures:
    return speed.compared(row, [list(each) for each in pairs], [[], {}])


def rate(samples: float, **more: Any) -> Figures:
    known = {"mfu": None, "peak": None, "flops_per_second": None, "batch": 8, "precision": "bf16"}
    return {**known, "samples_per_second": samples, **more}


def test_a_ratio_is_of_a_round_and_a_bar_that_is_not_met_is_a_figure() -> None:
    row = {each.name: each for each in speed.rows()}
    known = {"mfu": 0.6, "peak": 1e15, "flops_per_second": 6e14}
    both = compared(row["opt-350m-sft"], (rate(400, **known), rate(100)), (rate(300, **known), rate(100)))
    assert both["ratio"] == {"median": 3.5, "lowest": 3.0, "highest": 4.0}
    assert both["bars"]["ratio"] == {"bar": 4, "found": 3.5, "met": False}
    assert both["bars"]["mfu"]["met"] and both["peer_mfu"]["median"] == pytest.approx(0.175)
    alone = compared(row["llama-8b-shape"], (rate(4),))
    assert "ratio" not in alone and alone["bars"] == {"mfu": {"bar": 0.45, "found": None, "met": None}}
    for share, met in ((0.009, True), (0.02, False)):
        waiting = compared(row["gpt2-124m"], (rate(4, data_share=share), rate(4)))["bars"]["data_share"]
        assert waiting == {"bar": 0.01, "found": share, "met": met}
    losses = (rate(1300, held_out_loss=0.2), rate(100, held_out_loss=0.3))
    pairs = compared(row["t5-small-text2sql"], losses)
    assert pairs["bars"]["ratio"]["met"] and pairs["bars"]["held_out_loss"]["met"]
    assert pairs["peer_mfu"] is None  # a sample costs it more


def test_the_page_tells_what_muster_costs(tmp_path: Path) -> None:
    results, by_name = Results(tmp_path), {each.name: each for each in cost.pieces()}
    met = {"bar": 0.01, "found": 0.0101, "met": False}
    steps = {"trainer": {"median": 10.0}, "muster": {"median": 10.1}}
    quartiles = {"lower_quartile": 0.98, "median": 0.99, "upper_quartile": 1.0}
    compared = {"milliseconds_per_step": steps, "muster_to_trainer": quartiles, "precision": "bf16"}
    waits = {"steps": 40, "waits": 80, "per_step": 2.0, "places": {"meter.py:7": 80}}
    clocks = {"clock": {"muster": {"median": 5.5}, "torchrun": {"median": 5.6}}}
    for name, figures in (("instruments-text2sql", compared), ("sync-text2sql", waits), ("start", clocks)):
        entry = {"status": "passed", "figures": figures | {"bars": {"cost": met}}}
        results.add(by_name[name], MACHINE, entry)
    told = page.page(results)
    assert "10.00 ms a step without instruments, 10.10 with them, bf16" in told
    assert told.count("cost 0.0101, bar 0.01: not met") == 3 and "muster 5.50 s, torchrun 5.60 s" in told
    assert "2 waits for the device in a step, 40 steps; meter.py:7: 80" in told


def test_waits_count_in_steps_apart_from_the_ends_of_windows() -> None:
    watch = cost.Watch("cpu")
    for done in range(2 * cost.WINDOW):
        watch.begin(done)
        watch.wait()
    assert watch.steps == set(range(cost.WINDOW + 2, 2 * cost.WINDOW)) and watch.waits == cost.WINDOW - 2
    assert all("test_gpu_kit.py" in place for place in watch.places)


def test_wheels_are_those_of_the_constraints_and_tell_what_they_need(tmp_path: Path) -> None:
    pins = wheels.pinned((kit.ROOT / "constraints.txt").read_text())
    assert {wheels.plain(name) for name in (*wheels.CARRIED, wheels.BUILT)} <= pins.keys()
    assert pins["pyarrow"].startswith("pyarrow==") and ";" not in pins["pyarrow"]
    wheel = tmp_path / "one-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        lines = "Name: one\nRequires-Dist: Typing_Extensions>=4\nRequires-Dist: x; extra == 'y'\n"
        file.writestr("one-1.dist-info/METADATA", lines)
    assert wheels.needs(wheel) == {"typing-extensions"}


def test_a_machine_without_a_network_gets_what_muster_needs() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((kit.ROOT / "pyproject.toml").read_text())["project"]
    own = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    names = {wheels.plain(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in own}
    assert names <= wheels.THERE | {wheels.plain(name) for name in (*wheels.CARRIED, wheels.BUILT)}
