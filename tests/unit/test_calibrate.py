"""What `muster plan --calibrate` takes from a finished run, what it refuses, and for which plans it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.batch import Batch
from muster.core.errors import RunFolderError
from muster.core.flops import Shape, training
from muster.core.hardware.links import LinkFigures
from muster.core.inventory import Host, parse_hosts
from muster.core.job import Job, place
from muster.core.recipes import load_recipe
from muster.core.result import Flops, HostReport, Result
from muster.engines.spread import ModelSpread
from muster.inputs.model import whole_config
from muster.planner import calibrate as stage
from muster.planner.calibrate import calibrate, measured_of
from muster.planner.machines import MachineModel, load_calibration
from muster.planner.time.learning import EXACT, at_mean_lengths, deviation_of_hosts
from muster.planner.time.reached import reached
from muster.planner.time.steptime import (
    ALONE,
    STRAGGLING,
    Calibration,
    StepCase,
    StepWork,
    computing,
    ideal,
    lump,
    measured_links,
    predict,
    waiting_for_slowest,
)
from muster.store.runfolder import RunFolder
from tests.support import parse_machines
from tests.unit.benches import made

A100, ROME, MILAN = "NVIDIA A100-PCIE-40GB", "AMD EPYC 7742", "AMD EPYC 7763"
A100_KEY = f"a100-pcie-40gb fp32{ALONE}"  # nothing is traced here
ZERO_2 = ("engine.name=deepspeed", "engine.zero=2")
OFFLOADED = (*ZERO_2, "engine.offload=optimizer")


@pytest.fixture(autouse=True)
def _nothing_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(stage, "tracer", lambda *_: None)


def about(gpu: str | None = None, processor: str | None = None, ranks: int = 1) -> dict[str, Any]:
    gpus = [{"name": gpu, "memory_total": 40 * 10**9, "capability": [8, 0]}] * ranks if gpu else []
    return {"gpus": gpus, "cores": 2, "processor": processor, "network": {"megabits": 10_000}}


def finished(
    folder: Path, facts: dict[str, Any], *overrides: str, recipe: str = "text2sql-t5-small-as-published",
    ranks: int = 1, **result: Any,
) -> RunFolder:  # fmt: skip
    """A run of one host that said these facts of itself."""
    read = load_recipe(recipe, ["precision=fp32", *overrides])
    micro = int(read.batch.micro or 1)
    job = Job(
        folder.name, "ssh", place([(Host("n", ranks), ranks)]), Batch(micro, 1, micro * ranks), "fp32",
        "cuda" if facts["gpus"] else "cpu", read.as_dict(),
    )  # fmt: skip
    run = RunFolder(folder)
    folder.mkdir()
    run.job.write_text(json.dumps(job.as_dict()))
    hosts = [HostReport(host="n", ranks=list(range(ranks)), facts=facts)]
    said = made(["n"], slots=ranks, global_batch=micro * ranks, **result)
    _write(run, said.model_copy(update={"hosts": hosts}))
    return run


def _write(run: RunFolder, result: Result) -> None:
    run.result.write_text(result.model_dump_json())


def as_fast(run: RunFolder, truth: Calibration) -> RunFolder:
    """The run as fast as machines of which this is true make it."""
    case, result = measured_of(run).case, run.read_result()
    assert result is not None and result.throughput is not None
    rate = case.batch / predict(case, truth).seconds
    speed = result.throughput.model_copy(update={"samples_per_second": rate})
    _write(run, result.model_copy(update={"throughput": speed}))
    return run


# Offload:


def test_a_run_with_offload_says_nothing_of_its_device(tmp_path: Path) -> None:
    """Taken for the device's, what a slow host's memory takes would make it three times as slow."""
    truth = Calibration(efficiency={A100_KEY: 0.72}, hosts={"a100-pcie-40gb": 9e9})
    run = as_fast(finished(tmp_path / "offloaded", about(A100), *OFFLOADED), truth)
    with pytest.raises(RunFolderError, match="offloads, and no run on one rank has shown") as caught:
        calibrate([run])
    assert "a run without offload first" in (caught.value.hint or "")
    assert load_calibration() == Calibration()

    plain = as_fast(finished(tmp_path / "plain", about(A100), *ZERO_2), truth)
    learned = calibrate([plain, run])[0]
    assert learned.efficiency[A100_KEY] == pytest.approx(0.72, rel=1e-3)
    assert learned.hosts["a100-pcie-40gb"] == pytest.approx(9e9, rel=1e-3)
    assert load_calibration() == learned
    case = measured_of(run).case
    assert predict(case, learned).assumed == ()
    assert "a host's memory moves 50 GB/s" in predict(case).assumed


def test_offload_among_ranks_waits_for_a_run_on_one(tmp_path: Path) -> None:
    truth = Calibration(efficiency={A100_KEY: 0.72}, hosts={"a100-pcie-40gb": 9e9})
    plain = as_fast(finished(tmp_path / "plain", about(A100), *ZERO_2), truth)
    two = as_fast(finished(tmp_path / "two", about(A100, ranks=2), *OFFLOADED, ranks=2), truth)
    with pytest.raises(RunFolderError, match="what its host's memory moves could not be told"):
        calibrate([plain, two])
    one = as_fast(finished(tmp_path / "one", about(A100), *OFFLOADED), truth)
    assert calibrate([plain, one, two])[0].hosts["a100-pcie-40gb"] == pytest.approx(9e9, rel=1e-3)


def test_a_host_that_is_too_slow_or_too_fast_is_not_learned(tmp_path: Path) -> None:
    plain = as_fast(finished(tmp_path / "plain", about(A100), *ZERO_2), Calibration({A100_KEY: 0.72}))
    for speed in (1e8, 1e14):
        truth = Calibration(efficiency={A100_KEY: 0.72}, hosts={"a100-pcie-40gb": speed})
        run = as_fast(finished(tmp_path / f"{speed:g}", about(A100), *OFFLOADED), truth)
        with pytest.raises(RunFolderError, match="could not be told"):
            calibrate([plain, run])


# What cannot be:


def test_nothing_reaches_more_than_its_maker_states(tmp_path: Path) -> None:
    run = as_fast(finished(tmp_path / "run", about(A100)), Calibration(efficiency={A100_KEY: 2.727}))
    with pytest.raises(RunFolderError, match="would reach 273% of its stated figures") as caught:
        calibrate([run])
    assert caught.value.where == "run" and caught.value.hint
    assert load_calibration() == Calibration()
    cpu = as_fast(finished(tmp_path / "cpu", about()), Calibration(efficiency={"cpu fp32": 2.5}))
    assert calibrate([cpu])[0].efficiency["cpu fp32"] == pytest.approx(2.5, rel=1e-3)  # nominal


# Padding:

SOURCE, TARGET = 31, 12  # tokens of a batch, of at most 96 and 64


def padded(folder: Path, *, source: int = SOURCE, target: int = TARGET, off: float = 1.0) -> RunFolder:
    """A run of the demo with batches of these lengths; `off`: its operations are not counted right."""
    recipe = load_recipe("demo")
    products = families.products(
        {"vocab_size": 800, **(whole_config(recipe) or {})}, Shape(16, source, target)
    )
    assert products is not None
    a_sample = off * training(products).hardware / 16
    run = finished(folder, about(), recipe="demo", rate=100.0)
    result = run.read_result()
    assert result is not None and result.throughput is not None
    speed = result.throughput.model_copy(update={"padded_tokens_per_second": 100.0 * (source + target)})
    counted = Flops(model_per_second=100.0 * a_sample, hardware_per_second=100.0 * a_sample)
    _write(run, result.model_copy(update={"throughput": speed, "flops": counted}))
    return run


def test_a_run_with_dynamic_padding_is_taken_at_the_lengths_that_it_had(tmp_path: Path) -> None:
    """43 tokens of 160 are no full samples: their operations are those that were counted, not four times."""
    run = padded(tmp_path / "run")
    result = run.read_result()
    assert result is not None and result.flops is not None
    data = at_mean_lengths(load_recipe("demo"), result).data
    assert (data.max_source, data.max_target, data.padding) == (26, 17, "fixed")  # type: ignore[attr-defined]
    found = measured_of(run).case.work
    assert found.flops == pytest.approx(16 * result.flops.hardware_per_second / 100)
    whole = measured_of(finished(tmp_path / "whole", about(), "data.padding=fixed", recipe="demo")).case.work
    assert 3 < whole.flops / found.flops < 6
    assert found.forward / found.flops == pytest.approx(1 / 3, rel=0.02)


def test_pairs_are_two_sequences_of_their_mean_length(tmp_path: Path) -> None:
    """Their tokens are those of both answers."""
    result = padded(tmp_path / "run", source=60, target=40).read_result()
    assert result is not None
    for recipe, sequence in (("dpo", 50), ("sft", 100)):
        made = at_mean_lengths(load_recipe(recipe), result)
        assert made.lengths({}) is not None and made.lengths({}).tokens == sequence  # type: ignore[union-attr]


@pytest.mark.parametrize(("source", "target"), [(31, 12), (20, 20), (60, 30), (40, 14), (96, 64)])
def test_mean_lengths_are_near_enough(source: int, target: int, tmp_path: Path) -> None:
    """However questions and answers share the tokens, the operations are those counted to a few percent."""
    assert measured_of(padded(tmp_path / "run", source=source, target=target)).case.work.samples == 16


def test_lengths_that_do_not_explain_the_operations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not those of its mean lengths") as caught:
        measured_of(padded(tmp_path / "off", off=1 + 2 * EXACT))
    assert "data.padding=fixed" in (caught.value.hint or "")
    with pytest.raises(RunFolderError, match="they were not counted") as caught:
        measured_of(finished(tmp_path / "uncounted", about(), recipe="demo"))
    assert "measure.flops=true" in (caught.value.hint or "")


# Processors:


def ground(known: Calibration, *models: str | None) -> MachineModel:
    hosts = parse_hosts(",".join(f"n{i}" for i in range(len(models)))).hosts
    facts = {host.label: about(None, model) for host, model in zip(hosts, models, strict=True)}
    return MachineModel(facts, hosts, known)


def test_a_processor_is_known_by_its_model(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", about(processor=ROME))
    known = calibrate([run])[0]
    assert list(known.efficiency) == [f"cpu {ROME} fp32"]
    found = ground(known, ROME, ROME).on([1, 1], "cpu", "fp32")
    assert found is not None and found.device.kind == "cpu" and found.hosts == 2
    assert ground(known, ROME).on([1], "cpu", "bf16") is None
    for others in ([MILAN], [ROME, MILAN], [None], [ROME, None]):
        assert ground(known, *others).on([1] * len(others), "cpu", "fp32") is None, others
    plain = Calibration(efficiency={"cpu fp32": 0.3})  # learned before hosts said their model
    assert ground(plain, None).on([1], "cpu", "fp32") is not None
    assert ground(plain, ROME).on([1], "cpu", "fp32") is None
    several = replace(ground(Calibration(), ROME, MILAN), learning=True).on([1, 1], "cpu", "fp32")
    assert several is not None and several.device.name == f"cpu {ROME} + {MILAN}"


# Figures by hand:


def test_a_link_by_hand_is_measured_under_its_own_name() -> None:
    known = Calibration(links={"10Gbit": LinkFigures(1.18e9), "10Gbit{usable=0.5}": LinkFigures(6e8)})
    for text, bandwidth in (
        ("10Gbit", 1.18e9), ("10Gbit{usable=0.50}", 6e8), ("10Gbit{usable=0.6}", 7.5e8),
        ("10Gbit{bandwidth=3e9}", 3e9), ("{bandwidth=3e9}", 3e9),
    ):  # fmt: skip
        link = measured_links(parse_machines(f"a100:1x2,{text}"), known).link
        assert link is not None and link.bandwidth == pytest.approx(bandwidth), text


def test_a_device_by_hand_is_not_the_one_that_was_measured() -> None:
    known = Calibration(efficiency={"a100-pcie-40gb fp32": 0.4, "a100-pcie-40gb{fp32=14} fp32": 0.9})
    for text, key in (
        ("a100-pcie-40gb", "a100-pcie-40gb fp32"),
        ("a100-pcie-40gb{fp32=14.0}", "a100-pcie-40gb{fp32=14} fp32"),
        ("a100-pcie-40gb{fp32=15}", None),
    ):
        machines = parse_machines(text)
        case = StepCase(
            machines, "fp32", StepWork(1, 1e12, 3e12, 1e9), lump(10**6), ModelSpread("ddp", ranks=1)
        )
        share = known.efficiency[key] if key else reached(case.machines.device, "fp32").products
        assert computing(case, known) == pytest.approx(ideal(case) / share), text
        assert (predict(case, known).assumed == ()) is (key is not None)


# What hosts differ by:


def test_a_fleet_of_four_tells_what_its_hosts_differ_by() -> None:
    """MAD of 1.0, 1.02, 1.04, 1.06: the middle is 1.03, the distances 0.03, 0.01, 0.01, 0.03."""
    names = ["a", "b", "c", "d", "e"]

    def result(*forward: float | None, **facts: Any) -> Result:
        hosts = [
            HostReport(host=name, ranks=[rank], forward_seconds=seconds, facts=facts.get(name, {}))
            for rank, (name, seconds) in enumerate(zip(names, forward, strict=False))
        ]
        return made(names[: len(forward)]).model_copy(update={"hosts": hosts})

    assert deviation_of_hosts(result(1.0, 1.02, 1.04, 1.06)) == pytest.approx(1.4826 * 0.02 / 1.03, rel=1e-3)
    assert deviation_of_hosts(result(1.0, 1.0, 1.0, 1.0)) == 0
    assert deviation_of_hosts(result(1.0, 1.02, 1.04)) is None
    assert deviation_of_hosts(result(1.0, 1.02, 1.04, None)) is None
    assert deviation_of_hosts(result(1.0, 1.02, 1.04, 1.06, None)) is None
    assert deviation_of_hosts(result(1.0, 1.02, 1.04, 1.06, d={"gpus": [{"name": "another"}]})) is None


def test_what_hosts_differ_by_makes_many_of_them_slower() -> None:
    work = StepWork(8, 1e13, 3e13, moved=1e10, operations=1000, launches=1000)
    machines = parse_machines("h100:1x64,400Gbit-ib")
    case = StepCase(machines, "bf16", work, lump(10_000_000), ModelSpread("ddp", 64, 2))
    plain = predict(case, Calibration())
    name = machines.device.name
    wide = predict(case, Calibration(spreads={name: 0.02}))
    other = predict(case, Calibration(spreads={f"another {name}": 0.02}))
    narrow = predict(case, Calibration(spreads={name: 0.0001}))
    assert other.seconds == plain.seconds == narrow.seconds  # never less than fleets usually differ by
    more = (0.02 - STRAGGLING) * waiting_for_slowest(64) * plain.compute
    assert wide.seconds - plain.seconds == pytest.approx(more, rel=1e-6)
    eight = StepCase(parse_machines("h100:8x8,400Gbit-ib"), "bf16", work, case.parameters, case.spread)
    plain, wide = predict(eight, Calibration()), predict(eight, Calibration(spreads={name: 0.02}))
    more = 0.02 * waiting_for_slowest(8) - STRAGGLING * waiting_for_slowest(64)  # of hosts, not of ranks
    assert wide.seconds - plain.seconds == pytest.approx(more * plain.compute, rel=1e-6)
