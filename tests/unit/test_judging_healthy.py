"""What is normal, by the jobs that the verdicts leave as healthy; and noise that is nothing but noise."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from muster.judging import JobClass, Judgement, Observation, Topology, judge, localise
from muster.judging.document import Gate
from muster.judging.logs import judge as judge_logs

TWELVE = tuple(f"n{number:02d}" for number in range(12))


def fleet(
    seed: int,
    noise: float = 0.01,
    slow: Mapping[str, float] | None = None,
    *,
    alone: int = 1,
    pairs: int = 2,
    dated: bool = True,
) -> list[Observation]:
    """Jobs of twelve hosts alone, then in pairs that are drawn anew."""
    draw, jobs = random.Random(seed), list[Observation]()
    for wave in range(alone + pairs):
        order, size = draw.sample(TWELVE, 12), 1 if wave < alone else 2
        for first in range(0, 12, size):
            group = tuple(sorted(order[first : first + size]))
            worst = max((slow or {}).get(host, 0.0) for host in group)
            seconds = (1 + worst) * math.exp(draw.gauss(0, noise))
            moment = f"{wave}" if dated else ""
            jobs.append(Observation(f"{wave}-{first}", group, seconds, work="w", moment=moment))
    return jobs


def judged(jobs: list[Observation]) -> Judgement:
    return judge(jobs, Topology(TWELVE))


def test_normal_is_the_median_of_healthy_jobs_and_not_their_fastest() -> None:
    """Of the pairs of 80 fleets, five or six of them healthy; it was 0.2 % to the fast side."""
    errors = [
        math.log(judged(fleet(seed, slow={"n03": 0.15})).baselines[JobClass("w", 2)].seconds)
        for seed in range(80)
    ]
    assert abs(statistics.mean(errors)) < 2.5 * statistics.stdev(errors) / math.sqrt(80)


def test_what_is_shown_is_beside_what_is_printed_as_normal() -> None:
    for seed in range(12):
        jobs = fleet(seed, slow={"n03": 0.15}, alone=2, pairs=1)
        found, times = judged(jobs), {each.job: each.seconds for each in jobs}
        undrifted = {each.job: each.seconds for each in localise(jobs, Topology(TWELVE)).observations}
        (verdict,) = (each for each in found.hosts if each.host == "n03")
        assert verdict.condition == "slow" and verdict.slower == pytest.approx(0.15, abs=0.03)
        for one in verdict.evidence:
            normal = found.baselines[JobClass(one.work, 1 + len(one.peers))].seconds
            assert one.slower == pytest.approx((undrifted[one.job] or 0.0) / normal - 1, abs=1e-4), times


@pytest.mark.parametrize(
    ("noise", "alone", "pairs"), [(0.01, 2, 1), (0.02, 1, 0), (0.02, 1, 2), (0.015, 2, 1)]
)
def test_plain_noise_is_no_drift_no_other_hardware_and_no_fault(noise: float, alone: int, pairs: int) -> None:
    fit = 0
    for seed in range(15):
        jobs = fleet(seed, noise, alone=alone, pairs=pairs)
        found = judged(jobs)
        assert not (found.accused or found.alike or localise(jobs, Topology(TWELVE)).drifts)
        fit += sum(each.condition in ("fit", "differs") for each in found.hosts)
    assert fit >= 0.92 * 15 * 12  # 0.79 to 0.9 before


def test_slow_at_times_is_still_said_where_jobs_stand_out() -> None:
    draw, jobs = random.Random(4), list[Observation]()
    for wave in range(4):
        for host in TWELVE:
            seconds = math.exp(draw.gauss(0, 0.003)) * (1.1 if draw.random() < 0.25 else 1.0)
            jobs.append(Observation(f"{wave}{host}", (host,), seconds, work="w", moment=f"{wave}"))
    assert set(localise(jobs, Topology(TWELVE)).drifts) == {"w"}


def test_half_of_the_hosts_that_are_slow_are_no_noise() -> None:
    """Of hosts that ran once: a gap parts them, and none of the slow half passes."""
    for seed in range(10):
        slow = dict.fromkeys(TWELVE[:6], 0.08)
        found = judged(fleet(seed, 0.005, slow, alone=1, pairs=0))
        conditions = {each.host: each.condition for each in found.hosts}
        assert {conditions[host] for host in slow}.isdisjoint(("fit", "differs"))


# ---- logs that do not say what they trained ---------------------------------------------------------------


def olmo(path: Path, hosts: tuple[str, ...], each: float, tokens: int, hour: int = 14) -> None:
    lines = [
        f"2031-07-04 {hour}:12:35.000\t{host}:0\tolmo_core.distributed.utils:151\tINFO\tinitialized"
        for host in hosts
    ]
    for number in range(1, 41):
        at = f"{hour}:{20 + int(number * each) // 60:02d}:{number * each % 60:06.3f}"
        head = f"2031-07-04 {at}\t{hosts[0]}:0\tolmo_core.train.callbacks.console_logger:114\tINFO\t"
        lines += [f"{head}[step={number}/40,epoch=1]", f"    throughput/total tokens={tokens * number:,}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_pairs_of_an_unknown_batch_are_compared_with_pairs(tmp_path: Path) -> None:
    draw = random.Random(1)
    for number, host in enumerate(TWELVE):
        olmo(tmp_path / "1" / f"job-{number}.log", (host,), draw.gauss(2, 0.01), 262_144)
    for number in range(0, 12, 2):
        olmo(
            tmp_path / "2" / f"job-{number}.log", TWELVE[number : number + 2], draw.gauss(2.1, 0.01), 524_288
        )
    found = judge_logs(tmp_path)
    assert sorted((each.hosts, each.jobs) for each in found.peers) == [(1, 12), (2, 6)]
    assert found.gate is Gate.FIT


def test_jobs_at_the_same_time_differ_by_less_than_all(tmp_path: Path) -> None:
    draw = random.Random(1)
    for hour in (14, 15, 16):
        for number, host in enumerate(TWELVE):
            each = draw.gauss(2, 0.008) * (1 + 0.02 * (hour - 14))
            olmo(tmp_path / f"{hour - 13}" / f"job-{number}.log", (host,), each, 262_144, hour)
    (peers,) = judge_logs(tmp_path).peers
    assert peers.deviation > 0.012 and 0.003 < (peers.side_by_side or 1.0) < 0.007


def test_a_batch_that_varies_a_little_is_of_one_work(tmp_path: Path) -> None:
    """fairseq fills batches with tokens: their samples differ from job to job."""
    draw = random.Random(1)
    for host in TWELVE:
        lines = [f"{host}:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.6<0>"]
        wall, pace, batch = 30.0, draw.gauss(1.2, 0.004), draw.gauss(256, 1)
        for step in range(5, 205, 5):
            wall += 5 * pace * batch / 256
            lines.append(
                f"2031-10-25 09:13:57 | INFO | train_inner | epoch 001: {step:6d} / 200 loss=8.5, "
                f"wps=2560.2, ups=0.34, wpb=7601.3, bsz={batch:.1f}, num_updates={step}, "
                f"lr=1e-05, wall={wall:.3f}"
            )
        (tmp_path / f"w1_{host}.log").write_text("\n".join(lines) + "\n")
    (peers,) = judge_logs(tmp_path).peers
    assert peers.jobs == 12 and peers.deviation < 0.01


def test_a_list_in_a_column_of_hosts_is_several(tmp_path: Path) -> None:
    rows = [f"{step},{2 * step + step * step % 3 / 100},w2-[06-07]" for step in range(1, 40)]
    (tmp_path / "a.csv").write_text("\n".join(["it,wall,node", *rows]) + "\n")
    found = judge_logs(tmp_path, columns=["step=it", "elapsed=wall", "host=node"])
    assert [job.hosts for job in found.jobs] == [("w2-06", "w2-07")]
