"""Jobs that results ask for: waves of adaptive entries, and warm-ups in place of failed ones. `muster train`
is played."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.benches.bench import all_alike, continue_bench, dry_run
from muster.benches.folder import BenchFolder
from muster.benches.inputs import read_bench
from muster.benches.schedule import wave_tasks
from muster.cli.views.benches import print_bench
from muster.core.errors import UsageError
from muster.core.result import Failure
from muster.core.state import State
from muster.judging.document import Gate
from tests.shell import FakeShell
from tests.unit.benches import diary_of, fabric_result, inputs_of, made, play, recorded, write_suite

ADAPTIVE = {"groups": "adaptive"}
REFUSED = {"error": {"message": "data.path: no such folder", "hint": "give one", "host": None}}


def ok(hosts: Sequence[str], slower: float = 1.0) -> tuple[float, int, Any]:
    """A healthy job, or one that is so much slower, at once."""
    jitter = 1 + 0.0005 * (sum(map(ord, "".join(hosts))) % 5)
    return 0.0, 0, made(hosts, 100.0 * len(hosts) * jitter / slower)


def lost(hosts: Sequence[str], host: str) -> tuple[float, int, Any]:
    failure = Failure(what="cannot be reached: no route to host", host=host, id="ssh_unreachable")
    return 0.0, 1, made(hosts, status=State.FAILED, failure=failure)


def test_groups_chosen_from_results(tmp_path: Path) -> None:
    """A slow host of eight is found in waves, which are written down as they are chosen."""

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        jitter = 1 + 0.0005 * (sum(map(ord, "".join(hosts))) % 5)
        return 0.0, 0, made(hosts, (80.0 if "local3" in hosts else 100.0) * len(hosts) * jitter)

    inputs = inputs_of(tmp_path, "local:8x1", {"groups": "adaptive"}, waves=6)
    assert dry_run(inputs, BenchFolder(tmp_path / "x"))["adaptive"] == ["digits"]
    found, folder = play(tmp_path, inputs, plays)
    assert found.complete
    assert {each.host: each.condition for each in found.hosts if each.condition != "fit"} == {
        "local3": "slow"
    }
    waves = {job.wave for job in found.jobs}
    assert len(waves) > 1 and None not in waves
    assert len(folder.read_schedule()["jobs"]) == len(found.jobs)
    FakeShell().use()
    again = continue_bench(folder)
    assert again.hosts == found.hosts


def test_waves_end_where_every_job_is_refused(tmp_path: Path) -> None:
    found, _ = play(
        tmp_path, inputs_of(tmp_path, "local:8x1", ADAPTIVE), lambda job, hosts: (0.0, 2, REFUSED)
    )
    assert {job.wave for job in found.jobs} == {1} and len(found.jobs) == 4
    assert "digits: all jobs of wave 1 ended the same way: data.path: no such folder" in found.notes
    assert found.complete and found.gate is Gate.BAD


def test_waves_end_where_every_job_is_too_late(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, "local:8x1", ADAPTIVE)
    found, _ = play(tmp_path, inputs, lambda job, hosts: (0.0, 1, made(hosts, status=State.TIMEOUT)))
    assert {job.wave for job in found.jobs} == {1} and found.outcomes["timeout"] == 4
    assert any("all jobs of wave 1 ended the same way: timeout: not over" in note for note in found.notes)


def test_one_dead_host_does_not_end_the_waves(tmp_path: Path) -> None:
    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return lost(hosts, "local5") if "local5" in hosts else ok(hosts)

    found, _ = play(tmp_path, inputs_of(tmp_path, "local:8x1", ADAPTIVE), plays)
    assert max(job.wave or 0 for job in found.jobs) > 1
    assert not any("the same way" in note for note in found.notes)
    assert {each.host: each.condition for each in found.hosts if each.condition != "fit"} == {
        "local5": "failing"
    }


def test_what_was_refused_once_is_not_asked_again(tmp_path: Path) -> None:
    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return (0.0, 2, REFUSED) if hosts == ["local0", "local1"] else ok(hosts)

    found, _ = play(tmp_path, inputs_of(tmp_path, "local:8x1", ADAPTIVE), plays)
    assert [job.hosts for job in found.jobs].count(("local0", "local1")) == 1
    assert max(job.wave or 0 for job in found.jobs) > 1 and found.complete


def test_alike_is_what_differs_in_hosts_and_numbers_alone() -> None:
    tasks = wave_tasks("e", 1, [["alpha"], ["beta"]], 60.0)

    def told(*reasons: str | None, **more: Any) -> str | None:
        records = [recorded(task, None, reason=why, **more) for task, why in zip(tasks, reasons, strict=True)]
        return all_alike(records, 1)

    assert told("alpha: rank 0: no file", "beta: rank 1: no file") == "alpha: rank 0: no file"
    assert told("no file", "no memory") is None
    assert told("no file", "no memory", failure="host_oom_killed") == "no file"  # of one id in the table
    assert told("no file", "no memory", usage=True) == "no file"
    assert told(None, None, outcome=State.TIMEOUT) == "no reason is known"
    assert all_alike([], 0) is None
    second = wave_tasks("e", 2, [["beta"]], 60.0)
    done = {"e-wave1-001": recorded(tasks[0], made(["alpha"])), "e-wave1-002": recorded(tasks[1], None)}
    later = {**done, second[0].id: recorded(second[0], None)}
    assert all_alike(later.values(), 2) is None  # a job of the entry did well
    refused = {**done, second[0].id: recorded(second[0], None, usage=True, reason="no")}
    assert all_alike(refused.values(), 2) == "no"


def test_groups_whose_batch_cannot_be_divided_are_not_asked_for(tmp_path: Path) -> None:
    """A global batch of 64 is for 2 ranks and 4, not for 3."""
    inputs = inputs_of(tmp_path, "n[1-2]:1,n[3-4]:2,n[5-6]:1", ADAPTIVE)
    found, _ = play(tmp_path, inputs, lambda job, hosts: ok(hosts))
    small = {"n1", "n2", "n5", "n6"}
    assert max(job.wave or 0 for job in found.jobs) > 1 and found.complete
    assert all(len(small & set(job.hosts)) in (0, len(job.hosts)) for job in found.jobs)
    assert any("digits, 2 hosts: a global batch of 64 cannot be made of" in n for n in found.notes)


def test_the_fabric_is_measured_between_hosts(tmp_path: Path) -> None:
    """One host alone would tell nothing; of trainings, few hosts begin alone."""
    fabric = inputs_of(tmp_path, "local:3x1", {**ADAPTIVE, "recipe": "fabric"})
    found, _ = play(tmp_path, fabric, lambda job, hosts: (0.0, 0, fabric_result(list(hosts), {})))
    assert {len(job.hosts) for job in found.jobs} == {2} and found.complete
    (again := tmp_path / "again").mkdir()
    found, _ = play(again, inputs_of(again, "local:3x1", ADAPTIVE), lambda job, hosts: ok(hosts))
    assert {len(job.hosts) for job in found.jobs if job.wave == 1} == {1}


@pytest.mark.parametrize("kind", ["uplink", "switch"])
def test_a_bad_switch_is_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the suite says who is behind which: jobs through it are slow, and none of its hosts is."""
    behind = {"local4", "local5", "local6", "local7"}

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        inside = behind & set(hosts)
        through = inside and (len(hosts) > 1 if kind == "switch" else inside != set(hosts))
        return ok(hosts, 1.2 if through else 1.0)

    switches = {"leaf0": "local[0-3]", "leaf1": "local[4-7]", "leaf2": "local[8-11]"}
    inputs = inputs_of(tmp_path, "local:12x1", ADAPTIVE, switches=switches)
    found, folder = play(tmp_path, inputs, plays)
    (named,) = found.switches
    assert (named.switch, named.kind, named.condition) == ("leaf1", kind, "slow")
    assert set(named.hosts) == behind and named.slower == pytest.approx(0.2, abs=0.02)
    assert not any(each.condition == "slow" for each in found.hosts) and not found.links
    assert found.model_copy(update={"switches": []}).gate is not Gate.BAD and found.gate is Gate.BAD
    assert json.loads(folder.result.read_text())["switches"][0]["switch"] == "leaf1"
    print_bench(found, every=False)
    said = capsys.readouterr().out
    assert "leaf1 (local[4-7])" in said and named.reason in said
    FakeShell().use()
    assert continue_bench(folder).switches == found.switches


