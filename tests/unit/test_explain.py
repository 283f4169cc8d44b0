"""`muster explain`: what holds for all logs, of files, runs and benches. What is said of each of many logs
stands in tests/golden/documents, explains.txt and explained.txt."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import muster
from muster.benches.document import JobRecord
from muster.benches.explain import explain
from muster.benches.folder import BenchFolder
from muster.cli import app as cli
from muster.core.errors import UsageError
from muster.core.result import Failure, HostReport
from muster.failures.signs import Signs
from muster.failures.table import KnownFailure, Phrase, find, known_failures
from muster.fleet.cause import LAST_WORDS
from muster.runs.explain import Explanation, explain_logs, explain_stream
from muster.store import logfiles
from muster.store.runfolder import RunFolder
from tests.golden.documents import sections
from tests.unit.logs import chat_log, metaseq_log, trainer_log
from tests.unit.test_runfolder import finish, make

PHRASES = [
    (entry, phrase)
    for entry in known_failures().values()
    for phrase in entry.says
    if phrase.of == "log" and phrase.weight != "notice"
]
TRACEBACK = "Traceback (most recent call last):"


# Two ranks of torchrun and gloo, as they were printed: rank 1 failed, and rank 0 missed it.
LOGS = sections(Path(__file__).parents[1] / "golden" / "logs" / "explained.txt")
RANKS = LOGS["rank-that-failed"].splitlines()


def said(*lines: str) -> Explanation:
    """Of these lines, as they come out of a pipe."""
    return explain_stream(io.BytesIO("\n".join([*lines, ""]).encode()))


@pytest.mark.parametrize(
    ("entry", "phrase"), PHRASES, ids=[f"{entry.id}-{phrase.pattern[:30]}" for entry, phrase in PHRASES]
)
def test_every_entry_is_found_in_what_a_tool_printed(entry: KnownFailure, phrase: Phrase) -> None:
    """Between other lines; what only echoes a failure is never named as its cause."""
    found = said("[2025-03-04 10:11:12] loading", TRACEBACK, phrase.example, "bye")
    if phrase.weight == "symptom" and (entry.blame == "peer" or entry.retry == "by cause"):
        assert (found.answer, found.exit_code) == ("unknown", 1)
        assert found.failure is None or (found.failure.id is None and found.failure.where)  # who was missed
        assert any(phrase.example[:40].split(": ", 1)[-1][:20] in line for line in found.lines)
        return
    assert found.failure is not None
    assert (found.answer, found.failure.id, found.exit_code) == ("known", entry.id, 0)
    assert found.failure.evidence is not None and found.failure.evidence.line == 3
    assert (found.blame, found.retry, found.check) == (entry.blame, entry.retry, entry.check)
    assert found.remedy


def account(rank: int, code: int, when: str) -> list[str]:
    """torchrun's account of the process that failed first (torch 2.13)."""
    return f"""\
Root Cause (first observed failure):
[0]:
  time      : {when}
  host      : node{rank}
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 22633)
  error_file: <N/A>""".splitlines()


