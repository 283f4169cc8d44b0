"""From finished jobs to the document: verdicts and thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.benches.document import Bench
from muster.benches.fold import fold_bench
from muster.benches.logs import figures_of, logs_of
from muster.benches.schedule import Task
from muster.benches.suite import FIGURES
from muster.cli.views.benches import figure_words
from muster.core.recipes import load_recipe
from muster.core.result import Failure, Flops, Quality, Result
from muster.core.state import State
from muster.judging import Baseline, Class
from muster.judging.document import Gate, Peers
from muster.judging.joblogs import work_of
from tests.unit.benches import ended, fabric_result, made, recorded, suite_of

PER_SLOT = {"figure": "samples_per_second", "at_least": 50, "per": "slot"}


def jitter(task: Task) -> float:
    """A healthy job's own: up to 0.2 % either way, the same every time."""
    return 1 + 0.0005 * (sum(map(ord, task.id + "".join(task.hosts))) % 9 - 4)


def fleet(task: Task, slow: dict[str, float] | None = None) -> Result:
    worst = max((slow or {}).get(host, 1.0) for host in task.hosts)
    return made(task.hosts, 100.0 * len(task.hosts) * jitter(task) / worst)


def verdicts(found: Bench) -> dict[str, str]:
    return {each.host: each.verdict for each in found.hosts}


def test_a_healthy_fleet_is_fit() -> None:
    found = fold_bench(ended(suite_of({"groups": [1, 2]}), "local:8x1", fleet))
    assert set(verdicts(found).values()) == {"fit"}
    assert not found.gate and found.complete
    lead = replace(found.jobs[0], warm_up=True)
    assert all(found.model_copy(update={"jobs": jobs}).gate for jobs in ([], [lead]))  # nothing was run
    assert [(each.hosts, each.jobs) for each in found.peers] == [(1, 8), (2, 4)]
    assert found.peers[1].samples_per_second == pytest.approx(200, rel=0.01)
    assert all(job.slower is not None and abs(job.slower) < 0.01 for job in found.jobs)


def test_a_slow_host_is_named_with_its_jobs() -> None:
    found = fold_bench(
        ended(suite_of({"groups": [1, 2]}), "local:8x1", lambda task: fleet(task, {"local5": 1.06}))
    )
    assert found.gate is Gate.BAD
    assert verdicts(found).pop("local5") == "slow"
    assert sum(found.summary[name] for name in ("slow", "failing", "below", "unfit")) == 1
    named = next(each for each in found.hosts if each.host == "local5")
    assert named.beside_others is not None
    assert named.beside_others.slower == pytest.approx(0.06, abs=0.01)
    assert {"digits-1x-006", "digits-2x-003"} <= {each.job for each in named.evidence}


def test_what_hosts_compute_tells_partners_apart() -> None:
    """Jobs of the same pairs alone: who of a slow pair it is, only its forward passes say."""

    def told(task: Task, forward: bool = True, share: int | None = None) -> Result:
        found = fleet(task, {"local5": 1.06})
        own = {host: 0.01 * jitter(task) * (1.08 if host == "local5" else 1.0) for host in task.hosts}
        news = {host: {"share": share, "forward_seconds": own[host] if forward else None} for host in own}
        hosts = [each.model_copy(update=news[each.host]) for each in found.hosts]
        return found.model_copy(update={"hosts": hosts})

    pairs = suite_of({"groups": [2], "repeats": 4})
    found = fold_bench(ended(pairs, "local:8x1", told))
    assert {host for host, verdict in verdicts(found).items() if verdict == "slow"} == {"local5"}
    named = next(each for each in found.hosts if each.host == "local5")
    assert named.beside_others is not None and named.beside_others.kind == "compute"
    for silent in ({"forward": False}, {"share": 4}):  # unequal shares: each has other work
        found = fold_bench(ended(pairs, "local:8x1", lambda task, how=silent: told(task, **how)))  # type: ignore[misc]
        assert "slow" not in verdicts(found).values()