@pytest.mark.parametrize(
    ("switches", "says"),
    [
        ({"leaf0": "local[0-2]"}, "local2: switches.leaf0: is not among the hosts"),
        ({"leaf0": "local0", "leaf1": "local[0-1]"}, "local0: switches.leaf1: is behind leaf0 already"),
        ({"leaf0": "local["}, "switches.leaf0: "),
        ({"leaf0": ""}, "switches.leaf0: "),
        ({"leaf0": [3]}, "switches.leaf0: input should be a valid string"),
    ],
)
def test_switches_that_cannot_be(switches: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = write_suite(tmp_path, {"jobs": [{"recipe": "digits"}], "switches": switches})
    with pytest.raises(UsageError) as refused:
        read_bench(str(path), "local:2x1")
    assert says in str(refused.value)


def test_hosts_behind_no_switch_and_hosts_that_were_dropped(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {"jobs": [{"recipe": "digits"}], "switches": {"leaf0": "local[0-1]"}})
    inputs = read_bench(str(path), "local:4x1")
    assert inputs.topology.switches == (("leaf0", ("local0", "local1")),)
    assert inputs.topology.behind == (0, 0, -1, -1)
    assert inputs.on(inputs.inventory.hosts[1:]).topology.switches == (("leaf0", ("local1",)),)
    assert inputs.on(inputs.inventory.hosts[2:]).topology.switches == ()


WARM = {"groups": [1], "warm_up": True}


def test_a_failed_warm_up_is_made_again_on_other_hosts(tmp_path: Path) -> None:
    """The first host is dead: the others wait for a warm-up that fills the caches."""

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return (
            lost(hosts, "local0") if "local0" in hosts else (0.3 if "warmup" in job else 0.0, *ok(hosts)[1:])
        )

    found, folder = play(tmp_path, inputs_of(tmp_path, "local:4x1", WARM), plays)
    played = {job: (hosts, begun, over) for job, hosts, begun, over in diary_of(tmp_path / "diary")}
    assert played["digits-warmup"][0] == ["local0"] and played["digits-warmup2"][0] == ["local1"]
    filled = played["digits-warmup2"][2]
    assert all(begun >= filled for job, (_, begun, _) in played.items() if "warmup" not in job)
    assert len(played) == len(found.jobs) == 6 and found.complete
    assert [job.warm_up for job in found.jobs] == [True, True, False, False, False, False]
    FakeShell().use()
    again = continue_bench(folder)  # which starts nothing
    assert again.jobs == found.jobs


def test_a_warm_up_that_is_refused_would_be_refused_elsewhere(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, "local:4x1", WARM)
    found, _ = play(tmp_path, inputs, lambda job, hosts: (0.0, 2, REFUSED))
    assert [job.job for job in found.jobs if job.warm_up] == ["digits-warmup"]


def test_three_warm_ups_are_enough(tmp_path: Path) -> None:
    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return lost(hosts, hosts[0]) if "warmup" in job else ok(hosts)

    found, folder = play(tmp_path, inputs_of(tmp_path, "local:5x1", WARM), plays)
    assert [job.hosts[0] for job in found.jobs if job.warm_up] == ["local0", "local1", "local2"]
    assert sum(job.outcome == "succeeded" for job in found.jobs) == 5
    note = "digits: each of 3 warm-ups failed, so its jobs may have found empty caches"
    assert found.notes.count(note) == 1
    FakeShell().use()
    assert continue_bench(folder).notes.count(note) == 1


def test_a_warm_up_for_groups_of_all_and_of_one(tmp_path: Path) -> None:
    """The first group has nothing beside it; those of one do."""
    inputs = inputs_of(tmp_path, "local:3x1", {**WARM, "groups": ["all", 1]})
    lead = inputs.schedule.tasks[0]
    assert lead.warm_up and len(lead.hosts) == 1
    assert all(task.after == (lead.id,) for task in inputs.schedule.tasks[1:])
    alone = inputs_of(tmp_path, "local:3x1", {**WARM, "groups": ["all", 2]})
    assert not any(task.warm_up for task in alone.schedule.tasks)  # 1-2, 2-3 and all: never two at once