def test_the_place_of_a_log_names_no_host(tmp_path: Path) -> None:
    """Folders above what was given are a user's; those below are hosts' where there are several."""
    folder = tmp_path / "node17" / "logs"
    for host in ("node03", "node04"):
        (folder / host).mkdir(parents=True)
        (folder / host / "job.log").write_text("all is well\n")
    (folder / "node03" / "job.log").write_text(f"{TRACEBACK}\nKeyError: 'x'\n")
    (tmp_path / "r5.log").write_text(f"{TRACEBACK}\nKeyError: 'x'\n")
    alone = explain_logs(tmp_path / "r5.log").failure
    assert alone is not None and alone.host is None
    hosts = []
    for given in (folder, folder / "node03", folder / "node03" / "job.log"):
        failure = explain_logs(given).failure
        assert failure is not None and failure.evidence is not None
        assert failure.evidence.file == str(folder / "node03" / "job.log")
        hosts.append(failure.host)
    assert hosts == ["node03", None, None]


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (b"\r 1%\r 2%\r 3%\n%s\n", 2),
        (b"a\r\nb\r\n%s\r\n", 3),
        (b"\x1b[31m%s\x1b[0m\n", 1),
        (b"x\n" * 30_000 + b"%s", 30_001),  # the last line has no end
        (b"\xfa\xfe\xfd text \xe2\x82\n%s\n", 2),
        (b"9%" * 200_000 + b"\r" + b"z\n%s", 2),
    ],
    ids=["bars", "windows", "colours", "long", "bytes", "flood"],
)
def test_lines_are_counted_as_editors_do(lines: bytes, number: int, tmp_path: Path) -> None:
    text = lines.replace(b"%s", b"RuntimeError: No CUDA GPUs are available")
    for name, packed in (("a.log", text), ("a.log.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(packed)
        failure = explain_logs(tmp_path / name).failure
        assert failure is not None and failure.evidence is not None
        assert (failure.id, failure.evidence.line) == ("no_gpu", number)
    assert text.split(b"\n")[number - 1].count(b"No CUDA")


HEALTHY = {
    "DeepSpeed-Chat": chat_log(["n1", "n2"]),
    "metaseq": metaseq_log(),
    "Trainer": trainer_log().split("\n"),
}


def test_what_cannot_be_explained(tmp_path: Path) -> None:
    """No text, nothing there, an empty file, a log that just stops."""
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="is no text"):
        explain_logs(tmp_path / "noise")
    with pytest.raises(UsageError):
        explain(str(tmp_path / "nowhere" / "x"))
    empty = explain_logs(tmp_path / "empty")
    assert (empty.answer, empty.exit_code) == ("unknown", 1)
    stops = said(*chat_log(["n1"], ends=False))
    assert (stops.answer, stops.failure, stops.exit_code) == ("unknown", None, 1)
    cut = gzip.compress("\n".join(f"line {n * n * n}" for n in range(9000)).encode())
    (tmp_path / "cut.gz").write_bytes(cut[: len(cut) // 2])
    assert explain_logs(tmp_path / "cut.gz").notes


SYMPTOMS = [phrase.example for _, phrase in PHRASES if phrase.weight == "symptom"]
WHOSE = [
    "[pod/w-{}/c] ",
    "(W pid=1, ip=10.0.0.{}) ",
    "[rank{}]: ",
    "node{}: ",
    "n1: [rank{}]: ",
    "[1,{}]<stdout>:",
    "  {}: ",
    "\x1b[31m[rank{}]: ",
    "",
]


def mixed(chance: random.Random) -> bytes:
    """A log with some failures in it, and floods of echoes of many ranks."""
    lines = list(chance.choice([*HEALTHY.values(), chat_log(["node1", "node2"], ends=False), RANKS]))
    for _ in range(4):
        place, ranks = chance.randrange(len(lines) + 1), chance.choice([1, 3, 20])
        said, whose = chance.choice(SYMPTOMS), chance.choice(WHOSE)
        lines[place:place] = [whose.format(each % ranks) + said for each in range(chance.randrange(50))]
        if chance.random() < 0.5:
            entry = chance.choice(PHRASES)[1].example
            lines[place:place] = [whose.format(1) + each for each in (TRACEBACK, entry)]
    lines[len(lines) // 2] += chance.choice(["", "\r 1%\r 2%", "\x1b[0m", "y" * 300_000])
    ends = chance.choice(["\n", "\n", "\r\n"])
    return ends.join(lines).encode() + chance.choice([b"", b"\n", b"\xff\xe2\x82"])


@pytest.mark.parametrize("seed", range(20))
def test_echoes_are_counted_as_if_each_was_looked_at(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the blocks that are read end."""
    chance = random.Random(seed)
    log = mixed(chance)
    monkeypatch.setattr(logfiles, "CHUNK", chance.choice([1000, 4096, 1 << 20]))
    found = explain_stream(io.BytesIO(log))
    monkeypatch.setattr(Signs, "again", lambda *_: False)
    assert explain_stream(io.BytesIO(log)) == found


@pytest.mark.parametrize("more", [-300, 0, 1, 40, 300])
def test_why_it_ended_may_stand_before_the_last_block(more: int) -> None:
    """Which may be a few bytes."""
    log = [f"{TRACEBACK}\nKeyError: 'x'\n", *account(0, 1, "2026-11-25_09:24:14"), *["bye"] * 9]
    left = logfiles._HEAD + more - sum(len(line) + 1 for line in log)
    failure = said("a" * left, *log).failure
    assert failure is not None and failure.what == "KeyError: 'x'"


# ----------------------------------------------------------------------------------------------------
# Runs.


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make(tmp_path, "job")


def failed(run: RunFolder, failure: Failure) -> None:
    result = finish(run, "failed").model_copy(update={"failure": failure})
    run.result.write_text(result.model_dump_json())


def test_a_run_that_failed(run: RunFolder) -> None:
    """Its result says why, and its logs where."""
    log = run.rank_log("node1", 1)
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(["hello", TRACEBACK, '  File "t.py", line 3, in f', "KeyError: 'x'"]))
    run.rank_log("node0", 0).write_text("RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3\n")
    failed(run, Failure(what="KeyError: 'x'", where="rank 1", host="node1"))
    found = explain(str(run.path))
    assert found.failure is not None and found.failure.evidence is not None
    assert (found.failure.evidence.line, found.failure.evidence.code) == (4, "t.py:3 in f")
    assert Path(found.failure.evidence.file or "").samefile(log)
    assert (found.answer, found.state, found.echoes, found.exit_code) == ("named", "failed", 1, 0)
    assert re.match(r"muster resume job\b", found.command or "")


def test_a_rank_that_only_missed_another_one_is_no_cause(run: RunFolder) -> None:
    """Another one left early, and well: what this one says is an echo."""
    missed = "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3"
    run.rank_log("node1", 1).parent.mkdir(exist_ok=True)
    run.rank_log("node1", 1).write_text(f"{TRACEBACK}\n{missed}\n")
    what = f"rank 1 ended with exit code 1; its last line: {missed}"
    failed(run, Failure(what=what, where="rank 1", host="node1", hint=f"{LAST_WORDS} has them"))
    found = explain(str(run.path))
    assert (found.answer, found.exit_code) == ("unknown", 1)
    assert any(missed in line for line in found.lines)


def test_a_failure_of_the_table(run: RunFolder) -> None:
    known = known_failures()["disk_full"]
    failed(run, Failure(what="the disk is full: x", host="node1", hint=known.remedy, id="disk_full"))
    found = explain(str(run.path))
    assert (found.answer, found.retry, found.check) == ("known", known.retry, "disk.space")
    assert known.cause == found.says and found.remedy == known.remedy


@pytest.mark.parametrize(
    ("id", "hint", "leaves"),
    [
        ("gpu_hardware", None, True),  # no retry will do there
        ("disk_full", None, False),  # there is room to be made
        (None, "muster resume job --without node1", True),
        (None, None, False),
    ],
)
def test_a_host_is_left_out_where_that_helps(
    run: RunFolder, id: str | None, hint: str | None, leaves: bool
) -> None:
    hosts = [HostReport(host=f"node{rank}", ranks=[rank]) for rank in range(2)]
    failure = Failure(what="it failed", host="node1", hint=hint, id=id)
    result = finish(run, "failed").model_copy(update={"failure": failure, "hosts": hosts})
    run.result.write_text(result.model_dump_json())
    assert ("--without node1" in (explain(str(run.path)).command or "")) == leaves


def test_an_attempt_before_this_one_is_not_what_failed(run: RunFolder) -> None:
    log = run.host_log("node1")
    log.parent.mkdir(exist_ok=True)
    log.write_text(
        "=== muster: attempt 1 ===\nRuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3\n"
        "=== muster: attempt 2 ===\nall is well\n"
    )
    failed(run, Failure(what="rank 1 was killed by SIGKILL", host="node1"))
    assert explain(str(run.path)).echoes == 0


def test_the_line_may_be_in_the_hosts_log(run: RunFolder) -> None:
    """What a launcher says of a rank. Its number counts from the first line of the file, of any attempt."""
    run.host_log("node1").parent.mkdir(exist_ok=True)
    run.rank_log("node1", 1).write_text("all is well\n")
    run.host_log("node1").write_text(
        f"=== muster: attempt 1 ===\nx\n=== muster: attempt 2 ===\n{TRACEBACK}\nKeyError: 'x'\n"
    )
    failed(run, Failure(what="KeyError: 'x'", where="rank 1", host="node1"))
    failure = explain(str(run.path)).failure
    assert failure is not None and failure.evidence is not None
    assert Path(failure.evidence.file or "").samefile(run.host_log("node1"))
    assert failure.evidence.line == 5


def test_runs_that_did_not_fail(run: RunFolder, tmp_path: Path) -> None:
    interrupted = explain("job", tmp_path)
    assert (interrupted.answer, interrupted.state, interrupted.exit_code) == ("named", "interrupted", 0)
    assert "muster resume job" in (interrupted.command or "")
    finish(run)
    good = explain("job", tmp_path)
    assert (good.answer, good.state, good.exit_code) == ("nothing", "succeeded", 0)


# ----------------------------------------------------------------------------------------------------
# Benches.


def test_a_bench_whose_jobs_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commonest cause comes first, though another job failed earlier; one left nothing but its record."""
    bench = BenchFolder(tmp_path / "bench", mark="")
    bench.create()
    names = [f"job{number}" for number in range(5)]
    bench.write_data(bench.schedule, {"jobs": [{"id": name} for name in names]})
    assert explain(str(bench.path)).answer == "nothing"

    def over(name: str, outcome: str, reason: str | None = None, host: str | None = None) -> None:
        fields = {"job": name, "run": f"runs/{name}", "started": 1.0, "ended": 2.0, "reason": reason}
        bench.write_record(JobRecord(**fields, outcome=outcome, failed_host=host))

    def fails(name: str, line: str, host: str) -> None:
        folder = make(bench.runs, name)
        folder.rank_log(host, 0).parent.mkdir(exist_ok=True)
        folder.rank_log(host, 0).write_text(f"{TRACEBACK}\n{line}\n")
        known = find(line)
        failed(folder, Failure(what=line, where="rank 0", host=host, id=known.failure.id if known else None))
        over(name, "failed")

    over("job0", "timeout", "it took longer than 600 s", "node9")
    for number in (1, 3):
        fails(f"job{number}", "RuntimeError: No CUDA GPUs are available", f"node{number}")
    finish(make(bench.runs, "job2"))
    over("job2", "succeeded")
    found = explain("bench", tmp_path)
    assert [(each.job, each.id, each.host) for each in found.jobs] == [
        ("job1", "no_gpu", "node1"),
        ("job3", "no_gpu", "node3"),
        ("job0", None, "node9"),
    ]
    assert (found.answer, found.exit_code, found.of) == ("known", 0, "bench")
    assert known_failures()["no_gpu"].cause in found.says and "3 of 4 jobs" in found.says
    assert found.failure is not None and found.failure.evidence is not None
    assert Path(found.failure.evidence.file or "").samefile(
        RunFolder(bench.runs / "job1").rank_log("node1", 0)
    )
    with pytest.raises(SystemExit):
        cli.main(["explain", str(bench.path)])
    rows = capsys.readouterr().out.splitlines()
    assert all(sum(line.split()[:1] == [each.job] for line in rows) == 1 for each in found.jobs)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_verb(as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document of the published schema; or the cause, the place, the remedy."""
    log = tmp_path / "a.log"
    log.write_text("RuntimeError: No CUDA GPUs are available\n")

    def call(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["explain", *words, *(["--json"] if as_json else [])])
        return int(str(ended.value.code)), capsys.readouterr().out

    code, out = call(str(log))
    known = known_failures()["no_gpu"]
    assert code == 0
    if as_json:
        with pytest.raises(SystemExit):
            cli.main(["schema", "explanation"])
        published = json.loads(capsys.readouterr().out)
        assert set(published["properties"]) == set(json.loads(out))
        assert Explanation.model_validate_json(out).failure
        assert json.loads(out)["failure"]["id"] == "no_gpu"
    else:
        assert out.splitlines()[0] == known.cause
        assert f"{log}:1" in out and known.remedy.split(",")[0] in out
    log.write_text("RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3\n" + f"{TRACEBACK}\n")
    assert call(str(log))[0] == 1


def test_from_python(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("RuntimeError: No CUDA GPUs are available\n")
    found = muster.explain(tmp_path / "a.log")
    assert found.failure is not None and found.failure.id == "no_gpu"


# ----------------------------------------------------------------------------------------------------
# Signs.


@dataclass
class Spot:
    """Where a line of a rank stands."""

    rank: int
    number: int
    when: float | None = None
    code: str | None = None
    uncaught: bool = False
    local_rank: int | None = None
    own: bool = False
    hooked: bool = False
    above: None = None
    serving: bool = False
    innermost: str = ""
    quoted: str = "no"

    def further(self, text: str) -> tuple[str, ...]:
        return ()


def met_by(signs: Signs, rank: int, *lines: str) -> None:
    for line in lines:
        signs.spot = Spot(rank, 1)
        signs.line(line, None)


def test_what_a_rank_met_among_very_many_ranks_and_lines() -> None:
    """The first exception, which is of no chain, is the reason, as among few; and what is kept is bounded."""
    first, lines, signs = "ValueError: no 1", 50_000, Signs()
    met_by(signs, 0, TRACEBACK, first)
    for rank in range(1, 10_001):
        met_by(signs, rank, TRACEBACK)
    handled = "During handling of the above exception, another exception occurred:"
    met_by(signs, 0, TRACEBACK, "KeyError: met", "", handled, "", TRACEBACK, "RuntimeError: last")
    best = signs.decisive()
    assert best is not None and best.text == first
    met_by(signs, 0, *(f"torch.OutOfMemoryError: CUDA out of memory. No {each} MiB" for each in range(lines)))
    assert max(map(len, signs.chains.values())) < lines / 100


def test_lines_that_only_say_that_a_program_goes_on_are_left_out_far_from_what_it_met() -> None:
    """Loaders print millions of them; right after what was met they count, and so do those with a reason."""
    signs = Signs(last_number=10)
    line, shape = "Skipping sample 7, retrying", "Skipping sample , retrying"
    assert [signs.idle(line, shape, number) for number in (11, 13, 14, 15)] == [False, False, True, True]
    assert not signs.idle(f"{line}: CUDA out of memory", f"{shape}: CUDA out of memory", 16)
    signs.aside = 1
    assert not signs.idle(line, shape, 17)


@pytest.mark.parametrize("phrase", [phrase for _, phrase in PHRASES], ids=lambda each: each.pattern[:30])
def test_lines_that_tell_of_nothing_hide_none_that_differs_in_its_digits(phrase: Phrase) -> None:
    """Thousands of those are passed over unseen."""
    signs = Signs()
    for digit in "0123456789":
        line = re.sub(r"\d+", digit, phrase.example)
        if find(line) is None:
            signs.line(line, None, line, re.sub(r"\d+", "", line))
    assert not signs.idle(phrase.example, re.sub(r"\d+", "", phrase.example), 10**6) or not signs.idles
    signs.line(
        counted := "relative error 0.1 of sample 12", None, counted, shape := re.sub(r"\d+", "", counted)
    )
    assert signs.idle("relative error 0.2 of sample 13", shape, 10**6)


def test_remedies_for_any_tools_log_name_no_command_of_a_run() -> None:
    assert not [entry.id for entry, phrase in PHRASES if "muster resume" in entry.remedy + phrase.remedy]
