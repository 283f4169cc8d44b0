"""Logs of an own format, and the mappings that say what is in their lines and paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import UsageError
from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.judging.logs import judge
from muster.readers._live import Live
from muster.readers._mapping import LONGEST, Mapping, load_mapping, made_mapping
from muster.readers.base import JobLog
from tests.unit.logs import metaseq_log, read_log

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"
OWN = r"it=(?P<step>\d+) loss=(?P<loss>\S+) dt=(?P<seconds>[\d.]+)"


def own(steps: int = 40, dt: float = 250.0, head: str = "") -> list[str]:
    """A line for every step: `dt` is in whatever unit the mapping says."""
    return ["start", *(f"{head}it={n} loss={9 / n:.3f} dt={dt}" for n in range(1, steps + 1)), "end"]


def jobs(lines: list[str], where: str = "node-1.log", /, **keys: Any) -> list[JobLog]:
    return read_log(where, lines, [Mapping.model_validate(keys)])


@pytest.mark.parametrize("unit", ["ms", 0.001])
def test_the_time_of_a_step(unit: object) -> None:
    """40 steps of a quarter of a second; ten are the warm-up, the first of which is left out anyway."""
    (job,) = jobs(own(), line=OWN, unit=unit, batch=32, workload="ours")
    assert (job.outcome, job.format, job.workload, job.hosts) == (
        "succeeded",
        "mapped lines",
        "ours",
        ("node-1",),
    )
    assert job.rate == pytest.approx(128) and job.step_seconds == pytest.approx(0.25)
    assert (job.steps, job.loss, job.batch, job.alone) == (40, 0.225, 32, "")
    assert job.measured and job.measured.steps == 30


def test_without_a_batch_jobs_are_compared_by_the_step() -> None:
    (job,) = jobs(own(dt=0.25), line=OWN)
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert (entry.samples_per_second, entry.step_seconds) == (None, pytest.approx(0.25))


@pytest.mark.parametrize(
    ("line", "form", "text"),
    [
        (r"(?P<time>\S+) step (?P<step>\d+)", "%H:%M:%S", "12:00:{0:02d} step {0}"),
        (r"\[(?P<time>[^\]]+)\] step (?P<step>\d+)", "", "[2024-04-06T03:02:{0:02d}] step {0}"),
        (r"t=(?P<time>\S+) step (?P<step>\d+)", "", "t={0}.0 step {0}"),
        (r"(?P<elapsed>\S+) s: step (?P<step>\d+)", "", "{0}.5 s: step {0}"),
        (r"(?P<time>\S+ \S+) done", "%d.%m. %H:%M:%S", "06.04. 03:02:{0:02d} done"),  # no step: each is one
    ],
)
def test_the_time_of_a_line(line: str, form: str, text: str) -> None:
    """A step a second."""
    (job,) = jobs([text.format(n) for n in range(1, 41)], line=line, time=form, batch=8)
    assert job.rate == pytest.approx(8) and job.step_seconds == pytest.approx(1) and job.steps == 40


def test_rates_alone() -> None:
    lines = [f"step {n}: 512.0 seq/s, 1,048,576 tok/s" for n in range(1, 41)]
    (job,) = jobs(lines, line=r"step (?P<step>\d+): (?P<samples_per_second>\S+) seq/s")
    assert (job.rate, job.unit, job.step_seconds) == (512, "samples", None)
    (job,) = jobs(lines, line=r"step (?P<step>\d+): (?P<samples_per_second>\S+) seq/s", batch=256)
    assert (job.rate, job.step_seconds) == (512, 0.5)
    (job,) = jobs(lines, line=r"step (?P<step>\d+): .*, (?P<tokens_per_second>\S+) tok/s")
    assert (job.rate, job.unit) == (1048576, "tokens")
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert (entry.samples_per_second, entry.tokens_per_second) == (None, 1048576)


def test_a_host_in_the_line_has_a_job_of_its_own() -> None:
    lines = [
        each
        for pair in zip(own(dt=250, head="gpu01 "), own(dt=300, head="gpu02 "), strict=True)
        for each in pair
    ]
    first, second = jobs(lines, "all.log", line=rf"(?P<host>gpu\d+) {OWN}", unit="ms", batch=32)
    assert (first.path, first.hosts, second.hosts) == ("all.log#gpu01", ("gpu01",), ("gpu02",))
    assert first.rate == pytest.approx(128) and second.step_seconds == pytest.approx(0.3)


def test_lines_of_one_job_are_on_all_its_hosts() -> None:
    """At the pace of the slowest."""
    heads = (("a", "gpu01", 250), ("a", "gpu02", 300), ("b", "gpu03", 200))
    lines = [line for job, host, dt in heads for line in own(dt=dt, head=f"{job}/{host} ")]
    first, second = jobs(lines, "all.log", line=rf"(?P<job>\w)/(?P<host>gpu\d+) {OWN}", unit="ms")
    assert (first.path, first.hosts, second.hosts) == ("all.log#a", ("gpu01", "gpu02"), ("gpu03",))
    assert first.step_seconds == pytest.approx(0.3) and second.step_seconds == pytest.approx(0.2)


def test_rows_of_one_job() -> None:
    rows = ["job,host,step,ms"]
    rows += [f"{job},{host},{n},{ms}" for n in range(40)
             for job, host, ms in (("a", "n1", 100), ("a", "n2", 125), ("b", "n3", 100))]  # fmt: skip
    columns = {"job": "job", "host": "host", "step": "step", "step_seconds": "ms"}
    first, second = jobs(rows, "t.csv", columns=columns, unit="ms", batch=10)
    assert (first.path, first.hosts, second.hosts) == ("t.csv#a", ("n1", "n2"), ("n3",))
    assert first.rate == pytest.approx(80) and second.rate == pytest.approx(100)


def test_one_rank_of_several_is_heard() -> None:
    lines = [
        each for pair in zip(own(dt=0.2, head="r0 "), own(dt=0.9, head="r1 "), strict=True) for each in pair
    ]
    (job,) = jobs(lines, line=rf"r(?P<rank>\d+) {OWN}")
    assert job.step_seconds == pytest.approx(0.2)


def test_a_path_tells_hosts_and_work_of_logs_of_any_format() -> None:
    path = r"(?P<work>[^/]+)/(?P<host>gpu(?:\d+|\[[^\]]*\]))\.log"
    (job,) = jobs(metaseq_log(), "runs/opt-13b/gpu[01,05].log", path=path)
    assert (job.hosts, job.hosts_from, job.workload) == (("gpu01", "gpu05"), "pattern", "opt-13b")
    assert not job.alone and not job.unplaced and "opt-13b" in job.recipe
    (other,) = jobs(metaseq_log(), "runs/opt-1b/gpu07.log", path=path)
    assert other.hosts == ("gpu07",) and other.recipe != job.recipe
    (job,) = jobs(own(), "runs/mine/gpu07.log", path=path, line=OWN)
    assert (job.hosts, job.workload) == (("gpu07",), "mine")


def test_files_of_one_job_count_once(tmp_path: Path) -> None:
    """Two hosts' own logs of each of four jobs; one host is slow in both of its jobs."""
    for number, hosts in enumerate((("n1", "n2"), ("n3", "n4"), ("n1", "n3"), ("n2", "n4"))):
        for host in hosts:
            dt = 300 if "n4" in hosts else 250
            file = tmp_path / f"job{number}" / f"{host}.log"
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(own(dt=dt)))
    mapping = tmp_path / "ours.yaml"
    mapping.write_text(f"line: '{OWN}'\nunit: ms\npath: '(?P<job>job\\d)/(?P<host>n\\d)'\nworkload: ours\n")
    found = judge(tmp_path, mappings=[mapping])
    assert {tuple(job.hosts) for job in found.jobs if job.judged} == {
        ("n1", "n2"), ("n3", "n4"), ("n1", "n3"), ("n2", "n4")
    }  # fmt: skip
    assert sum(job.judged for job in found.jobs) == 4 and len(found.jobs) == 8


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    for text, what in (
        ("line: 'a(?P<seconds>'", "line: is not a regular expression"),
        (r"line: '(?P<stepp>\d+) (?P<seconds>\S+)'", "unknown group 'stepp'"),
        (r"line: '(?P<loss>\S+)'", "no group tells how fast it was"),
        (r"line: '(?P<seconds>(\d+)+)'", "repeats a group that itself repeats"),
        (r"line: '(?:x|xx)*(?P<seconds>\d+)'", "repeats a group that itself repeats"),
        (r"line: '((?:[a-z]+\s*)){2,}(?P<seconds>\d+)'", "repeats a group that itself repeats"),
        (r"line: '(?P<seconds>\d+)'" + "\ncolumns: {seconds: a}", "give one of columns"),
        (r"line: '(?P<seconds>\d+)'" + "\ntime: '%H'", "line has none"),
        ("path: 'gpu[0-9]+'", "path: needs one of the groups host, work, job"),
        ("path: '(?P<seconds>[0-9]+)'", "path: unknown group 'seconds'"),
        ("about: nothing", "needs columns (of a table), line"),
        (r"line: '(?P<seconds>\d+)'" + "\nunit: days", "unit"),
        (r"line: '(?P<seconds>\d+)'" + "\nlines: 3", "unknown key 'lines'"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=re.escape(what)):
            load_mapping(file)


@pytest.mark.parametrize(
    "line",
    [r"(?:\[rank(?P<rank>\d+)\]: )?t=(?P<seconds>\d+(?:\.\d+)?)", r"[+*(]+ (?P<seconds>\d{1,3}) \(a+\)+"],
)
def test_what_only_looks_dangerous_is_taken(line: str) -> None:
    assert Mapping(line=line).line == line


def test_a_line_that_is_too_long_is_not_searched() -> None:
    lines = own()
    lines[20] = lines[20] + " " * LONGEST
    (job,) = jobs(lines, line=OWN)
    assert job.measured and job.steps == 40


def test_a_log_that_the_mapping_does_not_match() -> None:
    (job,) = jobs(["something", "else"], line=OWN)
    assert job.outcome == "unreadable" and "no line of it matches the expression of a mapping" in (
        job.reason or ""
    )


def test_the_pages_examples(tmp_path: Path) -> None:
    """The mappings of docs/judge.md load, and the one of lines reads the lines beside it."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```yaml (\S+\.yaml)\n(.*?)```", text, re.DOTALL))
    assert len(blocks) >= 2
    for name, block in blocks.items():
        (tmp_path / name).write_text(block, encoding="utf-8")
        load_mapping(tmp_path / name)
    (shown,) = re.findall(r"```text ours\.log\n(.*?)```", text, re.DOTALL)
    (job,) = read_log(
        "opt-13b/run3/gpu[01,05].log", shown.splitlines(), [load_mapping(tmp_path / "lines.yaml")]
    )
    assert (job.hosts, job.workload, job.job) == (("gpu01", "gpu05"), "opt-13b", "run3")
    assert job.rate == pytest.approx(2 * 64 / 0.496) and job.measured and job.measured.tokens is None


def test_lines_that_are_too_long_are_said() -> None:
    """They are not searched; where all are so, that is the reason."""
    long = "x" * LONGEST
    (job,) = jobs([*own(), long + "it=41 loss=1 dt=1"], line=OWN, unit="ms")
    assert job.steps == 40 and any(f"{LONGEST:,}" in note for note in job.notes)
    (job,) = jobs([f"{long} {line}" for line in own()], line=OWN, unit="ms")
    assert job.outcome == "unreadable" and f"{LONGEST:,}" in (job.reason or "")


def test_a_step_alone_is_timed_by_the_stamps_of_its_lines() -> None:
    """Of a job that runs, by the moments at which lines without a stamp come."""
    mapping = made_mapping({"line": r"at (?P<step>\d+)", "batch": 4}, "here")
    live = Live([mapping])
    live.lines([f"2026-03-01 10:00:{2 * step:02d}.500 at {step}" for step in range(30)])
    seen = live.seen()
    assert seen is not None and seen.measured is not None
    assert (seen.measured.unit, seen.measured.rate) == ("samples", pytest.approx(2.0))
    live = Live([mapping])
    for step in range(5):
        live.lines([f"at {step}"])
    seen = live.seen()
    assert seen is not None and seen.measured is not None and seen.measured.timed
