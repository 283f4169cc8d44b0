"""Logs of 64 real hosts of 8 H100, which are not part of the project: read where they lie beside it."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

import pytest

from muster.cli.judge import _print
from muster.judging import Settings
from muster.judging.document import Gate
from muster.judging.joblogs import judged
from muster.judging.logs import judge
from muster.readers.base import JobLog
from muster.runs.explain import explain_stream
from muster.store.logfiles import find_logs, members_of
from tests.unit.logs import read_log

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LOGS = DATA / "real_logs" / "opt-350m-h100-64nodes.tar.xz"
pytestmark = pytest.mark.skipif(not LOGS.is_file(), reason="no ../shared/data/real_logs beside the project")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
HOSTS = [f"ml-512-node-{number:03d}" for number in range(1, 65)]


def test_all_are_read_and_every_host_is_fit() -> None:
    """As its owners found. The slowest alone is 0.5 % off, its pair as fast as others: that is noise."""
    found = judge(LOGS)
    assert found.outcomes == {"succeeded": 96, "failed": 0, "timeout": 0, "unreadable": 0}
    assert [each.hosts[0] for each in found.hosts] == HOSTS
    assert {each.condition for each in found.hosts} == {"fit"} and not found.links and not found.accused
    assert sorted(len(job.hosts) for job in found.jobs) == [1] * 64 + [2] * 32
    assert {host for job in found.jobs if len(job.hosts) == 2 for host in job.hosts} == set(HOSTS)
    alone, pairs = found.peers
    assert (alone.hosts, pairs.hosts, pairs.jobs) == (1, 2, 32)
    assert 60 <= alone.jobs <= 64  # a few are too far off to tell what is normal
    assert alone.samples_per_second == pytest.approx(941.6, abs=0.3)
    assert pairs.samples_per_second == pytest.approx(1876.5, abs=0.6)
    assert 0.0012 < alone.deviation < 0.0022 and 0.0012 < pairs.deviation < 0.0022
    for job in found.jobs:
        assert job.skipped_steps in (8, 9) and job.windows in (8, 9) and job.steps == 110
        assert job.samples_per_second == pytest.approx(job.reported, rel=2e-3)
        assert "local_rank" not in job.work and job.world_size == 8 * len(job.hosts)


def test_no_failure_is_found_in_any() -> None:
    """`muster explain` of 96 healthy logs, each by itself: and its halves."""
    for path, text in members_of(find_logs(LOGS)[0]):
        lines = list(chain.from_iterable(text))
        for part in (lines, lines[: len(lines) // 2], lines[len(lines) // 2 :]):
            found = explain_stream(io.BytesIO("\n".join(part).encode()))
            assert found.failure is None, (path, found)
            assert found.answer == "nothing" or part is not lines


def test_the_page_says_what_the_judge_says() -> None:
    """docs/results.md, its table of these logs."""
    found = judge(LOGS)
    alone, pairs = found.peers
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"| {alone.samples_per_second:.1f} | {pairs.samples_per_second:.1f} (99.6 %" in text
    assert f"| {alone.deviation:.2%} | {pairs.deviation:.2%} |".replace("%", " %") in text
    assert f"at most {max(each.at_most or 0.0 for each in found.hosts):.1%}".replace("%", " %") in text


def test_rates_are_those_of_another_reading() -> None:
    """Within 0.2 % in every log; and the page has the table that the benchmark's result is."""
    path = PAGE.parents[1] / "benchmarks" / "judge_rates.py"
    spec = importlib.util.spec_from_file_location("judge_rates", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = {path: module.rate_of(text) for path, text in module.logs_in(LOGS)}
    found = judge(LOGS)
    assert len(own) == len(found.jobs) == 96
    for job in found.jobs:
        assert job.samples_per_second == pytest.approx(own[job.job], rel=2e-3)
    result = json.loads((path.parent / "results" / "judge_rates.json").read_text(encoding="utf-8"))
    rows = [
        f"| {each['hosts']} | {each['logs']} | {each['median']:,.1f} | {each['worst'] * 100:.3f} % | "
        f"{each['worst_of_printed'] * 100:.2f} % |"
        for each in result["sizes"]
    ]
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """Path -> lines."""
    return {path: list(chain.from_iterable(text)) for path, text in members_of(find_logs(LOGS)[0])}


def stretched(lines: list[str], factor: float) -> list[str]:
    """The same log, had everything taken longer."""
    begin = datetime(2024, 7, 8)

    def later(match: re.Match[str]) -> str:
        then = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f")
        now = begin + timedelta(seconds=(then - begin).total_seconds() * factor)
        return now.strftime("[%Y-%m-%d %H:%M:%S,%f")[:-3]

    return [re.sub(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})", later, line) for line in lines]


def jobs_of(texts: dict[str, list[str]], slow: dict[str, float], *, alone: bool = True) -> list[JobLog]:
    """All logs, with those of slow hosts stretched; without `alone`, only where they work with another."""
    jobs = []
    for path, lines in texts.items():
        (job,) = read_log(path, lines)
        factor = max(slow.get(host, 1.0) for host in job.hosts)
        if factor > 1 and (alone or len(job.hosts) > 1):
            (job,) = read_log(path, stretched(lines, factor))
        jobs.append(job)
    return jobs


def test_hosts_that_were_made_slow_are_named(texts: dict[str, list[str]]) -> None:
    """In real noise: 2 and 3 %; their partners are not accused."""
    slow = {HOSTS[4]: 1.03, HOSTS[17]: 1.02, HOSTS[40]: 1.03}
    found = judged("logs", jobs_of(texts, slow), Settings(), {})
    assert {each.hosts[0] for each in found.hosts if each.condition == "slow"} == set(slow)
    for each in found.hosts:
        if each.condition == "slow":
            assert each.slower == pytest.approx(slow[each.hosts[0]] - 1, abs=0.006)
            assert len(each.evidence) == 2


def test_a_slow_pair_of_hosts_that_are_good_alone_convicts_neither(texts: dict[str, list[str]]) -> None:
    """One job cannot tell whose card it is, or whether it was chance."""
    found = judged("logs", jobs_of(texts, {HOSTS[10]: 1.05}, alone=False), Settings(), {})
    doubted = {each.hosts[0] for each in found.hosts if each.condition != "fit"}
    assert doubted == {HOSTS[10], HOSTS[11]}
    assert not any(each.condition == "slow" for each in found.hosts)


def test_the_page_of_judge_shows_what_it_prints(
    texts: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/judge.md: the logs of host 017 stretched by 5 %."""
    _print(judged("logs", jobs_of(texts, {HOSTS[16]: 1.05}), Settings(), {}), every=False)
    page = (PAGE.parent / "judge.md").read_text(encoding="utf-8")
    told = capsys.readouterr().out.replace(f"{LOGS.name}/", "")
    assert f"\n```\n{told}```\n" in page


@pytest.mark.parametrize("factor", [1.05, 1.2, 2, 4, 20])
def test_the_slower_a_host_is_the_more_plainly_it_is_named(
    factor: float, texts: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = judged("logs", jobs_of(texts, {HOSTS[16]: factor}), Settings(), {})
    _print(found, every=False)
    first, lines = capsys.readouterr().out.splitlines()[0], {each.hosts[0]: each for each in found.hosts}
    assert first.startswith(f"1 of 64 hosts is slow: {HOSTS[16]}") and found.gate is Gate.BAD
    assert lines[HOSTS[16]].slower == pytest.approx(factor - 1, rel=0.1)
