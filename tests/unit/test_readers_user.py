"""Logs of formats that a user describes: expressions for lines, columns of tables, expressions for paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.core.errors import UsageError
from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.judging.logs import judge
from muster.readers._live import Live
from muster.readers._user import FIELDS, PLACES, Expression, UserFormat
from muster.readers.base import JobLog
from tests.unit.logs import LIGHTNING, metaseq_log, one, read_log

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"
STEP = r"it=(?P<step>\d+) loss=(?P<loss>\S+) dt=(?P<ms>[\d.]+)"
BATCH = r"^batch (?P<batch>\d+)"


def own(steps: int = 40, dt: float = 250.0, head: str = "") -> list[str]:
    """A line for every step of `dt` milliseconds, of 32 samples."""
    return ["batch 32", *(f"{head}it={n} loss={9 / n:.3f} dt={dt}" for n in range(1, steps + 1)), "end"]


def jobs(lines: list[str], *expressions: str, path: str = "node-1.log", workload: str = "") -> list[JobLog]:
    return read_log(path, lines, UserFormat.of(expressions, workload=workload))


def rows(lines: list[str], *columns: str) -> list[JobLog]:
    return read_log("results.csv", lines, UserFormat.of((), columns))


# ---- lines -------------------------------------------------------------------------------------------------


def test_the_time_of_a_step() -> None:
    """40 steps of a quarter of a second; ten are the warm-up, the first of which is left out anyway."""
    (job,) = jobs(own(), STEP, BATCH, workload="ours")
    assert (job.outcome, job.format, job.workload, job.hosts) == (
        "succeeded",
        "own lines",
        "ours",
        ("node-1",),
    )
    assert job.rate == pytest.approx(128) and job.step_seconds == pytest.approx(0.25)
    assert (job.steps, job.loss, job.batch, job.alone) == (40, 0.225, 32, "")
    assert job.measured and job.measured.steps == 30


def test_without_a_batch_jobs_are_compared_by_the_step() -> None:
    (job,) = jobs(own(), STEP)
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert (entry.samples_per_second, entry.step_seconds) == (None, pytest.approx(0.25))


def test_several_lines_tell_of_a_step() -> None:
    """Its number, then its time and its loss on lines of their own; other lines stand between them."""
    lines = [
        line
        for n in range(1, 41)
        for line in (f"step {n}", "something", f"took {500 + n % 2} ms", f"loss {9 / n:.3f}")
    ]
    (job,) = jobs(lines, r"loss (?P<loss>\S+)", r"took (?P<ms>\d+) ms", r"^step (?P<step>\d+)$")
    assert (job.steps, job.loss) == (40, 0.225) and job.step_seconds == pytest.approx(0.5005, abs=1e-4)


def test_of_several_formats_the_one_that_matches_counts() -> None:
    other = r"(?P<step>\d+) of \d+: (?P<seconds>\S+) s"
    (job,) = jobs([f"{n} of 40: 0.25 s" for n in range(1, 41)], STEP, other)
    assert job.step_seconds == pytest.approx(0.25)
    (job,) = jobs(own(), other, STEP)
    assert job.step_seconds == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (r"(?P<time>\S+) step (?P<step>\d+)", "12:00:{0:02d} step {0}"),
        (r"\[(?P<time>[^\]]+)\] step (?P<step>\d+)", "[2024-04-06T03:02:{0:02d}] step {0}"),
        (r"t=(?P<time>\S+) step (?P<step>\d+)", "t={0}.0 step {0}"),
        (r"(?P<elapsed>\S+) s: step (?P<step>\d+)", "{0}.5 s: step {0}"),
        (r"(?P<elapsed_ms>\S+) ms: step (?P<step>\d+)", "{0}500 ms: step {0}"),
        (r"(?P<time>\S+ \S+) done", "2024-04-06 03:02:{0:02d} done"),  # no step: each is one
    ],
)
def test_the_time_of_a_line(line: str, text: str) -> None:
    """A step a second."""
    (job,) = jobs(["batch 8", *(text.format(n) for n in range(1, 41))], line, BATCH)
    assert job.rate == pytest.approx(8) and job.step_seconds == pytest.approx(1) and job.steps == 40


def test_rates_alone() -> None:
    lines = ["batch 256", *(f"step {n}: 512.0 seq/s, 1,048,576 tok/s" for n in range(1, 41))]
    rate = r"step (?P<step>\d+): (?P<samples_per_second>\S+) seq/s"
    (job,) = jobs(lines, rate)
    assert (job.rate, job.unit, job.step_seconds) == (512, "samples", None)
    (job,) = jobs(lines, rate, BATCH)
    assert (job.rate, job.step_seconds) == (512, 0.5)
    (job,) = jobs(lines, r"step (?P<step>\d+): .*, (?P<tokens_per_second>\S+) tok/s")
    assert (job.rate, job.unit) == (1048576, "tokens")
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert (entry.samples_per_second, entry.tokens_per_second) == (None, 1048576)


def test_a_host_in_the_line_has_a_job_of_its_own() -> None:
    pairs = zip(own(dt=250, head="gpu01 "), own(dt=300, head="gpu02 "), strict=True)
    lines = [line for pair in pairs for line in pair]
    first, second = jobs(lines, rf"(?P<host>gpu\d+) {STEP}", BATCH, path="all.log")
    assert (first.job, first.hosts, second.hosts) == ("all.log#gpu01", ("gpu01",), ("gpu02",))
    assert first.rate == pytest.approx(128) and second.step_seconds == pytest.approx(0.3)


def test_lines_of_one_job_are_on_all_its_hosts() -> None:
    """At the pace of the slowest."""
    heads = (("a", "gpu01", 250), ("a", "gpu02", 300), ("b", "gpu03", 200))
    lines = [line for job, host, dt in heads for line in own(dt=dt, head=f"{job}/{host} ")]
    first, second = jobs(lines, rf"(?P<job>\w)/(?P<host>gpu\d+) {STEP}", path="all.log")
    assert (first.job, first.hosts, second.hosts) == ("all.log#a", ("gpu01", "gpu02"), ("gpu03",))
    assert first.step_seconds == pytest.approx(0.3) and second.step_seconds == pytest.approx(0.2)


def test_one_rank_of_several_is_heard() -> None:
    pairs = zip(own(dt=200, head="r0 "), own(dt=900, head="r1 "), strict=True)
    (job,) = jobs([line for pair in pairs for line in pair], rf"r(?P<rank>\d+) {STEP}")
    assert job.step_seconds == pytest.approx(0.2)


def test_a_log_that_no_expression_matches() -> None:
    (job,) = jobs(["something", "else"], STEP)
    assert job.outcome == "unreadable" and "--line" in (job.reason or "")


def test_a_step_alone_is_timed_by_the_stamps_of_its_lines() -> None:
    """Of a job that runs, by the moments at which lines without a stamp come."""
    user = UserFormat.of([r"at (?P<step>\d+)", BATCH])
    live = Live(user)
    live.lines(["batch 4", *(f"2026-03-01 10:00:{2 * step:02d}.500 at {step}" for step in range(30))])
    seen = live.seen(0.0)
    assert seen is not None and (seen.unit, seen.rate) == ("samples", pytest.approx(2.0))
    live = Live(user)
    for step in range(5):
        live.lines([f"at {step}"])
    seen = live.seen(0.0)
    assert seen is not None and seen.step_seconds is not None


# ---- expressions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [r"(\w+ ?)+(?P<step>\d)!", r"(x|xx|x+)*(?P<step>\d)", r"((a*)*)*(?P<step>b)"]
)
def test_no_expression_hangs(text: str) -> None:
    """Each of these takes longer than the universe is old, where an engine tries one way after the other."""
    expression = Expression.of(text, FIELDS, "--line")
    for line in ("x" * 100_000, "word " * 20_000, "a" * 100_000):
        assert not expression.search(line)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a(?P<seconds>", "is not a regular expression"),
        (r"(?P<stepp>\d+) (?P<seconds>\S+)", "unknown group 'stepp'"),
        (r"(?P<work>\w+) (?P<seconds>\S+)", "unknown group 'work'"),
        (r"(?P<loss>\S+)", "no group tells how fast it was"),
        (r"\d+ s", "has no named group"),
        (r"(?=a)(?P<seconds>\d+)", "look-around"),
        (r"(?<!a)(?P<seconds>\d+)", "look-around"),
        (r"(?P<seconds>\d+) \1", "look-around and backreferences"),
        (r"(?P<seconds>\d+) (?P=seconds)", "look-around and backreferences"),
    ],
)
def test_an_expression_that_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as refused:
        UserFormat.of([text])
    assert refused.value.where == "--line"


def test_any_text_is_searched() -> None:
    """Half of a pair of surrogates is no UTF-8; a group may be of letters that take several bytes."""
    expression = Expression.of(r"(?P<host>[^ ]+): (?P<step>\d+)(?P<loss> \d+)?", FIELDS, "--line")
    assert expression.search("\ud800 größe: 7") == {"host": "größe", "step": "7"}


# ---- tables ------------------------------------------------------------------------------------------------


def test_lightnings_metrics() -> None:
    job = one(LIGHTNING, "node07/lightning_logs/version_0/metrics.csv")
    assert (job.outcome, job.hosts, job.format) == ("succeeded", ("node07",), "table")
    assert job.rate == pytest.approx(32.0)


def test_a_table_with_a_row_per_host_and_step() -> None:
    lines = ["host;iter;time;bs"] + [
        f"{host};{step};{ms};32" for step in range(50) for host, ms in (("a", 100), ("b", 125))
    ]
    first, second = rows(lines, "host=host", "step=iter", "ms=time", "batch=bs")
    assert (first.job, first.hosts, second.hosts) == ("results.csv#a", ("a",), ("b",))
    assert first.rate == pytest.approx(320) and second.rate == pytest.approx(256)
    assert first.step_seconds == pytest.approx(0.1)


def test_rows_of_one_job() -> None:
    lines = ["run,host,step,ms"]
    lines += [f"{job},{host},{n},{ms}" for n in range(40)
              for job, host, ms in (("a", "n1", 100), ("a", "n2", 125), ("b", "n3", 100))]  # fmt: skip
    first, second = rows(lines, "job=run", "host=host", "step=step", "ms=ms")
    assert (first.job, first.hosts, second.hosts) == ("results.csv#a", ("n1", "n2"), ("n3",))
    assert first.step_seconds == pytest.approx(0.125) and second.step_seconds == pytest.approx(0.1)


def test_a_table_of_rates() -> None:
    """The rate of the mean, not the mean of rates: half of the time at 100, half at 300 samples/s."""
    lines = [
        "t,speed",
        "0,100",
        *[f"{2 * n},100" for n in range(1, 25)],
        *[f"{48 + n},300" for n in range(1, 49)],
    ]
    (job,) = rows(lines, "elapsed=t", "samples_per_second=speed")
    assert job.measured and job.rate == pytest.approx(job.measured.samples / job.measured.seconds)
    assert 200 < (job.rate or 0) < 225  # the warm-up is taken from the slow half
    (longer,) = rows(
        lines + [f"{96 + n},200" for n in range(1, 200)], "elapsed=t", "samples_per_second=speed"
    )
    assert longer.rate == pytest.approx(206, rel=0.02) and longer.contradicted is None


def test_rates_beside_a_batch_tell_the_time_of_a_step() -> None:
    """900 samples/s at 192 samples a step: 0.213 s; a row in ten steps."""
    lines = ["step,speed,size,done"] + [f"{10 * n},900,192,{1920 * n}" for n in range(1, 30)]
    columns = ("step=step", "samples_per_second=speed", "batch=size")
    for table in (lines, [*lines, "999,0,192,0"]):  # no rate, no time
        (job,) = rows(table, *columns)
        assert job.rate == pytest.approx(900) and job.step_seconds == pytest.approx(192 / 900)
        assert job.measured and job.measured.timed
        assert job.measured.seconds == pytest.approx(job.measured.steps * 192 / 900)
    (job,) = rows(lines, "samples_per_second=speed", "samples=done")
    assert job.rate == pytest.approx(900) and job.measured and job.measured.timed


def test_rates_alone_tell_no_time() -> None:
    lines = ["step,speed"] + [f"{10 * n},{n % 2 * 200 + 800}" for n in range(1, 30)]
    (job,) = rows(lines, "step=step", "samples_per_second=speed")
    assert job.rate == pytest.approx(900, rel=0.02)
    assert job.measured and not job.measured.timed and job.step_seconds is None
    (entry,) = judged("x", [job], Settings(), {}).jobs
    assert entry.samples_per_second == job.rate
    assert (entry.step_seconds, entry.measured_seconds, entry.measured_samples) == (None, None, None)


def test_rows_whose_steps_are_not_numbered_may_be_of_several() -> None:
    """Then the tool's own rate tells how many samples there were, unless they are counted."""
    columns = ("elapsed=t", "batch=size", "samples_per_second=speed")
    lines = ["t,size,speed,done"] + [f"{4 * n},40,100,{400 * n}" for n in range(1, 30)]
    assert rows(lines, *columns)[0].rate == pytest.approx(100)
    slow = [line.replace(",100,", ",99,") for line in lines]
    assert rows(slow, *columns, "samples=done")[0].rate == pytest.approx(100)