@pytest.mark.parametrize("count", [4, 5, 6])
def test_pairs_of_few_hosts_are_enough_to_read(count: int) -> None:
    """Disjoint pairs of four hosts are two times, which cannot outvote each other: all links of the ring
    are. As in acceptance, two entries run in pairs."""
    suite = suite_of({"groups": [1, 2]}, {"name": "other", "groups": [1, 2]})

    def cut(task: Task) -> Result:
        alone = len(task.hosts) == 1
        return fleet(task, {} if alone else {"local1": 5.0})

    found = fold_bench(ended(suite, f"local:{count}x1", cut))
    pairs = [job for job in found.jobs if job.size == 2]
    assert len(pairs) == 2 * count and all(job.slower is not None for job in pairs)
    assert {host for host, verdict in verdicts(found).items() if verdict == "slow"} == {"local1"}
    well = fold_bench(ended(suite, f"local:{count}x1", fleet))
    assert set(verdicts(well).values()) == {"fit"} and well.gate is Gate.FIT


@pytest.mark.parametrize("count", [2, 3])
def test_the_network_of_two_or_three_hosts_is_not_judged(count: int) -> None:
    """Whose pairs are slow, or whether all are, nobody can say."""

    def result(task: Task) -> Result:
        return fleet(task, {} if len(task.hosts) == 1 else {"local1": 5.0})

    bound = {"figure": "samples_per_second", "at_least": 50, "per": "slot"}
    alone = {"name": "alone", "groups": [1], "thresholds": [bound]}
    found = fold_bench(ended(suite_of(alone, {"groups": [2]}), f"local:{count}x1", result))
    assert len([job for job in found.jobs if job.size == 2]) == {2: 1, 3: 3}[count]
    assert found.gate is Gate.OPEN and not found.links
    assert all("network not judged" in each.reason for each in found.hosts)


def test_hosts_that_the_inspection_dropped_are_unfit() -> None:
    bench = ended(suite_of({}), "local:2x1", fleet, dropped={"local9": "disk.free: 1 GB"})
    found = fold_bench(bench)
    assert found.hosts[-1].model_dump()["reason"] == "disk.free: 1 GB"
    assert (found.summary["unfit"], found.gate) == (1, Gate.BAD)


def test_few_hosts_are_fit_by_thresholds_alone() -> None:
    free = fold_bench(ended(suite_of({"groups": [1]}), "local:2x1", fleet))
    assert verdicts(free) == {"local0": "unknown", "local1": "unknown"} and free.gate is Gate.OPEN
    assert "too few similar jobs" in free.hosts[0].reason
    other = {"figure": "skipped_share", "at_most": 0.5}  # which says nothing of its speed
    loose = fold_bench(ended(suite_of({"groups": [1]}, thresholds=[other]), "local:2x1", fleet))
    assert verdicts(loose) == {"local0": "unknown", "local1": "unknown"}
    bound = fold_bench(ended(suite_of({"groups": [1]}, thresholds=[PER_SLOT]), "local:2x1", fleet))
    assert verdicts(bound) == {"local0": "fit", "local1": "fit"}


def test_few_hosts_beside_an_earlier_bench() -> None:
    """What bench.json says is normal convicts where there are no peers."""
    suite = suite_of({"groups": [1], "repeats": 3})
    before = fold_bench(ended(suite_of({"groups": [1]}), "local:8x1", fleet))
    peers = [Peers.model_validate(each.model_dump()) for each in before.peers]
    stored = {
        Class(each.work, each.hosts): Baseline(each.step_seconds, each.deviation, each.jobs, stored=True)
        for each in peers
    }
    found = fold_bench(ended(suite, "local:1x1", lambda task: fleet(task, {"local0": 1.1}), stored=stored))
    assert verdicts(found) == {"local0": "slow"}


def test_a_threshold_that_a_host_misses_alone_is_its_own() -> None:
    def result(task: Task) -> Result:
        return made(task.hosts, 40.0 if task.hosts == ("local0",) else 60.0 * len(task.hosts))

    found = fold_bench(ended(suite_of({"groups": [1, 2]}, thresholds=[PER_SLOT]), "local:2x1", result))
    assert verdicts(found) == {"local0": "below", "local1": "fit"}
    (miss,) = found.hosts[0].misses
    assert miss == "digits-1x-001: samples_per_second is 40; it must be at least 50 per slot"
    assert found.gate is Gate.BAD


