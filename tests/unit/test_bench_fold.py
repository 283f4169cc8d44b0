"""From finished jobs to the document: verdicts and thresholds."""

from __future__ import annotations

from typing import Any

from muster.benches.logs import figures_of, logs_of
from muster.benches.schedule import Task
from muster.benches.suite import FIGURES
from muster.cli.views.benches import figure_words
from muster.core.recipes import load_recipe
from muster.core.result import Flops, Quality, Result
from muster.judging.joblogs import work_of
from tests.unit.benches import ended, fabric_result, made, recorded, suite_of

PER_SLOT = {"figure": "samples_per_second", "at_least": 50, "per": "slot"}


def jitter(task: Task) -> float:
    """A healthy job's own: up to 0.2 % either way, the same every time."""
    return 1 + 0.0005 * (sum(map(ord, task.id + "".join(task.hosts))) % 9 - 4)


def fleet(task: Task, slow: dict[str, float] | None = None) -> Result:
    worst = max((slow or {}).get(host, 1.0) for host in task.hosts)
    return made(task.hosts, 100.0 * len(task.hosts) * jitter(task) / worst)


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


def test_a_group_that_misses_a_threshold_leaves_its_hosts_in_doubt() -> None:
    """Beside others they are fit: that one of them is bad is as unlikely as that."""
    suite = suite_of({"groups": [1, 2], "repeats": 3}, thresholds=[PER_SLOT])
    found = ended(
        suite, "local:8x1", lambda task: fleet(task, {host: len(task.hosts) ** 1.2 for host in task.hosts})
    )
    assert {each.condition for each in found.hosts} == {"unknown"}
    assert all(each.confidence < 0.01 and each.at_most is not None for each in found.hosts)


def test_a_host_that_nothing_is_compared_with_is_fit_by_its_thresholds() -> None:
    (host,) = ended(suite_of({"groups": [1]}, thresholds=[PER_SLOT]), "local:1x1", fleet).hosts
    assert (host.condition, host.confidence, host.at_most) == ("fit", 1.0, None)
    (host,) = ended(suite_of({"groups": [1]}), "local:1x1", fleet).hosts
    assert (host.condition, host.confidence) == ("unknown", 0.0)


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
