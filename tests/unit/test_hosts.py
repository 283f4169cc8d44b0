"""Which of the hosts given a job runs on: the first so many, or as many as train fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import RecipeError, UsageError
from muster.core.inventory import Host, parse_hosts
from muster.core.job import Job, place
from muster.core.recipes import load_recipe
from muster.inputs.read import Inputs, check, read_recipe
from muster.planner.decide import Chosen, Decided
from muster.planner.document import Candidate, Plan
from muster.planner.hosts import first, numbers, pick
from muster.planner.machines import MachineModel, UserFigures, by_speed, machine_model
from muster.planner.memory.fit import Need, Shortage
from muster.planner.plan import settle
from muster.planner.time.steptime import Calibration, Step
from muster.planner.ways import TrainingWay
from tests.support import plan

pytestmark = pytest.mark.usefixtures("nothing_learned")

HOSTS = parse_hosts("node[1-4]").hosts
OPEN = ("engine.zero=auto", "train.gradient_checkpointing=auto")


Trial = tuple[tuple[Host, ...], Decided | RecipeError]


def picked(trials: list[Trial], given: tuple[Host, ...]) -> tuple[Decided, Chosen]:
    taken = pick(trials, given)
    assert taken.chosen is not None
    return taken, taken.chosen


def trial(count: int, speed: float | None, *, fits: bool = True) -> tuple[tuple[Host, ...], Decided]:
    """A job whose best way on so many hosts is so fast."""
    recipe = load_recipe("digits")
    best = Candidate(
        changes={}, fits=fits, memory=10**9, samples_per_second=speed, chosen=True, why="the only way"
    )
    places = place([(host, 1) for host in HOSTS[:count]])
    job = Job("", "ssh", places, Batch(64 // count, 1, 64), "fp32", "cuda", {})
    refused = None if fits else UsageError("too little memory", where="memory")
    step = Step(64 / speed, 0, 0, 0, 0, samples=64) if speed else None
    lacks = None if fits else Shortage("device", 2, 1)
    way = TrainingWay(recipe, job.batch, needed=Need({"all": 10**9}, {}), lacks=lacks, step=step)
    decided = Decided(job, way, (1,) * count, (None,) * count, candidates=(best,), refused=refused)
    return HOSTS[:count], decided


@pytest.mark.parametrize(
    ("speeds", "taken"),
    [
        ([100, 147, 152, 120], 3),  # 147 is less than 98 % of 152
        ([100, 150, 152, 153], 2),  # 150 is 98.04 % of 153: more hosts that gain little stay idle
        ([100, 100], 1),
    ],
)
def test_the_fewest_hosts_that_are_as_good_as_the_fastest(speeds: list[float], taken: int) -> None:
    given = HOSTS[: len(speeds)]
    made, chosen = picked([trial(count, speed) for count, speed in enumerate(speeds, 1)], given)
    assert (len(made.slots), chosen.decision.value, chosen.hosts) == (taken, taken, given[:taken])
    assert chosen.idle == given[taken:]
    assert [row.changes["launch.hosts"] for row in chosen.candidates if row.chosen] == [str(taken)]


def test_where_it_does_not_fit_speed_counts_for_nothing() -> None:
    _, chosen = picked([trial(1, 500, fits=False), trial(2, 80), trial(3, 100)], HOSTS[:3])
    assert len(chosen.hosts) == 3
    assert "1 host does not fit" in chosen.why
    hosts, tight = trial(1, 500, fits=False)
    forced = (hosts, replace(tight, refused=None))  # force=true refuses nothing
    _, chosen = picked([forced, trial(2, 80)], HOSTS[:2])
    assert len(chosen.hosts) == 2


def test_without_speeds_all_that_work() -> None:
    cannot = (HOSTS, RecipeError("a global batch of 6", where="batch.global"))
    taken, chosen = picked([trial(1, 10), trial(2, None), trial(3, None), cannot], HOSTS)
    assert (len(taken.slots), chosen.timed) == (3, False)
    assert chosen.why == "the largest number that works: their speed is unknown"
    assert taken.chosen.candidates[3].why == "cannot: a global batch of 6"
    _, chosen = picked([trial(1, None), trial(2, None)], HOSTS[:2])
    assert chosen.why.startswith("all of them")


def test_nothing_works() -> None:
    errors = [RecipeError(f"{n} ranks", where="batch.global") for n in (1, 2)]
    with pytest.raises(RecipeError, match="2 ranks"):
        pick([(HOSTS[: i + 1], error) for i, error in enumerate(errors)], HOSTS[:2])
    taken, chosen = picked([trial(1, 5, fits=False), trial(2, 4, fits=False)], HOSTS[:2])
    assert len(taken.slots) == 2
    assert taken.refused is not None
    assert chosen.why == "it does not fit on any number of them"


def test_the_first_so_many() -> None:
    chosen = first(HOSTS, 3)
    assert [host.name for host in chosen.hosts] == ["node1", "node2", "node3"]
    assert chosen.decision.why == "as the recipe says; node4 stays idle"


@pytest.mark.parametrize(
    ("overrides", "hosts", "expected"),
    [
        ([], 12, list(range(1, 13))),
        (["batch.global=7"], 4, [1, 2, 3, 4]),  # few: that 2 do not share 7 samples is worth a line
        (["batch.global=1000"], 64, [1, 2, 4, 5, 8, 10, 20, 25, 40, 50]),  # all that divide it
        (["batch.global=512", "batch.micro=8", "batch.accumulation=1"], 100, [64]),
        (["batch.global=null", "batch.split=[9,7]"], 20, [2]),
        (["batch.global=101", "batch.micro=3"], 20, [20]),  # none: the most say why
        # Powers of two, all, and 5 of the widest gaps' middles: 45 = sqrt(32 * 64) and so on.
        (["batch.global=null"], 64, [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64]),
    ],
)
def test_numbers_of_hosts_to_try(overrides: list[str], hosts: int, expected: list[int]) -> None:
    recipe = load_recipe("digits", ["batch.accumulation=null", *overrides])
    assert numbers(recipe, [1] * hosts) == expected


def test_thousands_of_hosts_are_few_numbers() -> None:
    found = numbers(load_recipe("digits", ["batch.global=null"]), [8] * 5000)
    assert (found[0], found[-1]) == (1, 5000)
    assert len(found) == 14  # 13 powers of two, and all
    assert found == sorted(set(found))


# --- on machines, real or not ----------------------------------------------------------------------------


def rate(made: Plan) -> float:
    assert made.time is not None
    return made.time.samples_per_second


def test_a_slow_network_leaves_hosts_idle() -> None:
    """By hand: 2 hosts of 32 samples each send the 4 bytes of 60.5 M gradients once per step around a ring
    (half of them, twice), which takes 1.9 s at 125 MB/s: fewer than 34 samples/s. One host waits for nobody,
    and does better where 32 samples take it less than 0.9 s."""
    slow = ("launch.hosts=auto", "precision=fp32")
    made = plan("a100-40gb:1x4,1Gbit", *slow, recipe="text2sql-t5-small-zero1")
    assert (made.hosts, made.ranks, len(made.idle)) == (1, 1, 3)
    rows = {row.changes["launch.hosts"]: row for row in made.candidates}
    assert set(rows) == {"1", "2", "3", "4"}
    assert made.parameters is not None
    wire = 4 * made.parameters / 125e6
    assert (rows["2"].samples_per_second or 0) < 64 / wire < 34 < rate(made)
    assert all("slower" in rows[name].why for name in "234")
    assert [point.hosts for point in made.scaling] == [1, 2, 3, 4]  # what all would take is shown
    assert made.time is not None
    assert made.scaling[0].step == pytest.approx(made.time.step)


@pytest.mark.parametrize("link", ["1Gbit", "25Gbit", "400Gbit-ib"])
def test_together_with_everything_else_that_is_open(link: str) -> None:
    """Held against a plan for each number of hosts by itself."""
    machines = f"a100-80gb:8x4,{link}"
    model = ("model.name=opt-2.7b", *OPEN)
    apart = {count: plan(f"a100-80gb:8x{count},{link}", *model) for count in (1, 2, 3, 4)}
    made = plan(machines, *model, "launch.hosts=auto")
    top = max(rate(each) for each in apart.values())
    assert rate(made) == pytest.approx(rate(apart[made.hosts]))
    assert rate(made) >= 0.98 * top
    assert all(rate(apart[fewer]) < 0.98 * top for fewer in range(1, made.hosts))
    assert (made.engine, made.batch) == (apart[made.hosts].engine, apart[made.hosts].batch)
    ways = [row for row in made.candidates if row.changes["launch.hosts"] == str(made.hosts)]
    assert len(ways) == 8  # stages, with and without recomputation
    assert len(made.candidates) == 8 + 3  # and the best of each other number
    assert sum(row.chosen for row in made.candidates) == 1


def test_a_number_is_as_if_no_more_were_given() -> None:
    few = plan("a100-80gb:8x8,100Gbit", "model.name=opt-1.3b", "launch.hosts=2")
    same = plan("a100-80gb:8x2,100Gbit", "model.name=opt-1.3b")
    assert few.model_copy(update={"idle": [], "decisions": [], "machines": ""}) == same.model_copy(
        update={"decisions": [], "machines": ""}
    )
    assert len(few.idle) == 6
    assert few.decisions[0]["value"] == 2


def about(gpu: str, megabits: int | None = 10_000, count: int = 1) -> dict[str, Any]:
    gpus = [{"name": gpu, "memory_total": 16 * 10**9, "capability": [7, 0]}] * count
    return {"gpus": gpus, "cores": 8, "memory_total": 64 * 10**9, "network": {"megabits": megabits}}


def settled(hosts: str, facts: Mapping[str, Mapping[str, Any]], *overrides: str) -> tuple[Inputs, Decided]:
    recipe = read_recipe("text2sql-t5-small", ["precision=fp32", "launch.hosts=auto", *overrides])
    inputs = check(recipe, parse_hosts(hosts))
    ground = machine_model(inputs, facts, UserFigures(), Calibration())
    return inputs, settle(inputs, ground, None)


V100 = "Tesla V100-SXM2-16GB"


def test_of_unlike_hosts_the_fastest_are_taken() -> None:
    facts = {"slow": about("Tesla P4"), "a": about(V100), "b": about(V100)}
    _, found = settled("slow,a,b", facts, "batch.micro=64", "batch.accumulation=8")
    assert found.chosen is not None
    assert [host.name for host in found.chosen.hosts] == ["a", "b"]
    assert [host.name for host in found.chosen.idle] == ["slow"]
    assert found.chosen.skips
    assert "the fastest hosts are a,b" in found.chosen.why
    assert found.recipe.launch.hosts == 2
    assert found.reach == 2  # the curve is not of the third, which is unlike them


def test_hosts_are_taken_by_speed_link_and_as_given() -> None:
    facts = {
        "p4": about("Tesla P4"), "v1": about(V100, 1000), "v2": about(V100), "v3": about(V100),
        "odd": about("A card of tomorrow"),
    }  # fmt: skip
    hosts = parse_hosts("odd,p4,v1,v2,v3").hosts
    assert [host.name for host in by_speed(hosts, facts, "auto", {})] == ["v2", "v3", "v1", "p4", "odd"]
    cores = {name: {"cores": count} for name, count in (("x", 8), ("y", 32), ("z", 8))}
    assert [host.name for host in by_speed(parse_hosts("x,y,z").hosts, cores, "auto", {})] == ["y", "x", "z"]
    assert [host.name for host in by_speed([Host("x", 1), Host("y", 8)], cores, "cpu", {})] == ["x", "y"]


@pytest.mark.parametrize("unknown", [about("A card of tomorrow"), about(V100, None)])
def test_a_speed_or_a_link_that_nobody_knows_keeps_all_hosts(unknown: dict[str, Any]) -> None:
    inputs, found = settled("a,b", {"a": about(V100), "b": unknown})
    assert found.chosen is not None
    assert found.chosen.hosts == inputs.inventory.hosts
    assert "their speed is unknown" in found.chosen.why


def test_each_trace_is_asked_for_once() -> None:
    asked: list[tuple[bool, int]] = []

    def tracer(recipe: Any, precision: str, device: str, ranks: int) -> None:
        asked.append((recipe.train.checkpointing, ranks))

    recipe = read_recipe("opt-benchmark", [*OPEN, "launch.hosts=auto", "model.name=opt-125m"])
    inputs = check(recipe, parse_hosts("node[1-3]:1"))
    facts = {f"node{i}": about("NVIDIA A100-SXM4-80GB") for i in (1, 2, 3)}
    settle(inputs, MachineModel(facts, inputs.inventory.hosts, Calibration()), tracer)
    assert asked == [(False, 1), (True, 1), (False, 2), (True, 2)]  # one rank, and several