def test_a_threshold_that_a_group_misses_is_nobodys() -> None:
    def result(task: Task) -> Result:
        return made(task.hosts, 45.0 * len(task.hosts) if "local0" in task.hosts else 60.0 * len(task.hosts))

    suite = suite_of({"groups": [2]}, thresholds=[PER_SLOT])
    found = fold_bench(ended(suite, "local:8x1", result))
    named = verdicts(found)
    assert {named.pop(host) for host in ("local0", "local1")} <= {"unknown", "slow"}
    assert "below" not in named.values()
    missed = [job for job in found.jobs if job.misses]
    assert [job.hosts for job in missed] == [("local0", "local1")]


def test_what_is_not_known_meets_no_threshold() -> None:
    """And what has no fleet to be compared with misses none."""
    bounds = [{"figure": "mfu", "at_least": 0.3}, {"figure": "memory", "at_most": 1.1, "per": "fleet"}]
    found = fold_bench(ended(suite_of({"groups": [1]}, thresholds=bounds), "local:2x1", fleet))
    assert [job.misses for job in found.jobs] == [("mfu is not known; it must be at least 0.3",)] * 2
    assert set(verdicts(found).values()) == {"below"}


def test_thresholds_relative_to_the_fleet() -> None:
    bounds = [
        {"figure": "samples_per_second", "at_least": 0.98, "per": "fleet"},
        {"figure": "memory", "at_most": 1.2, "per": "fleet"},
    ]

    def result(task: Task) -> Result:
        found = fleet(task, {"local3": 1.05})
        more = found.memory.model_copy(update={"resident_peak": 700_000_000})
        return found.model_copy(update={"memory": more}) if "local1" in task.hosts else found

    found = fold_bench(ended(suite_of({"groups": [1]}, thresholds=bounds, slow=0.02), "local:8x1", result))
    by_host = {job.hosts[0]: job for job in found.jobs}
    assert by_host["local3"].misses[0].startswith("samples_per_second is 0.95")
    assert by_host["local1"].misses == ("memory is 1.4; it must be at most 1.2 of the fleet's",)
    assert all(not by_host[f"local{i}"].misses for i in (0, 2, 4, 5, 6, 7))
    named = verdicts(found)
    assert named["local1"] == "below" and named["local3"] in ("slow", "below")


def test_failures_of_a_host_and_of_bad_input() -> None:
    """One host fails whatever it takes part in; a job that was refused as bad input says nothing of hosts."""

    def result(task: Task) -> Result:
        if "local2" in task.hosts:
            what = "CUDA error: uncorrectable ECC error encountered"
            failure = Failure(what=what, host="local2", id="gpu_hardware")
            return made(task.hosts, status=State.FAILED, failure=failure)
        if task.id == "digits-1x-001":
            return made(task.hosts, status=State.FAILED, failure=Failure(what="bad", usage=True))
        return fleet(task)

    bench = ended(suite_of({"groups": [1, 2]}), "local:12x1", result)
    records = dict(bench.records)
    for task in bench.tasks:
        failure = (one := records[task.id].result) and one.failure
        if failure:
            told = {"reason": failure.what, "failed_host": failure.host, "usage": failure.usage}
            told |= {"failure": failure.id}
            records[task.id] = replace(records[task.id], **told)
    found = fold_bench(ended(bench.inputs.suite, "local:12x1", result, records=records))
    named = verdicts(found)
    assert named["local2"] == "failing" and "errors that name this host" in found.hosts[2].reason
    assert named.pop("local3") in ("fit", "unknown")  # no pair of its own was good
    assert {name for host, name in named.items() if host != "local2"} == {"fit"}
    jobs = {job.job: job for job in found.jobs}
    assert jobs["digits-1x-003"].failure == "gpu_hardware"
    assert jobs["digits-1x-001"].hosts == ("local0",) and not jobs["digits-1x-001"].judged