def test_a_rate_of_a_step_that_was_skipped_tells_no_time() -> None:
    """And does not keep others from telling theirs."""
    lines = ["n,speed,lost,size"] + [f"{n},160,{n < 4:d},32" for n in range(1, 40)]
    (job,) = rows(lines, "step=n", "samples_per_second=speed", "skipped=lost", "batch=size")
    assert job.step_seconds == pytest.approx(0.2) and job.skipped_steps == 3
    line = r"(?P<step>\d+),(?P<samples_per_second>\d+),(?P<skipped>\d),(?P<batch>\d+)"
    (job,) = jobs(lines[1:], line)
    assert job.step_seconds == pytest.approx(0.2) and job.skipped_steps == 3


def test_a_table_that_cannot_be_read_says_why() -> None:
    for values in ([], ["1,"], ["x,y"]):
        (job,) = rows(["t,speed", *values], "elapsed=t", "samples_per_second=speed")
        assert job.outcome == "unreadable" and "no row with values" in (job.reason or "")
    assert "'spead'" in (rows(["t,speed", "1,2"], "elapsed=t", "samples_per_second=spead")[0].reason or "")
    assert "--column" in (rows(["t,speed", "1,2"])[0].reason or "")


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (["step=s"], "none tells how fast it was"),
        (["secons=a"], "unknown field 'secons'"),
        (["seconds"], "is FIELD=NAME"),
        (["seconds="], "is FIELD=NAME"),
    ],
)
def test_columns_that_are_refused(columns: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as refused:
        UserFormat.of((), columns)
    assert refused.value.where == "--column"


# ---- paths -------------------------------------------------------------------------------------------------


def test_a_path_tells_hosts_and_work_of_logs_of_any_format() -> None:
    pattern = r"(?P<work>[^/]+)/(?P<host>gpu(?:\d+|\[[^\]]*\]))\.log"
    named = Expression.of(pattern, PLACES, "--host-pattern")
    (job,) = read_log("runs/opt-13b/gpu[01,05].log", metaseq_log(), named=named)
    assert (job.hosts, job.hosts_from, job.workload) == (("gpu01", "gpu05"), "pattern", "opt-13b")
    assert not job.alone and not job.unplaced and "opt-13b" in job.settings
    (other,) = read_log("runs/opt-1b/gpu07.log", metaseq_log(), named=named)
    assert other.hosts == ("gpu07",) and other.settings != job.settings
    (job,) = read_log("runs/mine/gpu07.log", own(), UserFormat.of([STEP]), named)
    assert (job.hosts, job.workload) == (("gpu07",), "mine")


def test_files_of_one_job_count_once(tmp_path: Path) -> None:
    """Two hosts' own logs of each of four jobs; one host is slow in both of its jobs."""
    for number, hosts in enumerate((("n1", "n2"), ("n3", "n4"), ("n1", "n3"), ("n2", "n4"))):
        for host in hosts:
            file = tmp_path / f"job{number}" / f"{host}.log"
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(own(dt=300 if "n4" in hosts else 250)))
    pattern = r"(?P<job>job\d)/(?P<host>n\d)"
    found = judge(tmp_path, lines=[STEP], host_pattern=pattern, workload="ours")
    assert {tuple(job.hosts) for job in found.jobs if job.judged} == {
        ("n1", "n2"), ("n3", "n4"), ("n1", "n3"), ("n2", "n4")
    }  # fmt: skip
    assert sum(job.judged for job in found.jobs) == 4 and len(found.jobs) == 8


def test_the_pages_example() -> None:
    """The expressions of docs/judge.md read the lines beside them."""
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"```text ours\.log\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"```console.*\n(muster judge DIR --line .*?)```", text, re.DOTALL)
    options = dict(re.findall(r"--(line|host-pattern) '(.*?)'", command))
    (job,) = read_log(
        "opt-13b/run3/gpu[01,05].log",
        shown.splitlines(),
        UserFormat.of([each for name, each in re.findall(r"--(line) '(.*?)'", command)]),
        Expression.of(options["host-pattern"], PLACES, "--host-pattern"),
    )
    assert (job.hosts, job.workload, job.group) == (("gpu01", "gpu05"), "opt-13b", "run3")
    assert job.rate == pytest.approx(2 * 64 / 0.496) and job.measured and job.measured.tokens is None