def test_a_host_that_cannot_be_reached_is_to_blame_alone() -> None:
    """Its partner had a good job with another."""

    def result(task: Task) -> Result:
        return fleet(task)

    suite = suite_of({"groups": [2], "repeats": 2})
    bench = ended(suite, "local:9x1", result)
    records = {
        task.id: recorded(
            task,
            None,
            reason="local2: cannot be reached: no route to host",
            failed_host="local2",
            failure="ssh_unreachable",
        )
        if "local2" in task.hosts
        else bench.records[task.id]
        for task in bench.tasks
    }
    found = fold_bench(ended(suite, "local:9x1", result, records=records))
    named = verdicts(found)
    assert named.pop("local2") == "failing"
    assert named.pop("local3") in ("fit", "unknown") and set(named.values()) == {"fit"}
    verdict = next(each for each in found.hosts if each.host == "local2")
    assert verdict.reason == "its jobs fail with errors that name this host"
    assert all(each.peers for each in verdict.evidence)  # none of its jobs was of it alone
    assert {job.failure for job in found.jobs if job.outcome == "failed"} == {"ssh_unreachable"}


def test_only_like_is_compared_with_like() -> None:
    """Another device, another recipe, another number of ranks: another work. Where it ran: the same."""
    task = Task("j", "digits", ("a",), 60.0)

    def work(overrides: list[str] | None = None, slots: int = 1, **record: Any) -> str:
        recipes = {"digits": load_recipe("digits", overrides or [])}
        records = {"j": recorded(task, made(["a"], slots=slots), **record)}
        return work_of(logs_of(records, recipes)["j"][0])

    same = work()
    assert same == work(["launch.connect_timeout=5", "env.A=b"])
    assert same != work(devices={"a": "NVIDIA H100"})
    assert same != work(["train.max_steps=5"])
    assert same != work(slots=2)
    lead = Task("w", "digits", ("a",), 60.0, warm_up=True)
    assert logs_of({"w": recorded(lead, made(["a"]))}, {"digits": load_recipe("digits")}) == {}


def test_figures_have_the_names_of_thresholds() -> None:
    task = Task("j", "digits", ("a",), 60.0)
    flops = Flops(model_per_second=1e12, hardware_per_second=1e12, mfu=0.4)
    quality = Quality(questions=8, exact_match=0.5, execution_match=0.75)
    full = made(["a"], evaluation_loss=0.4, perplexity=1.5, flops=flops, quality=quality)
    figures = figures_of(recorded(task, full)) | figures_of(recorded(task, fabric_result(["a", "b"], {})))
    assert set(figures) == set(FIGURES)
    assert (figures["exact_match"], figures["perplexity"], figures["busbw"]) == (0.5, 1.5, 2e9)
    assert all(figure_words(name, value) for name, value in figures.items())
    assert figures_of(recorded(task, None)) == {"seconds": 12.0}
    zero = made(["a"], evaluation_loss=None, loss_final=float("nan"))
    assert "evaluation_loss" not in figures_of(recorded(task, zero))
    assert "loss" not in figures_of(recorded(task, zero))


def test_the_fabrics_products_tell_of_each_host_by_itself() -> None:
    """One job on all hosts is enough to name the one whose products are slow."""
    suite = suite_of({"recipe": "fabric", "groups": ["all"], "repeats": 3})
    found = fold_bench(
        ended(suite, "local:8x1", lambda task: fabric_result(list(task.hosts), {"local4": 1.2}))
    )
    assert verdicts(found).pop("local4") == "slow"
    assert {name for host, name in verdicts(found).items() if host != "local4"} <= {"fit", "unknown"}
    singles = suite_of({"recipe": "fabric", "groups": [1]})
    by_itself = fold_bench(
        ended(singles, "local:8x1", lambda task: fabric_result(list(task.hosts), {"local4": 1.2}))
    )
    slower = {job.hosts[0]: job.slower for job in by_itself.jobs}
    assert slower.pop("local4") == pytest.approx(0.2, abs=0.01)
    assert all(each == pytest.approx(0, abs=0.01) for each in slower.values())
    job = found.jobs[0]
    assert job.samples_per_second is None and job.figures["matmul"] == pytest.approx(1e12 / 1.2, rel=0.01)
    assert all(each.samples_per_second is None for each in found.peers)
