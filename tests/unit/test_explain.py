"""`muster explain`: the cause, and not what came of it; where nothing says it, no guess. What is said of many
logs stands in tests/golden/documents/explained.txt."""

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
from muster.runs.explain import WHOLE, Explanation, explain_logs, explain_stream
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


def is_quiet(found: Explanation) -> bool:
    """Whether nothing is said to have failed, nor that it ended well."""
    if found.failure or found.others or (found.answer, found.exit_code) != ("unknown", 1):
        return False
    return "nothing says how it ended" in found.says


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


def test_of_several_files_the_one_that_failed_first(tmp_path: Path) -> None:
    """By the last time stamp before the line; an archive of them says the same."""
    for rank, second in ((0, 30), (1, 20), (2, 40)):
        lines = [f"[2025-03-04 10:11:{second},000] begin", TRACEBACK, f"ValueError: {rank}"]
        (tmp_path / f"node1.rank{rank}.log").write_text("\n".join(lines))
    found = explain_logs(tmp_path)
    assert found.failure is not None and found.failure.evidence is not None
    assert (found.failure.what, found.failure.where, found.alike) == ("ValueError: 1", "rank 1", 2)
    assert found.failure.evidence.file == str(tmp_path / "node1.rank1.log")


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


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "node7: ", "[1,1]<stderr>:", "trainer-1  | "])
@pytest.mark.parametrize(
    "last",
    ["StopIteration", "torch._dynamo.exc.Unsupported: Graph break", "_queue.Empty", "MyFailure: no: x"],
)
def test_an_exception_by_any_name(last: str, prefix: str) -> None:
    """No word of it says that it is one; that it ends a traceback does."""
    traceback = [TRACEBACK, '  File "/w/train.py", line 4, in f', "    raise it", last]
    lines = ["epoch 1", *(prefix + line for line in traceback)]
    explained = said(*lines, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    assert explained.failure is not None and explained.failure.evidence is not None
    assert (explained.failure.what, explained.answer) == (last, "named")
    assert (explained.failure.evidence.code, explained.failure.evidence.line) == ("/w/train.py:4 in f", 5)
    assert is_quiet(said(*lines, *["still here"] * 200))


def test_an_exception_by_any_name_of_its_own_job() -> None:
    """It ends the job in which it was raised, where no step follows."""
    raised = [TRACEBACK, '  File "/w/train.py", line 4, in f', "    raise it", "MyFailure: no: x"]
    echo = (
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    )
    first, second = (chat_log([host], ends=False) for host in ("n1", "n2"))
    place = next(n for n, line in enumerate(first) if "step=20," in line)
    met = [*first[:place], *raised, *first[place:]]
    assert said(*met, echo).answer == "unknown"
    for log in ([*first, *raised], [*met, echo, *second, *raised], [*met, *second, *raised]):
        failure = said(*log).failure
        assert failure is not None and failure.evidence is not None
        host = "n2" if len(log) > 2 * len(second) else "n1"
        assert (failure.what, failure.host, failure.evidence.line) == (raised[-1], host, len(log))


def test_the_users_own_line_and_not_a_librarys() -> None:
    """Frames of compiled libraries have no folder of an installation (pandas 3, as printed)."""
    frames = ["/w/dsx.py", "/x/site-packages/datasets/load.py", "pandas/_libs/parsers.pyx"]
    lines = [f'  File "{path}", line {number}, in f' for number, path in enumerate(frames, 1)]
    failure = said(TRACEBACK, *lines, "pandas.errors.ParserError: Error tokenizing data").failure
    assert failure is not None and failure.evidence is not None
    assert failure.evidence.code == "/w/dsx.py:1 in f"


def test_what_a_program_met_and_went_on() -> None:
    """An exception long before the end of a log without steps; the one at its end counts."""
    retried = [f"OSError: [Errno 116] Stale file handle, attempt {n} of 5" for n in (1, 2)]
    assert is_quiet(said(*retried, *["still here"] * 200))
    assert said(*retried).answer == "known"
    early = [TRACEBACK, "KeyError: 'early'"]
    assert is_quiet(said(*early, *["still here"] * 200))
    found = said(*early, *["still here"] * 20_000, TRACEBACK, "KeyError: 'late'")
    assert found.failure is not None and found.failure.what == "KeyError: 'late'"
    log = chat_log(["n1"])
    place = next(n for n, line in enumerate(log) if "step=20," in line)
    assert said(*log[:place], *early, *log[place:]).answer == "nothing"


@pytest.mark.parametrize(
    ("lines", "failure", "what"),
    [
        (  # Ray's word on a process that ended, behind what ended it (hiyouga/EasyR1#185)
            [
                "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory "
                "pressure (OOM), "
                "0 Workers crashed due to other reasons at node (ID: 35, IP: 10.9.1.2).",
                TRACEBACK,
                "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            ],
            "ray_memory",
            "killed due to memory pressure",
        ),
        (  # the ranks' own exceptions stand below torch.distributed.checkpoint's (pytorch/pytorch#86483)
            [
                TRACEBACK,
                "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:d([0])",
                f"{TRACEBACK} (RANK 0)",
                "RuntimeError: Missing key in checkpoint state_dict: optim.step.",
            ],
            None,
            "Missing key",
        ),
        (  # nothing but an account: no cause
            [
                TRACEBACK,
                "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
                "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed "
                "due to other reasons at node (ID: 35, IP: 10.9.1.2) over the last time period.",
            ],
            None,
            None,
        ),
        (  # C++ alone speaks: it failed, and no traceback says so (sgl-project/sglang#1693)
            [
                "[rank1]:[E1016 03:31:38.92 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught "
                "collective operation timeout: WorkNCCL(SeqNum=9141, OpType=ALLREDUCE)",
                "[rank1]:[E1016 03:31:38.92 ProcessGroupNCCL.cpp:627] [Rank 1] To avoid data "
                "inconsistency, we are taking the entire process down.",
            ],
            None,
            None,
        ),
        (  # desihub/desispec#2744
            [
                "[2026-04-29T23:36:37.809] error: *** STEP 522.0 ON nid002888 CANCELLED AT "
                "2026-04-29T23:36:37 DUE TO TASK FAILURE ***",
                "srun: error: nid002888: tasks 0-57,59-63: Terminated",
            ],
            None,
            None,
        ),
        (  # a group's own word, and what it has (agronholm/anyio#848)
            [
                f"  + Exception Group {TRACEBACK}",
                "  | ExceptionGroup: Exceptions from Trio nursery (1 sub-exception)",
                "  +-+---------------- 1 ----------------",
                "    | ValueError: bad",
            ],
            None,
            None,
        ),
        (["loading", "AssertionError: 25 is not divisible by 8"], None, None),  # a log without tracebacks
    ],
    ids=["ray", "checkpoint", "ray-alone", "watchdog", "task-failure", "group", "bare"],
)
def test_an_account_of_a_failure_is_no_cause(lines: list[str], failure: str | None, what: str | None) -> None:
    """As the tools printed it: the cause where a line says it; else that it failed, and that none does."""
    explained = said(*lines)
    if what is None:
        assert (explained.answer, explained.failure, explained.exit_code) == ("unknown", None, 1)
        assert lines[-1].strip()[:60] in "\n".join(explained.lines)
    else:
        assert explained.failure is not None and what in explained.failure.what
        assert (explained.failure.id, explained.exit_code) == (failure, 0)


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


def test_ranks_that_miss_another_are_counted_again_after_a_step() -> None:
    """What they said before the training went on is not what ended it."""
    log = chat_log(["n1"], ends=False)
    steps = [n for n, line in enumerate(log) if "step=" in line]
    missed = [
        f"[rank{n % 3}]: RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:{n}" for n in range(9)
    ]
    assert said(*log[: steps[-1] + 1], *missed).echoes == 9
    assert said(*log[: steps[0]], *missed, *log[steps[0] :], *missed[:5]).echoes == 5


@pytest.mark.parametrize("prefix", ["", "(RayTrainWorker pid=19799, ip=10.72.0.6) "])
def test_echoes_alone_are_no_clean_end(prefix: str) -> None:
    """A watchdog's word, and the abort that follows: something failed, and not here."""
    lines = [
        "[E ProcessGroupNCCL.cpp:821] [Rank 21] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=50, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1808397 milliseconds.",
        "terminate called after throwing an instance of 'std::runtime_error'",
    ]
    echoed = said("starting", *(prefix + line for line in lines))
    assert echoed.answer == "unknown" and echoed.echoes
    went_on = said(*(prefix + line for line in lines), *["epoch 3 done"] * 200)
    assert is_quiet(went_on)


def test_what_looks_like_an_echo_and_says_more() -> None:
    """Other digits can be another failure; another rank is one more that failed; what comes long after the
    last one is what counts."""
    left = "a worker exits with return code = -{}"
    killed = said(*[left.format(6)] * 5, left.format(9)).failure
    assert killed is not None and killed.id == "killed"
    old = "[rank{}]: NVIDIA RTX with CUDA capability sm_86 is not compatible with the current PyTorch"
    found = said(TRACEBACK, *(old.format(n % 3) for n in range(30)))
    assert (found.failure and found.failure.id, found.alike, found.echoes) == ("no_kernel_image", 2, 30)
    late = said(TRACEBACK, *[old.format(1)] * 5, *["still here"] * 20_000, old.format(1))
    assert late.failure and late.failure.evidence and late.failure.evidence.line == 20_007


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


@pytest.mark.parametrize(
    "prefix",
    [
        "2025-05-21T03:50:19.0296443{0}0Z ", "[pod/trainer-worker-3/pytorch] ", "trainer-3 pytorch ",
        "(RayTrainWorker pid=311, ip=10.0.0.7) ", "\x1b[36m(WorkerDict pid=4242, ip=10.0.0.7)\x1b[0m ",
        "Nov 26 00:41:4{0} node7 python[1234]: ", "trainer-1  | ", "gpu-07.cluster: ", "[10.0.0.7:3] ",
        "[prterun-node7-4242@1,3]<stderr>: ",
    ],
)  # fmt: skip
def test_an_exception_behind_what_a_tool_puts_before_each_line(prefix: str) -> None:
    """As kubectl logs, stern, Ray, journald, docker compose, pdsh and Open MPI 5 do; times go on."""
    lines = [
        "loading", "step 1 loss 2.5", "Traceback (most recent call last):",
        '  File "/w/train.py", line 20, in <module>', "    main()", '  File "/w/train.py", line 7, in main',
        "    raise ValueError(sample)", "ValueError: bad temperature 3",
    ]  # fmt: skip
    printed = [f"{prefix.replace('{0}', str(number))}{line}" for number, line in enumerate(lines)]
    found = said(*printed)
    assert found.failure is not None and found.failure.what == "ValueError: bad temperature 3"
    assert found.failure.evidence is not None and found.failure.evidence.line == len(lines)
    assert found.failure.evidence.code == "/w/train.py:7 in main"
    assert said(*printed[:2]).failure is None


def test_a_host_is_not_to_blame_for_a_time_that_was_over(tmp_path: Path) -> None:
    log = tmp_path / "node7.log"
    line = "slurmstepd: error: *** JOB 4 ON node7 CANCELLED AT 2025-03-01T10:01:00 DUE TO {} ***"
    for why, blame in (("TIME LIMIT", "scheduler"), ("PREEMPTION", "scheduler"), ("NODE FAILURE", "host")):
        log.write_text(line.format(why) + "\n")
        assert explain(str(log)).blame == blame


def raised(*text: str) -> list[str]:
    """A traceback of the user's own file that ends so."""
    return [TRACEBACK, '  File "/job/train.py", line 7, in main', "    load()", *text]


HANDLED = ["", "During handling of the above exception, another exception occurred:", ""]
CAUSED = ["", "The above exception was the direct cause of the following exception:", ""]


def of_rank(rank: int, *lines: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


def test_what_a_rank_met_is_told_from_what_others_say_meanwhile() -> None:
    """And of a chain, all that led to what was being handled."""
    missing, key = "ModuleNotFoundError: No module named 'apex'", "KeyError: 'vocab'"
    chain = of_rank(0, *raised(missing), *HANDLED, *raised(key))
    at = chain.index(f"[rank0]: {missing}") + 1
    other = of_rank(1, *raised("ValueError: of rank 1"))
    found = said(*chain[:at], *other, *chain[at:], *account(0, 1, "2026-11-25_09:24:14"))
    assert found.failure is not None and (found.failure.what, found.failure.where) == (key, "rank 0")
    assert missing not in [each.text for each in found.others]
    found = said(*raised(missing), *CAUSED, *raised("ImportError: no apex"), *HANDLED, *raised(key))
    assert found.failure is not None and found.failure.what == key and not found.others
    found = said(*raised(missing), *HANDLED, *raised("ImportError: no apex"), *CAUSED, *raised(key))
    assert found.failure is not None and found.failure.what == "ImportError: no apex"


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
    shared: bool = False

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
    met_by(signs, 0, *raised("KeyError: met"), *HANDLED, *raised("RuntimeError: last"))
    best = signs.decisive()
    assert best is not None and best.text == first
    met_by(signs, 0, *(f"torch.OutOfMemoryError: CUDA out of memory. No {each} MiB" for each in range(lines)))
    assert max(map(len, signs.chains.values())) < lines / 100


def test_the_host_of_the_rank_that_failed_first() -> None:
    """The line that says why has no host; torchrun's account has."""
    both = [line for rank in (0, 1) for line in of_rank(rank, TRACEBACK, f"ValueError: no {rank}")]
    for first in (0, 1):
        failure = said(*both, *account(first, 1, "2026-11-25_09:24:14")).failure
        assert failure is not None and failure.evidence is not None
        assert (failure.where, failure.host, failure.evidence.host) == (
            f"rank {first}",
            *[f"node{first}"] * 2,
        )
    failure = said(*both).failure
    assert failure is not None and failure.host is None


def test_the_program_text_of_a_traceback_is_no_evidence(tmp_path: Path) -> None:
    """It has the words of the error: the exception's own line says what happened."""
    log = tmp_path / "a.log"
    own = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    log.write_text(
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 11, in <module>\n'
        f'    if step == 12: raise RuntimeError("{own.partition(": ")[2]}")\n{own}\n'
    )
    evidence = explain_logs(log).failure.evidence  # type: ignore[union-attr]
    assert evidence is not None and evidence.text.endswith(own) and evidence.line == 4


# ----------------------------------------------------------------------------------------------------
# Logs of no known format: what a program printed and went on from.

CLI = "nvidia-container-cli: initialization error: "
MET = [TRACEBACK, '  File "/w/t.py", line 9, in save', "RuntimeError: CUDA out of memory. Tried 2 GiB"]
STEPS = "step {n}: loss 2.{n}", "Epoch 0, iter {n}/80 | loss=1.{n}e-01", "[{n}/900] loss 0.4 batch {n}"
PERHAPS = ["upload of shard {n}/90 done", "{n} samples processed"]


@pytest.mark.parametrize("form", STEPS)
def test_steps_after_an_exception(form: str) -> None:
    """One step may come from another rank; two do not. The exception at the end is the one."""
    steps = [form.format(n=n) for n in range(10, 90, 10)]
    for lines in ([*steps[:3], *MET, *steps[3:]], [*MET, *steps]):
        assert said(*lines).failure is None and said(*lines, "Training complete").answer == "nothing"
    once = said(*steps[:3], *MET, *steps[3:4])
    assert (once.answer, once.exit_code, once.failure) == ("unknown", 1, None)
    assert [each.text for each in once.others] == [MET[-1]]
    last = said(*steps[:3], *MET, *steps[3:], TRACEBACK, "KeyError: 'late'")
    assert last.failure is not None and last.failure.what == "KeyError: 'late'"
    same = said(*steps[:4], *MET, steps[3], "wandb: step 100", "Saving checkpoint at step 40", "attempt 2/3")
    assert same.failure is not None and same.failure.id == "cuda_oom"


@pytest.mark.parametrize("form", PERHAPS)
def test_work_of_any_kind_after_an_exception(form: str) -> None:
    """Then it may be why, and is not said to be."""
    lines = [form.format(n=n) for n in range(8)]
    maybe = said("begin", *MET, *lines)
    assert (maybe.answer, maybe.exit_code, maybe.failure) == ("unknown", 1, None)
    assert [each.text for each in maybe.others] == [MET[-1]]
    ended = said("begin", *MET, *lines[:1], "Training completed in 3 h", "bye")
    assert (ended.answer, ended.exit_code) == ("nothing", 0)


@pytest.mark.parametrize(
    "lines",
    [
        ["config: {'on_oom': 'skip', 'note': 'RuntimeError: CUDA out of memory'}"],
        ['Config(last_failure="NCCL WARN Duplicate GPU detected : rank 0 and rank 1", lr=1)'],
        ["ModuleNotFoundError: No module named 'apex' (ignored)"],
        ["CUDA out of memory. Tried to allocate 2 GiB, trying batch size 16"],
        ["Exception ignored in: <function Pool.__del__ at 0x7f>", *MET],
        ["--- Logging error ---", *MET],
        ["State:  Terminated", "  Exit Code:    0", '"OOMKilled": false,'],
    ],
    ids=["dict", "repr", "ignored", "smaller", "del", "logging", "completed"],
)
def test_what_has_no_consequence(lines: list[str]) -> None:
    found = said("begin", *lines, "end")
    assert found.failure is None and found.answer in ("unknown", "nothing")
    assert said("begin", *lines, "end", "Training complete").answer == "nothing"


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        (["Status: Failed", "Reason:  Evicted", "The node was low on resource: memory."], "pod_evicted"),
        (["Last State: Terminated", "  Reason:   OOMKilled", "  Exit Code: 137"], "container_oom"),
        (["srun: Job step aborted", "JOB 7 ON n CANCELLED AT 2024-07-08 DUE TO PREEMPTION"], "preempted"),
        (['docker: could not select device driver "nvidia" with capabilities: [[gpu]].'], "container_gpu"),
        ([f"{CLI}nvml error: driver not loaded: unknown"], "container_gpu"),
        ([f"{CLI}nvml error: driver/library version mismatch"], "driver_mixed"),
        (['{"log":"RuntimeError: CUDA out of memory. Tried\\n","stream":"stderr"}', "bye"], "cuda_oom"),
        (["[rank: 1] Child process with PID 3 terminated with code -11. Forcefully terminating all other "
          "processes to avoid zombies", "Killed"], "crashed"),
    ],
)  # fmt: skip
def test_what_schedulers_and_containers_say(lines: list[str], failure: str) -> None:
    found = said("begin", *lines)
    assert found.failure is not None and (found.answer, found.failure.id) == ("known", failure)


def test_an_exception_when_the_training_has_ended() -> None:
    """It ended the program; one that was got over, or was printed long before the end, did not."""
    trained = trainer_log().rstrip("\n").split("\n")
    failed = said(*trained, "***** Running Evaluation *****", *MET)
    assert failed.failure is not None and failed.failure.id == "cuda_oom"
    for rest in (["bye"] * 60, ["Training completed."]):
        assert said(*trained, *MET, *rest).answer == "nothing"


def test_colours_within_an_exception() -> None:
    """As Python 3.13 prints it."""
    file = '  File \x1b[35m"/w/t.py"\x1b[0m, line \x1b[35m9\x1b[0m, in \x1b[35mf\x1b[0m'
    failure = said(TRACEBACK, file, "\x1b[1;35mRuntimeError\x1b[0m: \x1b[35mbad shard\x1b[0m").failure
    assert failure is not None and failure.evidence is not None
    assert (failure.what, failure.evidence.code) == ("RuntimeError: bad shard", "/w/t.py:9 in f")


LOGIC = [TRACEBACK, '  File "/w/t.py", line 5, in f', "ValueError: unknown scheduler"]


@pytest.mark.parametrize(
    "line",
    [
        "TensorBoard: Port 6006 is in use, trying 6007. OSError: [Errno 98] Address already in use",
        "libibverbs: Warning: couldn't load driver 'x': x.so: cannot open shared object file: No such file",
        "Checkpoint /c/a.pt is corrupt (PytorchStreamReader failed reading zip archive), using /c/b.pt",
        "Namespace(on_oom='skip', msg='CUDA out of memory', batch=8)",
        "ssh: connect to host node9 port 22: Connection refused (spare, ignored)",
    ],
)
def test_a_mistake_of_the_program_outweighs_a_line_that_it_printed_before(line: str) -> None:
    """What a tool says with a level, and what a program could not help, still counts."""
    failure = said(line, "loading", *LOGIC).failure
    assert failure is not None and (failure.what, failure.id) == (LOGIC[-1], None)
    warned = said("n1:1:1 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both", *LOGIC).failure
    assert warned is not None and warned.id == "duplicate_gpu"
    other = said(line, *LOGIC[:2], "RuntimeError: cannot start").failure
    assert other is not None and (other.id is None) == any(
        word in line for word in ("Warning", "ignored", "msg=")
    )


def test_a_program_that_says_that_it_goes_on() -> None:
    """What it met is why only where nothing else is, and then it may be."""
    met = [TRACEBACK, '  File "/w/hub.py", line 6, in push', "HfHubHTTPError: 504 Server Error"]
    late = said(
        "begin", *met, "push failed, going on", TRACEBACK, '  File "/w/t.py", line 5', "RuntimeError: x"
    )
    assert late.failure is not None and late.failure.what == "RuntimeError: x"
    assert [each.text for each in late.others] == [met[-1]]
    alone = said("begin", *met, "push failed, going on", "end")
    assert (alone.answer, alone.exit_code, [each.text for each in alone.others]) == ("unknown", 1, [met[-1]])
    dicts = [f"{{'loss': 0.{n}, 'learning_rate': 1e-05, 'epoch': 0.{n}}}" for n in range(1, 9)]
    assert said(*dicts[:3], *met, *dicts[3:], *LOGIC).failure == said(*dicts, *["x"] * 3, *LOGIC).failure


def test_of_two_ranks_the_one_that_raised_first_by_its_clock() -> None:
    lines = []
    for node, second, what in (
        (2, 5, "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (1, 1, "TypeError: no"),
    ):
        begin = f"node{node}: [rank{node}]: "
        stamp = f"[2024-06-01 10:00:0{second},100] "
        lines += [begin + stamp + TRACEBACK, begin + '  File "/w/t.py", line 7, in f', begin + what]
    failure = said("node1 slots=1", "node2 slots=1", *lines).failure
    assert failure is not None and (failure.what, failure.host) == ("TypeError: no", "node1")


def test_a_log_that_breaks_off_in_a_traceback() -> None:
    cut = said("begin", TRACEBACK, '  File "/w/t.py", line 6, in <module>', "    f()", '  File "/ven')
    assert (cut.answer, cut.exit_code) == ("unknown", 1)


def test_a_process_own_words_in_torchruns_account() -> None:
    """As @record has them: indented, below the process's host and rank (torchtune)."""
    own = [
        "  traceback : Traceback (most recent call last):",
        '    File "/w/f.py", line 140, in train',
        "  ValueError: empty",
    ]
    failure = said(*account(5, 1, "2024-05-20_10:02:01"), *own).failure
    assert failure is not None and failure.evidence is not None
    assert (failure.what, failure.where, failure.host) == ("ValueError: empty", "rank 5", "node5")
    assert failure.evidence.code == "/w/f.py:140 in train"


def test_what_a_program_says_in_passing() -> None:
    """It may be why, where a good end or many lines follow, and no traceback, level or exit."""
    line = "Checkpoint a.pt is corrupt (PytorchStreamReader failed reading zip archive)"
    for rest in (["loading b.pt", "Done. Model saved to out"], ["still here"] * 60):
        found = said("begin", line, *rest)
        assert (found.answer, found.exit_code, [each.text for each in found.others]) == ("unknown", 1, [line])
    failure = said("begin", line, "bye").failure
    assert failure is not None and failure.id == "checkpoint_damaged"
    killed = said("Out of memory: Killed process 4711 (python3) total-vm:1kB", *["still here"] * 60).failure
    assert killed is not None and killed.id == "host_oom_killed"


def test_what_was_printed_before_an_exception_may_stand_after_it() -> None:
    """Python holds 8 KB back of what it prints to a file. Nothing caught what begins in the module."""
    steps = [f"step {n}: loss 2.{n}" for n in range(10, 60)]
    main = [TRACEBACK, '  File "/w/t.py", line 30, in <module>', *MET[1:]]
    found = said(*steps[:9], *main, *steps[9:])
    assert (found.answer, found.exit_code, [each.text for each in found.others]) == ("unknown", 1, [MET[-1]])
    caught = said(*steps[:9], *MET, *steps[9:])
    ended = said(*steps[:9], *main, *steps[9:], "Training completed")
    later = said(*steps[:9], *main, *(f"step {n}: loss 2.{n}" for n in range(20, 900)))
    assert ended.answer == "nothing"
    assert all(each.failure is None and each.answer == "unknown" for each in (caught, later))


def test_a_traceback_behind_the_words_of_a_logger() -> None:
    """As vLLM logs it, which then kills its own processes; a server that goes on has not failed."""
    logger = "ERROR 03-18 07:13:58 [core.py:390] "
    lines = [f"{logger}EngineCore hit an exception: {TRACEBACK}"]
    lines += [f'{logger}  File "/v/core.py", line 378, in run', f"{logger}ValueError: no KV cache is left"]
    died = said(
        *lines, "CRITICAL Got fatal signal from worker processes, shutting down. See above.", "Killed"
    )
    assert died.failure is not None and died.failure.what == "ValueError: no KV cache is left"
    served = said(*lines, "INFO:     Application shutdown complete.", "INFO:     Finished server process [1]")
    assert (served.answer, served.failure) == ("nothing", None)


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


# ----------------------------------------------------------------------------------------------------
# Whose line it is, and what Slurm says.

OWN = [TRACEBACK, '  File "/w/t.py", line 3, in <module>', "ValueError: bad"]
REQUEUE = "slurmstepd: error: *** JOB 3118 ON sh-06 CANCELLED AT 2018-11-05T10:35:06 DUE TO JOB REQUEUE ***"


@pytest.mark.parametrize(
    ("lines", "rank", "host"),
    [
        ([f"[pod/worker-3/pytorch] {line}" for line in OWN], None, "worker-3"),
        ([f"[pod/worker-3/pytorch] [rank3]: {line}" for line in OWN], 3, "worker-3"),
        ([f"(RayTrainWorker pid=31, ip=10.0.0.7) {line}" for line in OWN], None, "10.0.0.7"),
        ([f"\x1b[36m(WorkerDict(a) pid=31, ip=10.0.0.7)\x1b[0m {line}" for line in OWN], None, "10.0.0.7"),
        ([f"(RayTrainWorker pid=31) {line}" for line in OWN], None, None),
        ([TRACEBACK, "ray.exceptions.RayTaskError(ValueError): ray::A.f() (pid=31, ip=10.0.0.7, actor_id=1)",
          *OWN[1:]], None, "10.0.0.7"),
        ([f"(VllmWorker rank=1 pid=31) {line}" for line in OWN], None, None),
        ([f"Nov 26 00:41:4{n} gpu-7 python[9]: {line}" for n, line in enumerate(OWN)], None, "gpu-7"),
        (["Nov 26 00:41:42 n7 kernel: NVRM: Xid (PCI:0000:02): 79, GPU has fallen off the bus."], None, "n7"),
        ([f"[prterun-head-42@1,3]<stderr>: {line}" for line in OWN], 3, None),
        ([*(f"3: {line}" for line in OWN), "srun: error: n7: tasks 2-3: Exited with exit code 1"], 3, "n7"),
        (  # under torchrun the tasks of srun are its agents
            [*(f"[rank3]: {line}" for line in OWN), *account(5, 1, "2025-03-04_10:11:12")[1:],
             "srun: error: n7: task 3: Exited with exit code 1"],
            3, None,
        ),
        (["n7:1:2 [0] init.cc:1043 NCCL WARN Mismatched NCCL version detected : rank 0"], None, "n7"),
        (["srun: error: n7: task 3: Exited with exit code 1", "srun: error: n8: task 4: Killed"], None, "n7"),
    ],
)  # fmt: skip
def test_whose_line_it_is(lines: list[str], rank: int | None, host: str | None) -> None:
    """By what kubectl, Ray, journald, Open MPI, srun and NCCL put there."""
    failure = said("begin", *lines).failure
    assert failure is not None and failure.evidence is not None
    assert (failure.host, failure.evidence.rank) == (host, rank)


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        (["srun: error: n7: task 3: Killed", "srun: Terminating StepId=1.0"], "killed"),
        (["srun: error: n7: task 3: Exited with exit code 1", "srun: error: n8: tasks 4-7: Killed"], None),
        (["srun: Job step aborted: Waiting up to 32 seconds", "srun: error: n7: task 0: Killed"], None),
        (["srun: error: n7: task 3: Aborted (core dumped)", "srun: error: n8: tasks 0-7: Killed"], None),
        ([REQUEUE], "requeued"),
    ],
)
def test_what_srun_says_of_tasks_that_were_killed(lines: list[str], failure: str | None) -> None:
    """It ends the tasks of a step itself, where another one failed or somebody cancels it."""
    found = said("begin", *lines)
    assert (found.failure.id if found.failure else None) == failure and found.answer != "nothing"


WAITED = (
    "[rank{0}]:[E1126 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut=8, Timeout(ms)=600000) ran for 600029 ms"
)
DUMPED = (
    "[rank{0}]:[E1126 ProcessGroupNCCL.cpp:1765] [Rank {0}] Received a dump signal due to a "
    "collective timeout from rank 1 and we will try our best to dump the debug info. Last enqueued NCCL "
    "work: {1}, last completed NCCL work: {1}."
)


@pytest.mark.parametrize(
    ("lines", "answer", "rank"),
    [
        ([WAITED.format(n, 51, "ALLGATHER" if n == 2 else "ALLREDUCE", 9) for n in range(4)], "known", 2),
        ([WAITED.format(n, 51, "ALLREDUCE", 7 if n == 3 else 9) for n in range(4)], "known", 3),
        ([WAITED.format(n, 52 if n == 1 else 51, "ALLREDUCE", 9) for n in range(4)], "unknown", 1),
        ([*(WAITED.format(n, 11, "ALLREDUCE", 9) for n in (0, 1)), DUMPED.format(2, 10)], "unknown", 2),
        ([WAITED.format(n, 51, "ALLREDUCE" if n else "BROADCAST", 9) for n in (0, 1)], "known", None),
        ([WAITED.format(n, 51, "ALLREDUCE", 9) for n in range(4)], "unknown", None),
        ([WAITED.format(n, 52 if n == 1 else 51, "ALLREDUCE", 7 if n == 1 else 9) for n in range(4)],
         "unknown", 1),
        ([WAITED.format(n, max(50, 48 + n), "ALLREDUCE", 9) for n in range(5)], "unknown", None),
        ([*(WAITED.format(n, 11, "ALLREDUCE", 9) for n in (0, 1)), DUMPED.format(2, 11)], "unknown", None),
        ([WAITED.format(n, 51, "RECV" if n else "SEND", 9) for n in range(3)], "unknown", 0),
        (["Not all ranks joining collective, sequence number: 5", "missing ranks: {3}"], "unknown", 3),
        (["[rank0]: RuntimeError: Rank 5 failed to pass monitoredBarrier in 300000 ms"], "unknown", 5),
        (["error msg: Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH, Expected"], "unknown", 2),
    ],
)  # fmt: skip
def test_the_rank_that_waited_elsewhere(
    lines: list[str], answer: str, rank: int | None, tmp_path: Path
) -> None:
    """By NCCL's watchdog and PyTorch's flight recorder (torch 2.13's words); also from a log of each rank."""
    found = said("begin", *lines)
    assert found.answer == answer and (found.failure is not None) == (rank is not None or answer == "known")
    if found.failure:
        assert found.failure.where == (None if rank is None else f"rank {rank}")
        assert found.failure.id == ("collective_mismatch" if answer == "known" else None)
    for number, line in enumerate(lines):
        (tmp_path / f"rank{number}.log").write_text(f"begin\n{line}\n")
    assert explain_logs(tmp_path).failure == found.failure


def test_a_rank_that_waited_elsewhere_in_a_training_that_went_on() -> None:
    waited = [WAITED.format(n, 52 if n == 1 else 51, "ALLREDUCE", 9) for n in range(4)]
    found = said("begin", *waited, *["epoch 3 done"] * 200)
    assert is_quiet(found)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ('The job stopped: writing the checkpoint failed with "No space left on device" on /ckpt', "known"),
        ("Process 3 ran into CUDA out of memory and was stopped", "known"),
        ("tee: train.log: No space left on device", "known"),
        ("Job failed when saving: OSError: [Errno 28] No space left on device", "known"),
        ("the scheduler knows about CUDA out of memory in worker 3", "unknown"),
        ('Watching for "Address already in use" on port 29500', "unknown"),
        ("Tip: if you see 'CUDA out of memory', lower the batch size.", "quiet"),
        ("CUDA out of memory errors may occur with larger batches", "quiet"),
        ('See docs/faq.md for what to do when "Too many open files" is raised.', "quiet"),
        ("checkpoints are written atomically so that No space left on device would do no harm", "quiet"),
        ("2025-11-01 10:00:00 | the last job on this node ended with CUDA out of memory", "quiet"),
    ],
)
def test_the_words_of_a_failure_within_a_sentence(line: str, answer: str) -> None:
    """Of a log of no known format and without a traceback: sure only where it says that it happened."""
    found = said("begin", line, "bye")
    assert is_quiet(found) == (answer == "quiet")
    assert found.exit_code == int(answer != "known") == int(found.answer != "known")
    assert said("begin", line, TRACEBACK, "KeyError: 'x'").answer in ("named", answer)


UNUSABLE = (
    "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error {}"
    " (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)"
)


@pytest.mark.parametrize(
    "met",
    [
        UNUSABLE.format("802: system not yet initialized"),
        UNUSABLE.format("803: system has unsupported display driver / cuda driver combination"),
        "CUDA init: Error 803: system has unsupported display driver / cuda driver combination",
        "Failed to initialize NVML: Driver/library version mismatch",
        "the host knows of No space left on device at times",
    ],
)
def test_a_gpu_that_computed_was_no_reason(met: str) -> None:
    """Whatever a driver's warning said before; alone it is one."""
    file = "../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [5,0], thread: [6,0]"
    asserted = f"{file} Assertion `srcIndex < srcSelectDimSize` failed."
    raised = [*MET[:2], "RuntimeError: CUDA error: device-side assert triggered"]
    for lines, failure in (([asserted, *raised], "index_out_of_range"), (raised, "illegal_memory_access")):
        found = said(met, "loading", *lines)
        assert found.failure is not None and found.failure.id in (failure, "illegal_memory_access")
    if "NVML" in met:
        assert said(met, "exit code 1").answer == "known"


def steps_of(first: int, last: int) -> list[str]:
    """Of a log of no known format."""
    return [f"step {n}: loss 2.{n}" for n in range(first, last)]


WATCHDOG = (
    "Nov 26 22:51:1{0} n01 train[880]: [rank{0}]:[E1126 22:51:10.112 ProcessGroupNCCL.cpp:683] [Rank {0}] "
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4411, OpType=ALLREDUCE, NumelIn=8)"
)


def test_a_file_server_that_does_not_answer() -> None:
    """What waits for it is an echo; an exception explains more, and steps show that it came back."""
    work = [f"Nov 26 22:20:11 n03 train[881]: step {n} loss 2.{n}" for n in range(1, 9)]
    silent = "Nov 26 22:41:02 n03 kernel: nfs: server nas01 not responding, still trying"
    found = said(*work, silent, *(WATCHDOG.format(n) for n in range(3)))
    assert found.failure is not None and found.blame == "setup"
    assert (found.failure.id, found.failure.host) == ("file_server_silent", "n03")
    assert is_quiet(said(*work, silent, *work))
    found = said(*work, silent, "begin", *TOP)
    assert found.failure is not None and found.failure.id == "cuda_oom"


@pytest.mark.parametrize(
    ("lines", "failure", "rank"),
    [
        (["Error: step 150", "", "Caused by:", "    0: attention backward, layer 30",
          '    1: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")'], "cuda_oom", None),
        (["0: a", '1: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")'], "cuda_oom", "rank 1"),
        (["  fatal: could not read Username for 'https://github.com': No such device or address",
          "  error: subprocess-exited-with-error", "  x git clone did not run successfully.",
          "error: subprocess-exited-with-error"], "git_credentials", None),
        ([TRACEBACK, '  File "/w/t.py", line 71, in <module>', "    model.fit(x)",
          "ValueError: Exception encountered when calling Sequential.call().", "",
          '\x1b[1mInput 0 of layer "dense" is incompatible with the layer: expected axis -1 of\x1b[0m'],
         "shape_mismatch", None),
    ],
)  # fmt: skip
def test_a_cause_within_lists_and_boxes(lines: list[str], failure: str, rank: str | None) -> None:
    found = said("begin", *lines).failure
    assert found is not None and (found.id, found.where) == (failure, rank)


def test_the_rest_of_what_keras_says() -> None:
    raised = "ValueError: Exception encountered when calling Sequential.call()."
    found = said("begin", *TOP[:3], raised, "", "Cannot take the length of shape with unknown rank.").failure
    assert found is not None and found.what == f"{raised} Cannot take the length of shape with unknown rank."


def test_a_barrier_that_one_rank_missed() -> None:
    """The others' echoes of it, with and without tracebacks, are no cause."""
    missed = ["[rank0]: RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 1800000 ms"]
    echo = (
        "[rank{0}]: RuntimeError: Rank {0} successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    top = [f"[rank1]: {line}" for line in TOP[:3]]
    for lines in ([*missed, echo.format(1)], [*top, echo.format(1), *missed], [echo.format(2), *missed]):
        found = said("begin", *steps_of(1, 9), *lines)
        assert found.failure is not None and found.failure.where == "rank 3"


TOP = [
    TRACEBACK,
    '  File "/w/t.py", line 30, in <module>',
    "    main()",
    "RuntimeError: CUDA out of memory. 2 GiB",
]
INNER = [TRACEBACK, '  File "/w/t.py", line 9, in push', "    f()", "HfHubHTTPError: 504 Server Error"]
TRAINED = trainer_log().rstrip("\n").split("\n")


@pytest.mark.parametrize(
    ("lines", "answer", "others"),
    [
        ([*steps_of(1, 9), *TOP, "run 2", *steps_of(1, 30), "Training completed."], "known", 0),
        ([*steps_of(1, 9), *TOP, "run 2", *steps_of(1, 400), "Training completed."], "known", 0),
        ([*steps_of(1, 400), "Training completed.", *steps_of(1, 9), *TOP, *steps_of(1, 400),
          "Training completed."], "known", 0),
        ([*steps_of(1, 9), *INNER, *steps_of(1, 30), "Training completed."], "nothing", 0),  # an epoch
        ([*steps_of(1, 9), *INNER, *steps_of(1, 400), "Training completed."], "nothing", 0),
        ([*steps_of(1, 9), *TOP, "run 2", *steps_of(1, 30), *LOGIC], "named", 1),
        ([*TRAINED[:11], *TOP, *TRAINED], "known", 0),
        ([*TRAINED, *TRAINED[:11], *TOP], "known", 0),
        ([*metaseq_log()[:20], *TOP, *metaseq_log()], "known", 0),
    ],
)
def test_several_runs_in_one_log(lines: list[str], answer: str, others: int) -> None:
    """As of a sweep: what ended one before another that ended well is said, unless the program caught it."""
    found = said(*lines)
    assert (found.answer, len(found.others)) == (answer, others)
    if answer == "known":
        assert found.failure is not None and found.failure.id == "cuda_oom"
        assert found.failure.evidence is not None and found.failure.evidence.line
        assert bool(found.notes) == (lines[-1] != TOP[-1])


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([*(log := chat_log(["n1"], ends=False))[:-10], *TOP, *log[-10:]], "unknown"),  # in Python's buffer
        ([*log, *INNER, *["evaluated an example"] * 300], "unknown"),
        ([*log, *TOP, *["wandb: history"] * 300], "known"),
        ([*log, *INNER, "bye"], "named"),
    ],
)
def test_what_a_known_format_says_after_an_exception(lines: list[str], answer: str) -> None:
    """Steps may have stood in a buffer; what was caught and is long ago is not said to be why."""
    found = said(*lines)
    assert found.answer == answer
    if answer == "unknown":
        assert [each.text for each in found.others] == [INNER[-1] if INNER[-1] in lines else TOP[-1]]


def test_many_ranks_that_raise_one_after_the_other() -> None:
    """The first one's lines are far from the end then."""
    frames = [f'  File "/w/t.py", line {n}, in f' for n in range(9)]
    every = [of_rank(n, *TOP[:2], *frames, f"ValueError: bad row {n}") for n in range(30)]
    failure = said("begin", *(line for each in every for line in each)).failure
    assert failure is not None and failure.where == "rank 0"


TRIAL = [
    "[W 2025-01-01 10:05:00,000] Trial 3 failed with parameters: {'lr': 1} because of the following error: "
    "OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB').",
    TRACEBACK,
    '  File "/x/site-packages/optuna/study/_optimize.py", line 201, in _run_trial',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "[W 2025-01-01 10:05:00,000] Trial 3 failed with value None.",
]
FINISHED = "[I 2025-01-01 10:06:00,000] Trial {} finished with value: 0.9 and parameters: {{'lr': 0.1}}."


@pytest.mark.parametrize(
    ("lines", "answer", "what"),
    [
        ([*TRIAL, FINISHED.format(4), FINISHED.format(5)], "unknown", None),  # Optuna's, which goes on
        (TRIAL, "known", "torch.OutOfMemoryError"),
        (["ssh: connect to host node9 port 22: Connection refused", "step 1: loss 3", *TOP[:2], "OSError: x"],
         "named", "OSError: x"),
        (["2025-01-01 10:00:00.123 | ERROR    | __main__:main:10 - training failed: x"], "unknown", None),
        (["ERROR:composer.cli.launcher:Rank 3 crashed with exit code -9."], "known", "ERROR:composer"),
        (["Port 29500: Address already in use, next", *TOP], "known", "RuntimeError: CUDA"),
        (["MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD"], "unknown", "MPI_ABORT was"),
        (["a.pt is corrupt (PytorchStreamReader failed reading zip archive)", "b.pt", *TOP[:2], "OSError: x"],
         "named", "OSError: x"),
        (["t.py::test_disk PASSED [No space left on device]"], "unknown", None),
    ],
)  # fmt: skip
def test_what_tools_say_of_parts_that_failed(lines: list[str], answer: str, what: str | None) -> None:
    found = said("begin", *lines)
    assert found.answer == answer and (found.failure is not None) == (what is not None)
    assert found.failure is None or found.failure.what.startswith(what or "")


LOSS = "/w/aten/native/cuda/Loss.cu:245: nll_loss: block: [0,0,0], thread: [4,0,0] Assertion `{}` failed."


@pytest.mark.parametrize(
    "said_by_gpu",
    ["t >= 0 && t < n_classes", 'index >= -sizes[i] && index < sizes[i] && "index out of bounds"'],
)
def test_what_the_gpu_itself_asserts_is_the_cause(said_by_gpu: str) -> None:
    """It names no rank; torchrun's account does, of one that only met it. Another try would meet it again."""
    raised = of_rank(1, *TOP[:2], "RuntimeError: CUDA error: device-side assert triggered")
    found = said(LOSS.format(said_by_gpu), *raised, *account(1, 1, "2026-11-25_09:24:14"))
    assert found.failure is not None and "Assertion" in found.failure.what
    assert (found.failure.id, found.retry) == ("index_out_of_range", "changed")


def test_a_program_that_was_asked_to_end() -> None:
    """It saved and left: it has not failed, and did not finish."""
    asked = "2026-11-03 18:01:31,020 WARNING signals Received SIGTERM, saving checkpoint before exit"
    found = said(*steps_of(1, 9), asked, "Checkpoint saved", "2026 INFO main exiting with code 143")
    assert (found.answer, found.exit_code) == ("named", 0) and found.failure is not None
    assert said(*steps_of(1, 9), asked, *steps_of(9, 30), "Training completed").failure is None


def test_a_person_who_ended_lightning_and_a_node_that_megatron_names() -> None:
    ended = "Detected KeyboardInterrupt, attempting graceful shutdown ..."
    assert said("Epoch 0: 10%", ended).answer == "named"
    nan = "RuntimeError: Rank 9, node n2, device 1, iteration 120: Unexpected result nan (message=x)"
    found = said("begin", *TOP[:2], nan)
    assert found.failure is not None and (found.failure.host, found.blame) == ("n2", "unknown")


def test_an_attempt_that_torchrun_started_again() -> None:
    """It says itself that the last one ended well."""
    broke = (
        "E1103 15:00:00.1 77 torch/x/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 91) of binary: /p"
    )
    done = (
        "I1103 15:20:00.3 77 torch/x/api.py:879] [default] worker group successfully finished. Waiting 300 s"
    )
    lines = ["step 100 loss 2.1", *of_rank(1, *TOP[:2], "ConnectionError: reset by peer"), broke]
    assert said(*lines, "step 200 loss 1.9", done).answer == "nothing"
    assert said(*lines, "step 200 loss 1.9").answer != "nothing"


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_a_program_that_stops_since_its_loss_is_not_finite(prefix: str) -> None:
    """As MAE, DETR and torchvision's references do, which print nothing else."""
    found = said(*steps_of(1, 9), "step 9 loss nan", f"{prefix}Loss is nan, stopping training")
    assert found.failure is not None and (found.failure.id, found.blame) == ("loss_nan", "work")
    assert said("step 9 loss nan", "Loss is nan, stopping training", *steps_of(9, 200)).failure is None


def test_torchruns_rendezvous_that_timed_out_is_no_fault_of_the_program() -> None:
    """Its agent raises that before a line of the program has run."""
    late = [*TOP[:3], "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"]
    found = said("[c10d] The client socket has connected to [head]:29500", *late)
    assert found.failure is not None and (found.failure.id, found.blame) == ("rdzv_timeout", "setup")
    found = said(*late, *of_rank(1, *TOP))
    assert found.failure is not None and found.failure.id == "cuda_oom"


def test_the_launchers_option_with_a_hyphen() -> None:
    """torch.distributed.launch has no --no_local_rank, DeepSpeed's; the script may know --local_rank."""
    refused = "train.py: error: unrecognized arguments: {}"
    for option, failure in (("--local-rank=1", "local_rank_hyphen"), ("--local_rank=1", "local_rank_arg")):
        found = said("usage: train.py [-h] [--local_rank LOCAL_RANK]", refused.format(option))
        assert found.failure is not None and found.failure.id == failure
        assert ("--no_local_rank" in (found.remedy or "")) == (failure == "local_rank_arg")


EXECVE = "slurmstepd: error: execve()"
OF_SRUN = ["srun: error: n4: tasks 4-7: Exited with exit code 2", "srun: error: n1: tasks 0-3: Terminated"]


@pytest.mark.parametrize(
    ("lines", "host", "rank"),
    [
        ([f"{EXECVE}: /opt/py312/bin/python: No such file or directory", *OF_SRUN], "n4", None),
        (
            [
                "slurmstepd: error: Detected 1 oom_kill event in StepId=7712.0.",
                "srun: error: n3: task 12: Out Of Memory",
                *OF_SRUN[1:],
            ],
            "n3",
            None,
        ),
        (["pdsh@head: w2: ssh exited with exit code 255", "w2: Host key verification failed."], "w2", None),
        (["ERROR:composer.cli.launcher:Rank 3 crashed with exit code 1.", *LOGIC], None, 3),
        ([*LOGIC, *OF_SRUN, "srun: error: n5: tasks 8-9: Exited with exit code 1"], None, None),
        ([*LOGIC, *OF_SRUN[1:], "srun: error: n6: task 9: Killed"], None, None),
    ],
    ids=["execve", "oom", "pdsh", "composer", "two", "none"],
)  # fmt: skip
def test_whose_failure_the_launchers_account_tells(
    lines: list[str], host: str | None, rank: int | None
) -> None:
    """Where the line that says why names nobody, and one process alone ended by itself."""
    found = said("begin", *lines)
    assert found.failure is not None and found.failure.evidence is not None
    assert (found.failure.evidence.host, found.failure.evidence.rank) == (host, rank)


def test_an_interpreter_of_ones_own_is_in_no_distributions_package() -> None:
    for path, own in (("/usr/bin/python3", False), ("/opt/py312/bin/python", True)):
        found = said(f"{EXECVE}: {path}: No such file or directory", *OF_SRUN)
        assert found.failure is not None and found.failure.id == "remote_python_missing"
        assert ("apt-get" in (found.remedy or "")) != own and "on n4" in (found.remedy or "")


def test_a_training_that_ended_by_itself_and_diverged() -> None:
    """The Trainer prints a loss of 0 then. What was so for some steps and is no more, as of fp16, is none."""
    losses = ["{{'loss': {}, 'grad_norm': {}, 'learning_rate': 0.01, 'epoch': 0.1}}".format(*each)
              for each in ((8.1, 3.2), (0.0, "nan"), (0.0, "'nan'"))]  # fmt: skip
    end = "{'train_runtime': 101.2, 'train_samples_per_second': 31.6, 'train_loss': 72.05, 'epoch': 1.0}"
    for lines, diverged in ((losses, True), ([losses[1], losses[0]], False)):
        found = said(*lines, end)
        assert found.answer == "nothing" and bool(found.notes) == ("of no use" in found.says) == diverged
        assert not diverged or "line 2 " in found.notes[0]


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        ([*TRAINED, *LOGIC], True),
        ([*TRAINED, *LOGIC, *account(0, 1, "2026-11-25_09:24:14")], True),
        ([*TRAINED[:11], *LOGIC], False),
        ([*TRAINED, "{'loss': 2.1, 'grad_norm': 1.2, 'epoch': 0.1}", *LOGIC], False),  # of another training
    ],
)
def test_a_training_that_was_whole_before_the_program_failed(lines: list[str], whole: bool) -> None:
    found = said(*lines)
    assert found.answer == "named" and bool(found.notes) == whole


def of_total(*steps: int) -> list[str]:
    """Lines of no known format, of a training of 60 steps."""
    return [f"step {n}/60 loss 2.1" for n in steps]


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (of_total(20, 40), "unknown"),
        ([*of_total(20, 40, 60), "Training complete in 0h 4m", *of_total(20, 40)], "unknown"),  # two runs
        (of_total(20, 40, 60), "unknown"),  # what comes after the last step is not said
        (of_total(0, 20, 40), "unknown"),  # counted from 0: there is no line of step 60, nor of an end
        (of_total(0, 10, 20), "unknown"),
        ([*of_total(20, 40), "Training complete"], "nothing"),
        ([*of_total(20, 40), *["evaluated an example"] * 9], "unknown"),
    ],
)
def test_a_log_of_no_known_format_that_stops_before_its_last_step(lines: list[str], answer: str) -> None:
    found = said("begin", *lines)
    assert (found.answer, found.failure) == (answer, None)


def test_a_rank_of_its_host_by_torchruns_prefix() -> None:
    """--tee and --redirects say which process of a host wrote a line, and not which rank of the job."""
    failure = said("begin", *(f"[default6]:{line}" for line in LOGIC)).failure
    assert failure is not None and failure.evidence is not None
    assert (failure.where, failure.evidence.rank) == ("local rank 6", None)


def test_a_training_that_lightning_stopped_early() -> None:
    """EarlyStopping ends it well; the Trainer goes on where its least number of epochs is not reached."""
    bar = "Epoch {}: 100%|███| 313/313 [00:31<00:00,  9.91it/s, v_num=2, train_loss=0.221, val_loss=0.402]"
    epochs = [bar.format(n) for n in range(8)]
    early = "Monitored metric val_loss did not improve in the last 3 records. Best score: 0.402. Signaling"
    goes_on = "Trainer was signaled to stop but the required `min_epochs=9` has not been met"
    nan = "Monitored metric val_loss = nan is not finite. Previous best value was 0.402. Signaling"
    found = said(*epochs, nan, epochs[-1])
    assert found.failure is not None and found.failure.id == "loss_nan"
    assert "1 job ended well" in said(*epochs, early, epochs[-1]).says
    assert "ended well" not in said(*epochs, early, goes_on, bar.format(8)).says


def test_the_node_and_the_message_of_an_evicted_pod() -> None:
    """`kubectl describe` names the node above, and says below what the node was short of."""
    pod = [
        "Name:             trainer-3",
        "Node:             gpu-node-5/10.0.0.5",
        "Reason:           Evicted",
        "Message:          The node was low on resource: ephemeral-storage. Threshold quantity: 10737418240",
    ]
    failure = said(*pod).failure
    assert failure is not None and (failure.id, failure.host) == ("pod_evicted", "gpu-node-5")
    assert "ephemeral-storage" in failure.what
    failure = said(*pod[:2], "Name:  other", "Node:             <none>", *pod[2:]).failure
    assert failure is not None and failure.host is None


# ----------------------------------------------------------------------------------------------------
# What is said as certain: only what the log says.


@pytest.mark.parametrize(
    ("last", "well"),
    [
        ("Done.", True),
        ("2025-01-02 10:00:00 INFO done in 31 s", True),
        ("[INFO] Training finished", True),
        ("`Trainer.fit` stopped: `max_epochs=3` reached.", True),
        ("Job 'raysubmit_x' succeeded", True),
        ("step 60/60 loss 2.1", False),
        ("Training complete\nwandb: loss 0.3\nbye", True),
        ("Training completed for fold 1\nfold 2 begins\nbuilding model", False),
        ("Done.\nnow training", False),
        ("Exit Code: 0\nState: Running", False),
        ("worker exited with code 0", True),
        ("done loading data", False),
        ("Finished epoch 3", False),
        ("step 40/60 loss 2.1", False),
        ("Saved checkpoint step_40", False),
        ("Loading checkpoint shards: 100%|####| 2/2 [00:01<00:00]", False),
        ("worker exited with code 1", False),
    ],
)
def test_that_it_ended_well_is_said_where_the_log_says_so(last: str, well: bool) -> None:
    found = said("begin", "loss 2.3", *last.split("\n"))
    assert (found.answer, found.exit_code) == (("nothing", 0) if well else ("unknown", 1))
    assert well or last.rpartition("\n")[2] in [*found.lines, found.failure and found.failure.what]


def test_a_format_without_a_word_of_its_end_says_nothing_of_it() -> None:
    """Ranks of a job that ended well need no end of their own; another training does."""
    steps = [f"{{'loss': 2.{n}, 'learning_rate': 1e-05, 'epoch': 0.{n}}}" for n in range(1, 9)]
    cut = said(*steps)
    assert (cut.answer, cut.exit_code, cut.failure) == ("unknown", 1, None)


def test_lines_that_speak_of_an_error_are_shown_where_nothing_is_known() -> None:
    found = said("begin", "make: *** [all] Error 2", *["still here"] * 20)
    assert is_quiet(found) and "make: *** [all] Error 2" in found.lines


LIBRARY = '  File "/x/site-packages/lib/core.py", line 4, in get'
OWN_LINE = '  File "/w/t.py", line 3, in main'


@pytest.mark.parametrize(
    ("frames", "last", "blame"),
    [
        ([OWN_LINE], "KeyError: 'loss'", "work"),
        ([OWN_LINE], "IndexError: list index out of range", "work"),
        ([OWN_LINE, LIBRARY], "KeyError: 'qwen3'", "unknown"),
        ([OWN_LINE], "AttributeError: module 'torch' has no attribute 'xpu'", "unknown"),
        ([OWN_LINE], "TypeError: __init__() got an unexpected keyword argument 'tokenizer'", "unknown"),
        ([OWN_LINE], "AssertionError", "unknown"),
        ([OWN_LINE], "AssertionError: needs a GPU", "unknown"),
        ([OWN_LINE], "AssertionError: found 4 devices", "unknown"),
        ([OWN_LINE], "RuntimeError: cannot go on", "unknown"),
        ([OWN_LINE], "ConnectionResetError: [Errno 104] reset", "unknown"),
        ([OWN_LINE], "botocore.exceptions.EndpointConnectionError: Could not connect", "unknown"),
        ([], "ValueError: bad", "unknown"),
    ],
)
def test_the_program_is_blamed_for_what_a_mistake_alone_raises(
    frames: list[str], last: str, blame: str
) -> None:
    found = said("begin", TRACEBACK, *frames, last)
    assert (found.answer, found.blame) == ("named", blame)


def test_a_host_that_no_line_names_is_not_blamed() -> None:
    line = "Out of memory: Killed process 4711 (python3) total-vm:1kB"
    alone, logged = said("begin", line), said(f"Nov 26 00:41:40 node7 kernel: {line}")
    hosts = [each.failure.host if each.failure else "" for each in (alone, logged)]
    assert hosts == [None, "node7"]
    assert "no line says which" in str(alone.blamed) and "no line says" not in str(logged.blamed)


HYDRA = ["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "=   RANK 3 PID 4821 RUNNING AT n7"]
CAUGHT = "submitit WARNING (2022-08-12 02:06:11,453) - Caught signal SIGUSR2 on n7: this job is timed-out."


@pytest.mark.parametrize(
    ("lines", "answer", "failure", "host", "where"),
    [
        (["train.service: Main process exited, code=killed, status=15/TERM"], "named", None, None, None),
        (["train.service: Main process exited, code=dumped, status=11/SEGV"], "known", "crashed", None, None),
        (["run.sh: line 12:  4711 Terminated              python train.py"], "named", None, None, None),
        (["MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD"], "unknown", None, None, "rank 3"),
        (["Abort(1) on node 3: application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3"], "unknown", None,
         None, "rank 3"),
        ([*HYDRA, "=   KILLED BY SIGNAL: 9 (Killed)"], "known", "killed", "n7", None),
        ([*HYDRA, "=   KILLED BY SIGNAL: 15 (Terminated)"], "named", None, "n7", None),
        (["YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)"], "named", None, None,
         None),
        ([*HYDRA, "=   EXIT CODE: 1"], "unknown", None, "n7", None),
        (["n2: bash: torchrun: command not found"], "known", "launcher_not_installed", "n2", None),
        (["n2: bash: python3: command not found"], "known", "remote_python_missing", "n2", None),
        ([CAUGHT], "known", "time_limit", None, None),
        (["[1,0]<stderr>:UnknownError: Horovod has been shut down."], "unknown", None, None, None),
        (["  Process name: [[29973,1],2]", "  Exit code:    1"], "unknown", None, None, "rank 2"),
        (["=>> PBS: job killed: mem 6kb exceeded limit 5kb"], "known", "container_oom", None, None),
        ([TRACEBACK, OWN_LINE, "ImportError: cannot import name 'N' from 'm' (/w/m.py)"], "named", None, None,
         None),
        (["DistributedOptimizer_Allreduce [missing ranks: 1]"], "unknown", None, None, "rank 1"),
        ([TRACEBACK, OWN_LINE, "ImportError: cannot import name 'helper' from partially initialized module "
          "'train' (most likely due to a circular import) (/w/train.py)"], "named", None, None, None),
        ([TRACEBACK, OWN_LINE, "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/b'"], "known",
         "mount_lost", None, None),
    ],
)  # fmt: skip
def test_how_tools_say_that_a_process_ended(
    lines: list[str], answer: str, failure: str | None, host: str | None, where: str | None
) -> None:
    found = said("begin", *lines)
    assert found.answer == answer
    named = found.failure
    assert (named and named.id, named and named.host, named and named.where) == (failure, host, where)


# ----------------------------------------------------------------------------------------------------
# What a stranger's logs showed.

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 3 has a total capacity of "
    "79.10 GiB of which 198.00 MiB is free. {0} Of the allocated memory {1} GiB is allocated by PyTorch, and "
    "{2} GiB is reserved by PyTorch but unallocated."
)
HVD = "[1,0]<stderr>:tensorflow.UnknownError: Horovod has been shut down."
RAY = "(TrainController pid=9, ip=10.0.4.11) "
DESCRIBED = """\
Node:             n3/10.0.0.3
Status:           {0}
    State:          {1}
    Last State:     Terminated
      Reason:       {2}
      Exit Code:    1
      Started:      Tue, 21 Oct 2025 08:20:12 +0000
    Restart Count:  1
Events:          <none>"""


@pytest.mark.parametrize(
    ("processes", "held", "failure"),
    [
        ("Process 387746 has 78.89 GiB memory in use.", (70.12, 7.65), "cuda_oom"),  # itself, in a container
        ("Process 7 has 40.00 GiB memory in use. Process 8 has 38.90 GiB memory in use.", (36.0, 1.0),
         "gpu_shared"),
        ("Process 7 has 78.00 GiB memory in use.", (4.0, 1.0), "gpu_shared"),
        ("Process 7 has 60.00 GiB memory in use. Including non-PyTorch memory, this process has 18.90 GiB "
         "memory in use.", (17.0, 1.0), "gpu_shared"),
    ],
)  # fmt: skip
def test_a_process_that_is_the_one_that_says_it(
    processes: str, held: tuple[float, float], failure: str
) -> None:
    found = said("begin", TRACEBACK, OWN_LINE, FULL.format(processes, *held)).failure
    assert found is not None and found.id == failure


@pytest.mark.parametrize(
    ("lines", "answer", "failure", "host", "where"),
    [
        (["ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7."], "known", "bus_error", None,
         "rank 2"),
        (["train.service: Main process exited, code=dumped, status=7/BUS"], "known", "bus_error", None, None),
        (["=   KILLED BY SIGNAL: 7 (Bus error)"], "known", "bus_error", None, None),
        (["srun: error: h4: task 3: Exited with exit code 1", "srun: Terminating StepId=1.0",
          "slurmstepd: error: *** STEP 1.0 ON h1 CANCELLED AT 2025-07-30T12:51:10 ***",
          "srun: error: h1: task 0: Terminated"], "unknown", None, "h4", None),
        (["srun: error: h4: task 5: Exited with exit code 137", "srun: Terminating StepId=1.0",
          "slurmstepd: error: *** STEP 1.0 ON h1 CANCELLED AT 2025-07-30T12:51:10 ***"], "known",
         "killed", "h4", None),
        (["slurmstepd: error: *** STEP 1.0 ON h1 CANCELLED AT 2025-07-30T12:51:10 ***",
          "srun: error: h4: task 5: Exited with exit code 1"], "named", None, None, None),
        ([*(f"{RAY}{line}" for line in ("[Rank 2 Error Snippet]:", TRACEBACK, OWN_LINE, "KeyError: 'x'",
                                        "[State Transition] RUNNING -> ERRORED."))],
         "named", None, None, "rank 2"),
        ([TRACEBACK, OWN_LINE, "pydantic_core.ValidationError: 1 validation error for Settings", "tp",
          "  Input should be a valid integer [type=int_parsing, input_value='auto', input_type=str]"],
         "named", None, None, None),
        (["[1,0]<stderr>:Missing ranks:", "[1,0]<stderr>:3: [grads_12_0 ...]", HVD], "unknown", None, None,
         "rank 3"),
        (["Stalled ranks:", "1: [a]", "2: [a]", HVD], "unknown", None, None, None),
        (["Could not override 'trainer.num_node'.", "Key 'num_node' is not in struct"], "known",
         "bad_arguments", None, None),
        (["PyTorchJob bert is failed because 1 Worker replica(s) failed."], "unknown", None, None, None),
        (DESCRIBED.format("Running", "Waiting", "OOMKilled").split("\n"), "known", "container_oom", "n3",
         None),
    ],
)  # fmt: skip
def test_what_ended_it_first_and_where(
    lines: list[str], answer: str, failure: str | None, host: str | None, where: str | None
) -> None:
    found = said("begin", *lines)
    named = found.failure
    assert found.answer == answer
    assert (named and named.id, named and named.host, named and named.where) == (failure, host, where)


@pytest.mark.parametrize(
    "lines",
    [
        ["(TrainController pid=9, ip=10.0.4.11) [State Transition] RUNNING -> FINISHED."],
        ["Result(metrics={'loss': 0.902}, error=None)"],
        ["EXIT_CODE=0"],
        ["Trial status: 4 TERMINATED"],
        DESCRIBED.format("Succeeded", "Terminated", "Error").split("\n"),
        [
            *(f"[2025-03-11 09:00:04,220] [INFO] [launch.py:256:main] process {n} spawned with command: ['t']"
              for n in (1, 2)),
            *(f"[2025-03-11 09:02:31,400] [INFO] [launch.py:351:main] Process {n} exits successfully."
              for n in (1, 2)),
        ],
    ],
)  # fmt: skip
def test_that_it_ended_well_by_what_launchers_say(lines: list[str]) -> None:
    found = said("begin", "loss 2.3", *lines)
    assert (found.answer, found.exit_code) == ("nothing", 0)
    assert said("begin", "loss 2.3", *lines[:-1] or ["EXIT_CODE=1"]).answer != "nothing" or "Node" in lines[0]


def test_the_rank_that_lags_behind_where_only_some_lines_name_the_group() -> None:
    behind = DUMPED.format(2, 10).replace("[Rank 2]", "[PG ID 0 PG GUID 0(default_pg) Rank 2]")
    found = said("begin", *(WAITED.format(n, 11, "ALLREDUCE", 9) for n in (0, 1)), behind)
    assert found.failure is not None and found.failure.where == "rank 2"


def test_remedies_for_any_tools_log_name_no_command_of_a_run() -> None:
    assert not [entry.id for entry, phrase in PHRASES if "muster resume" in entry.remedy + phrase.remedy]

# ----------------------------------------------------------------------------------------------------
# What was ended from outside, what only points to a cause, and whose limit it was.

TRAINED = ["step 990/1000 loss 1.11", "step 1000/1000 loss 1.10", "Training complete, model in out/"]
ENDED = "W0501 10:00:40.1 api.py:897] Received 15 death signal, shutting down workers"
OF_RANK = [TRACEBACK, '  File "/w/train.py", line 88, in <module>', '  File "/w/data.py", line 31, in f',
           "RuntimeError: stack expects each tensor to be equal size"]  # fmt: skip
BY_BASH = "./run.sh: line 9: 11212 {}              {}"


def test_a_rank_that_was_ended_because_another_one_raised(tmp_path: Path) -> None:
    """Of several logs, and in one where the launcher says it first; not by what is raised later."""
    stamp = "2025-05-01 10:00:{} INFO step 1{} loss 2.0"
    for rank, lines in ((0, ["ncclRemoteError: A call failed"]), (1, [ENDED]), (5, OF_RANK)):
        (tmp_path / f"rank_{rank}.log").write_text("\n".join([stamp.format(21, 0), *lines, ""]))
    found = explain_logs(tmp_path)
    assert found.failure is not None and (found.failure.what, found.failure.where) == (OF_RANK[-1], "rank 5")
    assert ENDED not in [each.text for each in found.others]
    later = [stamp.format(21, 0), stamp.format(59, 5), *OF_RANK, ""]
    (tmp_path / "rank_5.log").write_text("\n".join(later))
    assert explain_logs(tmp_path).failure.what == ENDED  # type: ignore[union-attr]
    one = said("begin", f"[rank1]: {ENDED}", *of_rank(5, *OF_RANK)).failure
    assert one is not None and (one.what, one.where) == (OF_RANK[-1], "rank 5")
    same = said("begin", f"[rank1]: {ENDED}", *of_rank(1, *OF_RANK)).failure
    assert same is not None and same.what == ENDED


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([*TRAINED, "Terminated"], "nothing"),
        ([*TRAINED, BY_BASH.format("Terminated", "python monitor.py")], "nothing"),
        ([*TRAINED[:2], "Done.", "Terminated"], "nothing"),
        ([*TRAINED[:2], "Terminated"], "named"),
        ([TRAINED[0], "Done.", "Terminated"], "named"),  # of a part
        ([*TRAINED[:1], BY_BASH.format("Terminated", "nvidia-smi dmon -s pucm > gpu.log")], "unknown"),
        ([*TRAINED, BY_BASH.format("Killed", "( while true; do date; done )")], "nothing"),
        ([*TRAINED[:1], BY_BASH.format("Terminated", "python train.py --watch")], "named"),
        ([*TRAINED, "starting evaluation", "Terminated"], "named"),
    ],
)
def test_what_is_ended_after_the_training(lines: list[str], answer: str) -> None:
    found = said("begin", *lines)
    assert found.answer == answer
    assert (WHOLE in found.notes) == (answer == "named" and TRAINED[1] in lines)


def test_what_runs_beside_a_training_and_is_ended_after_it(tmp_path: Path) -> None:
    """A log by another name may be of a job that was ended before its first step."""
    (tmp_path / "train.out").write_text("\n".join([*TRAINED, ""]))
    (tmp_path / "tensorboard.log").write_text("TensorBoard 2.15.0 at http://localhost:6006/\nTerminated\n")
    found = explain_logs(tmp_path)
    assert (found.answer, found.exit_code, len(found.notes)) == ("nothing", 0, 1)
    (tmp_path / "tensorboard.log").rename(tmp_path / "job2.log")
    assert explain_logs(tmp_path).answer == "named"


IN_TASK = [
    "ray.exceptions.RayTaskError(ValueError): ray::ImplicitFunc.train() (pid=812, ip=172.31.9.4, repr=f)",
    '  File "tune.py", line 71, in f',
    "    loader = DataLoader(ds, batch_size=0)",
    "ValueError: batch_size should be a positive integer value",
]
TUNE = [TRACEBACK, '  File "tune.py", line 140, in <module>',
        "ray.tune.error.TuneError: ('Trials did not complete', [f_1])"]  # fmt: skip
POINTED = [TRACEBACK, OWN_LINE, "XlaRuntimeError: DNN failed. Look at the errors above for more details."]
CUDNN = "E1027 15:10:59.01 4 cuda_dnn.cc:4] Loaded runtime CuDNN library: 9.1 but source was compiled with: 9"
ARROW, UNREAD = "pyarrow.lib.ArrowInvalid: no magic bytes", "RuntimeError: cannot read /d"


@pytest.mark.parametrize(
    ("lines", "what", "others", "host"),
    [
        ([*IN_TASK, "Number of errored trials: 1", *TUNE], IN_TASK[-1], [], "172.31.9.4"),
        ([*TUNE], TUNE[-1], [], None),
        ([*IN_TASK, TRACEBACK, OWN_LINE, "KeyError: 'of the driver'"], IN_TASK[-1],
         ["KeyError: 'of the driver'"], "172.31.9.4"),
        (POINTED, POINTED[-1], [], None),
        ([*POINTED, *raised("ValueError: x")], "ValueError: x", [], None),
        ([CUDNN, *POINTED], CUDNN, [POINTED[-1]], None),
        ([*raised(ARROW), *HANDLED, *raised(UNREAD)], UNREAD, [ARROW], None),
        ([*raised(ARROW), *CAUSED, *raised(UNREAD)], ARROW, [], None),
        (of_rank(3, *raised("dill.Unpickling: bad", "in two lines"), *CAUSED, *raised("RuntimeError: no")),
         "dill.Unpickling: bad", [], None),
        ([*raised("StopIteration"), *CAUSED, *raised(UNREAD)], UNREAD, [], None),
        ([*raised("queue.Empty"), *HANDLED, *raised(UNREAD)], UNREAD, [], None),
        ([*raised("jax.errors.SimplifiedTraceback: none"), *CAUSED, *raised("RuntimeError: x")],
         "RuntimeError: x", [], None),
    ],
)  # fmt: skip
def test_what_an_exception_that_points_elsewhere_points_to(
    lines: list[str], what: str, others: list[str], host: str | None
) -> None:
    found = said("begin", *lines)
    assert found.failure is not None and (found.failure.what, found.failure.host) == (what, host)
    assert [each.text for each in found.others] == others
    assert found.alike == 0


BOX = ["C++ Traceback (most recent call last):", "FatalError: `{}` is detected by the operating system.",
       "  [SignalInfo: *** {} (@0x3ee0) received by PID 415 (TID 0x7f3c) from PID 414 ***]"]  # fmt: skip
PROMISED = "W0203 03:01:11.220 preemption_sync_manager.cc:300] Preemption notice received: SIGTERM"
OF_LSF = ["Subject: Job 771: <ft> in cluster <gold> {}", "Terminated at Tue May 13 10:42:17 2025", "{}", "{}",
          "The output (if any) follows:", *[f"epoch 0 step {n}00 loss 1.7" for n in range(1, 4)]]  # fmt: skip
IGNORED = ["Exception ignored in: <function f at 0x7f1>", TRACEBACK, OWN_LINE,
           "AssertionError: can only test a child process"]  # fmt: skip
MEMORY = "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."


@pytest.mark.parametrize(
    ("lines", "answer", "failure", "blame"),
    [
        ("\n".join(BOX).format("Termination signal", "SIGTERM").split("\n"), "named", None, None),
        ("\n".join(BOX).format("Segmentation fault", "SIGSEGV").split("\n"), "known", "crashed", "unknown"),
        ("\n".join(BOX).format("Access to an undefined portion of a memory object", "SIGBUS").split("\n"),
         "known", "bus_error", "host"),
        (["mpirun noticed that process rank 1 with PID 0 on node n4 exited on signal 9 (Killed)."], "known",
         "killed", "unknown"),
        (["n4: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB"], "known",
         "container_oom", "work"),
        (["Reason:  Evicted", "Message:  Container t exceeded its local ephemeral storage limit \"10Gi\". "],
         "known", "pod_storage_limit", "work"),
        (["Reason:  Evicted", "Message:  The node was low on resource: memory."], "known", "pod_evicted",
         "host"),
        ("\n".join(OF_LSF).format("Exited", MEMORY, "Exited with exit code 137.").split("\n"), "known",
         "container_oom", "work"),
        ("\n".join(OF_LSF).format("Exited", "TERM_OWNER: job killed by owner.", "").split("\n"), "named",
         None, None),
        ("\n".join(OF_LSF).format("Done", "", "Successfully completed.").split("\n"), "nothing", None, None),
        (["loss 1.7", "Successfully completed.", "Resource usage summary:"], "nothing", None, None),
        ([*steps_of(1, 3), PROMISED, *steps_of(4, 8), "Exiting."], "known", "preempted", "scheduler"),
        ([*steps_of(1, 3), PROMISED, *steps_of(4, 80), "Exiting."], "unknown", None, None),
        ([PROMISED, *steps_of(4, 8), PROMISED, *steps_of(2, 8), "EXIT_CODE=0"], "nothing", None, None),
        ([*steps_of(1, 3), PROMISED, *steps_of(4, 8), "Training complete."], "nothing", None, None),
        ([*steps_of(1, 3), PROMISED, *steps_of(4, 8), *steps_of(2, 5)], "unknown", None, None),
        (["F0311 10:00:00.1 100 data_feed.cc:88] Check failed: batch_size > 0", "Aborted (core dumped)"],
         "named", None, "unknown"),
        (["Training finished. Best acc 0.91", *IGNORED], "nothing", None, None),
        (["Training finished. Best acc 0.91", *IGNORED, "starting evaluation"], "unknown", None, None),
    ],
)  # fmt: skip
def test_whose_doing_an_end_was(
    lines: list[str], answer: str, failure: str | None, blame: str | None
) -> None:
    found = said("begin", *lines)
    assert (found.answer, found.failure and found.failure.id, found.blame) == (answer, failure, blame)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("OSError: [Errno 116] Stale file handle: '/nfs/corpora/shard-1.tar'", "new data"),
        ("OSError: [Errno 116] Stale file handle: '/nfs/hf/datasets/cache-1f.arrow'", "HF_DATASETS_CACHE"),
        ("(VllmWorker rank=1 pid=8) ERROR 07-01 10:10:10 [a.py:5] torch.OutOfMemoryError: CUDA out of memory",
         "gpu_memory_utilization"),
        ("(EngineCore pid=1) ERROR 08-27 22:16:31 [core.py:1365] Traceback (most recent call last):\n"
         "(EngineCore pid=1) ERROR 08-27 22:16:31 [core.py:1365] torch.OutOfMemoryError: CUDA out of memory",
         "gpu_memory_utilization"),
        (f'{TRACEBACK}\n  File "/v/site-packages/vllm/worker/worker.py", line 5, in f\n'
         "torch.OutOfMemoryError: CUDA out of memory", "gpu_memory_utilization"),
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "batch.micro"),
        ("ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by x.so)", "does not help"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found", "CONDA_PREFIX"),
    ],
)  # fmt: skip
def test_a_remedy_is_one_of_what_failed(line: str, word: str) -> None:
    assert word in (said(TRACEBACK, OWN_LINE, line).remedy or "")


WAITS = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu."
SCHEDULED = "Successfully assigned ml/a to gpu-4"


@pytest.mark.parametrize(
    ("lines", "answer", "failure"),
    [
        (["31m   Warning   FailedScheduling   pod/a   " + WAITS,
          "29m   Normal   Scheduled   pod/a   " + SCHEDULED],
         "unknown", None),
        (["31m   Warning   FailedScheduling   pod/a   " + WAITS,
          "29m   Normal   Scheduled   pod/b   " + SCHEDULED],
         "known", "pod_unschedulable"),
        # Another pod waits still, which was warned of in the same words.
        (["31m   Warning   FailedScheduling   pod/a   " + WAITS,
          "30m   Warning   FailedScheduling   pod/b   " + WAITS,
          "29m   Normal   Scheduled   pod/a   " + SCHEDULED], "known", "pod_unschedulable"),
        # Lists are in no order: ages tell, and lines where ages are the same.
        (["50m   Normal   Scheduled   pod/a   " + SCHEDULED,
          "2h   Warning   FailedScheduling   pod/a   " + WAITS],
         "unknown", None),
        (["29m   Normal   Scheduled   pod/a   " + SCHEDULED,
          "31m   Warning   FailedScheduling   pod/a   " + WAITS],
         "unknown", None),
        (["2m29s   Normal   Pulled   pod/a   Successfully pulled",
          "58s   Warning   Failed   pod/a   Error: ErrImagePull"],
         "known", "image_pull"),
        (["29m   Warning   Failed   pod/a   Error: ErrImagePull",
          "29m   Normal   Pulled   pod/a   Successfully pulled"],
         "unknown", None),
        (["29m   Warning   Failed   pod/a   Error: ErrImagePull",
          "2d3h   Normal   Pulled   pod/a   Successfully pulled"],
         "known", "image_pull"),
        # Another try is no image, an image no container.
        (["29m   Warning   Failed   pod/a   Error: ErrImagePull",
          '28m   Normal   Pulling   pod/a   Pulling image "x"'],
         "known", "image_pull"),
        (['9m   Warning   Failed   pod/a   Error: secret "wandb-key" not found',
          "8m   Normal   Pulled   pod/a   Successfully pulled"],
         "known", "pod_config"),
        # That it has a node mends no image; that the job of the pod is over mends all.
        (["29m   Warning   Failed   pod/a   Error: ErrImagePull",
          "28m   Normal   Scheduled   pod/a   " + SCHEDULED],
         "known", "image_pull"),
        (["29m   Warning   Failed   pod/a-x1   Error: ErrImagePull",
          "40s   Normal   Completed   job/a   Job completed"],
         "nothing", None),
        (["29m   Warning   Failed   pod/a-x1   Error: ErrImagePull",
          "40s   Normal   Completed   job/b   Job completed"],
         "known", "image_pull"),
        (["29m   Warning   Failed   pod/ab-x1   Error: ErrImagePull",
          "40s   Normal   Completed   job/a   Job completed"],
         "known", "image_pull"),
        (["9m   Warning   Failed   pod/a   Error: ErrImagePull",
          "8m   Normal   Started   pod/a   Started container t",
          "40s   Warning   BackoffLimitExceeded   job/a   Job has reached the specified backoff limit"],
          "unknown", None),
        (["ml   9m (x3 over 11m)   Warning   Failed   pod/a   Error: ErrImagePull",
          "ml   8m   Normal   Started   pod/a   Started container t"], "unknown", None),
        (["<unknown>   Warning   FailedScheduling   pod/a   " + WAITS,
          "3s   Normal   Scheduled   pod/a   " + SCHEDULED],
         "unknown", None),
        # kubectl describe names no object: it is the pod described; and of a second one this says nothing.
        (["Node:      gpu-4/10.0.3.17", "  Warning  FailedScheduling  31m    default-scheduler  " + WAITS,
          "  Normal   Scheduled         29m    default-scheduler  " + SCHEDULED], "unknown", None),
        (["Node:      <none>", "  Warning  FailedScheduling  31m    default-scheduler  " + WAITS,
          "Node:      gpu-4/10.0.3.17",
          "  Normal   Scheduled         29m    default-scheduler  " + SCHEDULED],
         "known", "pod_unschedulable"),
        # kubectl get pods -w
        (["a-0    0/1     ErrImagePull   0          12s",
          "a-0    1/1     Running   0          40s"], "unknown", None),
        (["a-0    0/1     ErrImagePull   0          12s", "a-1    1/1     Running   0          40s"], "known",
         "image_pull"),
        (["a-0    1/1     Running   0          40s", "a-1    0/1     Completed   0          40s"], "unknown",
         None),
        (["a-0    0/1     OOMKilled   0          12m", "a-0    1/1     Running   1 (3s ago)   12m"], "known",
         "container_oom"),
    ],
)  # fmt: skip
def test_what_went_well_later_takes_a_warning_back(
    lines: list[str], answer: str, failure: str | None
) -> None:
    """Of the same object, by age; as kubectl prints events and pods."""
    found = said(*lines)
    assert (found.answer, found.failure and found.failure.id) == (answer, failure)


def test_a_warning_that_was_taken_back_is_no_other_cause() -> None:
    """Nor where a step was told in between."""
    warned = "31m   Warning   FailedScheduling   pod/a   " + WAITS
    well = "29m   Normal   Scheduled   pod/a   " + SCHEDULED
    assert not said(warned, "step 1 loss 2.5", well).others
    assert said(warned, "step 1 loss 2.5").others


SHARED = 'File "/usr/lib/python3.12/multiprocessing/'
CORRUPT = "Memory failure: 0x18: Sending SIGBUS to pt_main_thread:22633 due to hardware memory corruption"
OOM = "Out of memory: Killed process 22633 (python3) total-vm:1kB"


@pytest.mark.parametrize(
    ("lines", "failure", "host", "word"),
    [
        ([TRACEBACK, OWN_LINE, f"  {SHARED}synchronize.py\", line 57, in __init__",
          "OSError: [Errno 28] No space left on device"], "dev_shm_dataloader", None, "shm-size"),
        ([TRACEBACK, OWN_LINE, "OSError: [Errno 28] No space left on device"], "disk_full", None, "room"),
        ([TRACEBACK, OWN_LINE, "OSError: [Errno 28] No space left on device: '/dev/shm/psm_2'"],
         "dev_shm_dataloader", None, "shm-size"),
        # The kernel tells of a process by its number, also before the steps.
        ([CORRUPT, *(f"step {step} loss 2.{step}" for step in range(40)), *account(6, -7,
          "2025-11-20_09:41:03")],
         "host_memory_broken", "node6", "node6"),
        ([CORRUPT.replace("22633", "1"), *(f"step {step} loss 2.{step}" for step in range(40)),
          *account(6, -7, "2025-11-20_09:41:03")], "bus_error", "node6", "shm-size"),
        ([OOM, *(f"step {step} loss 2.{step}" for step in range(40)), *account(6, -9, "2025-11-20_09:41:03")],
         "host_oom_killed", "node6", ""),
        (["Nov 20 09:21:44 trn-04 kernel: " + OOM,
          "run.sh: line 31: 22633 Killed                  python train.py"], "host_oom_killed", "trn-04", ""),
        (["Fatal Python error: Segmentation fault", "srun: error: cn07: task 0: Exited with exit code 1"],
         "crashed", "cn07", ""),
        (["ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
          "Memory on the node (IP: 10.2.6.9, ID: 87d7) where the lease was running was 891.06GB / 937.50GB"],
         "ray_memory", "10.2.6.9", ""),
        (["t_worker.3.k2j@node-7    | " + line for line in (TRACEBACK,
          "RuntimeError: CUDA error: uncorrectable "
          "ECC error encountered")], "gpu_hardware", "node-7", "host out"),
        (["run.sh: line 31: 40211 Illegal instruction     (core dumped) python train.py",
          "srun: error: old-2: task 3: Illegal instruction (core dumped)"], "illegal_instruction",
          "old-2", "old-2"),
        (["x4502c3.hsn: shepherd died from signal 9", "x4501c0.hsn: rank 12 died from signal 15"],
         "slurm_time_or_node", "x4502c3.hsn", "x4502c3.hsn"),
        ([TRACEBACK, OWN_LINE,
          "torch.distributed.DistBackendError: NCCL error in: a.cpp:3690, unhandled cuda error",
          "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:",
          "Cuda failure 2 'out of memory'"],
         "cuda_oom", None, "batch"),
        (["step 9 loss 3.9", "[CUDA ERROR] at file train_gpt2.cu:1411:",
          "out of memory"], "cuda_oom", None, "batch"),
        (["step 9 loss 3.9", "[CUDA ERROR] at file train_gpt2.cu:1411:", "an illegal thing",
          "Exit code:    1"],
         None, None, ""),
        ([TRACEBACK, OWN_LINE,
          "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you "
          "want to train the model on CPU. You need Ampere+ GPU with cuda>=11.0."],
          "fp16_unsupported", None, ""),
    ],
)  # fmt: skip
def test_the_cause_and_the_host_that_the_lines_name(
    lines: list[str], failure: str | None, host: str | None, word: str
) -> None:
    found = said("begin", *lines)
    named = (found.failure.id, found.failure.host) if found.failure else (None, None)
    assert (*named, word in (found.remedy or "")) == (failure, host, True)


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "trainer-1  | "])
@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["RuntimeError: Error(s) in loading state_dict for Net:",
          "\tMissing key(s) in state_dict: \"a.b\"."], '"a.b".'),
          (["datasets.exceptions.DatasetGenerationCastError: An error occurred while "
          "generating the dataset", "",
          "All the data files must have the same columns, but at some point there are "
          "1 new columns ({'source'})", "",
          "This happened while the json dataset builder was generating data using", "",
          "/data/part-003.jsonl", "",
          "Please either edit the data files"],
          "columns ({'source'}) This happened while the json dataset builder "
          "was generating data using /data/part-003.jsonl"),
        (["torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, internal error",
          "ncclInternalError: Internal check failed.", "Last error:",
          "Message truncated : received 1024 bytes"],
         "Last error: Message truncated : received 1024 bytes"),
        (["py4j.protocol.Py4JJavaError: An error occurred while calling o1.run.",
          ": org.apache.spark.SparkException: "
          "Job aborted"], "Job aborted"),
        (["ValueError: bad", "Please look"], "ValueError: bad"),
        (["ValueError: bad:", "srun: error: n1: task 0: Exited with exit code 1"], "ValueError: bad:"),
    ],
)  # fmt: skip
def test_a_message_goes_on_in_the_lines_below(lines: list[str], word: str, prefix: str) -> None:
    found = said("begin", *(prefix + line for line in (TRACEBACK, OWN_LINE, *lines)))
    assert found.failure is not None and found.failure.what.endswith(word)
    assert found.failure.evidence is not None and found.failure.evidence.text == lines[0]


def test_a_message_goes_on_below_lines_of_another_rank() -> None:
    first, more = "RuntimeError: Error(s) in loading state_dict for N:", 'Missing key(s) in state_dict: "a"'
    own = ("[rank3]: " + line for line in (TRACEBACK, OWN_LINE, first))
    found = said("begin", *own, "[rank5]: loading", f"[rank3]: \t{more}")
    assert found.failure is not None and found.failure.what == f"{first} {more}"


def test_the_end_of_a_process_that_the_kernel_told_of_has_its_own_line() -> None:
    found = said("begin", CORRUPT, *account(6, -7, "2025-11-20_09:41:03"))
    assert found.failure and found.failure.evidence and found.failure.evidence.line == 2
    assert [each.line for each in found.others] == [8]


EXITED = "srun: error: cn07: task 0: Exited with exit code 2"


@pytest.mark.parametrize(
    ("lines", "word", "host"),
    [
        (["FATAL:   could not open image /s/a.sif: no such file", EXITED], "could not open image", "cn07"),
        (["curl: (18) transfer closed", "+ tar xzf a", "gzip: stdin: unexpected end of file",
          "tar: Error is not recoverable: exiting now", EXITED], "transfer closed", "cn07"),
        (["/bin/sh: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory", EXITED], "^M",
          "cn07"),
        (["srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive."],
          "exclusive", None),
          (["srun: error: Task launch for 36.0 failed on node cn131: Job credential expired",
          "srun: error: Application launch failed: Job credential expired"], "credential expired", "cn131"),
        # The one before: ai4d-iasc/trixie#58
        (["+ docker run x", 'docker: Error response from daemon: Conflict. The container name "/t" is in use',
          "See 'docker run --help'."], "Conflict", None),
        (["FATAL:   could not open image /s/a.sif: no such file", EXITED, *["."] * 15], "could not", "cn07"),
        # What is long ago, a step follows, tells of another process, or keeps nobody from work: no reason.
        (["cp: cannot stat 'x': No such file", *["."] * 30, EXITED], None, "cn07"),
        (["cp: cannot stat 'x': No such file", "step 1 loss 2.5", "step 2 loss 2.4", EXITED], None, "cn07"),
        (["fatal: not a git repository (or any of the parent directories): .git", EXITED], None, "cn07"),
        (["ERROR: pip's dependency resolver does not currently take into account all the packages", EXITED],
         None, "cn07"),
        ([TRACEBACK, OWN_LINE, "KeyError: 'x'", "processed 3 files", "processed 4 files",
          "cp: cannot stat 'x': No such file"], None, None),
        (["srun: error: cn01: task 1: Terminated", EXITED], None, "cn07"),
        (["test", "error: 0.0123"], None, None),
        (["wandb: error: cannot reach api.wandb.ai"], None, None),
        (["Error:  java/nio/Loopback.java", "Test results: passed: 5,973; failed: 9; error: 4"], None, None),
        (["cp: cannot stat 'x': No such file", *["."] * 5], None, None),
        (["cp: cannot stat 'x': No such file",
          "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:3"], None,
         None),
    ],
)  # fmt: skip
def test_what_the_last_program_says_of_its_end(lines: list[str], word: str | None, host: str | None) -> None:
    """Where no entry and no exception is why; the first of several lines that stand together."""
    found = said("begin", *lines)
    if word is None:
        assert (found.answer, found.failure and found.failure.host) == ("unknown", host)
        return
    assert found.failure is not None
    assert word in found.failure.what and found.says.endswith(found.failure.what)
    assert (found.answer, found.failure.host, found.exit_code) == ("named", host, 0)


def test_what_shows_where_to_look() -> None:
    """Beside the cause, once each; not where steps followed."""
    missing, failed = "/s/script: line 9: conda: command not found", [TRACEBACK, OWN_LINE, "ValueError: bad"]
    lost = "25/11/20 09:41:03 ERROR TaskSchedulerImpl: Lost executor {} on 10.0.3.17: Remote RPC client"
    found = said(missing, lost.format(1), lost.format(2), *failed)
    assert [each.text for each in found.others] == [missing, lost.format(1)]
    assert not said(missing, "step 1 loss 2.5", "step 2 loss 2.4", *failed).others


def test_a_hint_behind_an_exception_is_no_word_that_it_goes_on() -> None:
    raised = [TRACEBACK, '  File "/v/bin/sky", line 8, in <module>', "sky.exceptions.UnavailableError: none"]
    hint = "To keep retrying until it is up, use `--retry-until-up`."
    for line, answer in ((hint, "named"), ("Retrying", "unknown"), ("retrying in 5 s", "unknown")):
        assert said("begin", *raised, line).answer == answer


CLEANED = "WARNING:hub.lora:Post-training cleanup error (training completed successfully):"
PUSHING = "2026-11-20 10:03:21 ERROR train pushing metrics failed, continuing without"
IN_PUSH = [TRACEBACK, '  File "/w/train.py", line 211, in push', "    requests.post(URL, json=m, timeout=3)"]


@pytest.mark.parametrize("heading", [CLEANED, PUSHING, "WARNING could not push: error"])
@pytest.mark.parametrize(
    "last", ["RuntimeError: engine failed", "RuntimeError: CUDA out of memory. Tried", "queue.Empty: x"]
)
def test_an_exception_that_a_program_logs_and_gets_over(heading: str, last: str) -> None:
    """A logger shows its traceback from where it was caught; a program's own begins at its top."""
    trained = trainer_log().rstrip("\n").split("\n")
    for lines in ([heading, *IN_PUSH, last], [heading, *IN_PUSH, "ValueError: x", *HANDLED, *IN_PUSH, last]):
        assert said(*trained, *lines).answer == "nothing"
        found = said(*steps_of(1, 9), *lines, "Done.")
        assert (found.answer, found.failure) == ("nothing", None)
        found = said(*steps_of(1, 9), *lines)
        assert found.failure is None and (found.answer == "unknown" or heading == CLEANED)
    top = [heading, TRACEBACK, '  File "/w/train.py", line 3, in <module>', "    main()", last]
    assert said(*steps_of(1, 9), *top).failure is not None
    plain = ["INFO step 9 took 3 s", *IN_PUSH, last]
    assert said(*steps_of(1, 9), *plain).failure is not None


def test_an_exception_that_a_logger_reports_is_not_called_uncaught() -> None:
    logged = [*IN_PUSH, "RuntimeError: engine failed"]
    found = said(*steps_of(1, 9), "ERROR:train:the training failed", *logged)
    assert found.failure is not None and found.failure.what == logged[-1]
    assert found.says.startswith("The program logged an exception")
    assert "nothing caught" in said(*steps_of(1, 9), *logged).says


HYDRA = ["=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
         "=   RANK {} PID 33120 RUNNING AT x1921c0s1b0n0", "=   KILLED BY SIGNAL: 9 (Killed)"]  # fmt: skip
NOTICED = "mpirun noticed that process rank 2 with PID 33122 on node gpu-04 exited on signal 9 (Killed)."


def of_hydra(*ranks: int) -> list[str]:
    return [line.format(rank) for rank in ranks for line in HYDRA]


@pytest.mark.parametrize("last", ["RuntimeError: Native API failed", "struct.error: unpack requires 8 bytes"])
def test_a_sigkill_by_mpis_launcher_after_an_exception(last: str) -> None:
    """The launcher ends the other ranks so. An exception after it, or of a rank that waited, is no cause."""
    top = [TRACEBACK, '  File "/w/run.py", line 3, in <module>', "    main()"]
    library = [*top, '  File "/v/lib/python3.11/site-packages/torch/nn/linear.py", line 1, in forward', last]
    own = [*top, '  File "/w/run.py", line 31, in parse', last]
    for lines in ([*own, NOTICED], [*own, *of_hydra(0, 1, 3)], [*library, *of_hydra(0, 1, 3)]):
        found = said(*steps_of(1, 9), *lines)
        assert found.failure is not None and found.failure.what == last
        assert any("signal 9" in each.text or "SIGNAL: 9" in each.text for each in found.others)
    waited = [*library[:-1], "RuntimeError: Connection reset by peer"]
    for lines in ([NOTICED], [*of_hydra(0), *own], [*library, NOTICED], [*waited, *of_hydra(0)]):
        found = said(*steps_of(1, 9), *lines)
        assert found.failure is not None and found.failure.id == "killed"


def test_a_launch_that_fails_on_a_host_and_the_step_that_is_cancelled() -> None:
    launch = "srun: error: Task launch for StepId=77199.0 failed on node gpu-b07: Unspecified error"
    rest = ["srun: error: Application launch failed: Unspecified error",
            "slurmstepd: error: *** STEP 77199.0 ON gpu-b04 CANCELLED AT 2026-11-20T12:00:00 ***",
            "srun: error: Timed out waiting for job step to complete"]  # fmt: skip
    found = said("+ srun -N4 torchrun train.py", launch, *rest)
    assert found.failure is not None
    assert (found.failure.what, found.failure.host, found.failure.id) == (launch, "gpu-b07", None)
    found = said("+ srun -N4 torchrun train.py", rest[1])
    assert found.failure is not None and found.failure.what == rest[1]


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("The replica w0-0 ran out-of-memory and exited with a non-zero status of 137. ", "container_oom"),
        ("2026/11/20 ERROR Execution failed. User process '/v/bin/python' exited with status code -9. See",
         "killed"),
        ("2026/11/20 ERROR Execution failed. User process '/v/bin/python' exited with status code 1. See",
         None),
        ("The replica workerpool0-0 exited with a non-zero status of 1. To find out more", None),
        ("ERROR\tservice\tthe run failed: quota of the project", None),
        ("CRITICAL the queue refused the run", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("steps", [steps_of(1, 9), TRAINED[:-2]])
def test_a_line_that_reports_a_failure_is_not_denied(
    line: str, failure: str | None, steps: list[str]
) -> None:
    found = said(*steps, line, "Cleaning up all outstanding Run operations")
    assert (found.failure and found.failure.id) == failure
    assert not found.says.startswith("no line reports a failure") and "without an error" not in found.says


def test_an_error_that_is_printed_before_a_process_ends() -> None:
    end = "srun: error: brodmann23: task 0: Exited with exit code 1"
    licence = ["License checkout failed.", "License Manager Error -15", "Licensing error: -15,570."]
    found = said("begin", *licence, end)
    assert (found.answer, found.failure and found.failure.host) == ("unknown", "brodmann23")
    assert found.says.endswith(f"an error in it says: {licence[0]}")
    assert said("begin", "val error: 0.31", end).says.endswith("no line says why")
    hydra = (
        '[proxy:0:23@q4] HYDU_sock_connect (lib/utils/sock.c:140): unable to connect from "q4" to "q79" '
        "(No route to host)"
    )
    assert said("begin", hydra, end).says == f"The last error in it says: {hydra}"


def test_who_ended_the_same_way() -> None:
    """Exceptions without an entry are alike where they say the same."""
    shard, waited = ("AssertionError: checksum of shard {} differs", "RuntimeError: failed on this rank")
    mine = of_rank(2, *raised(shard.format(7)))
    found = said(*steps_of(1, 9), *mine, *of_rank(1, *raised(waited)))
    assert (found.alike, [each.text for each in found.others]) == (0, [waited])
    found = said(*steps_of(1, 9), *mine, *of_rank(1, *raised(shard.format(8))))
    assert (found.alike, found.others) == (1, [])


def test_shared_memory_that_is_gone() -> None:
    shared = '  File "/usr/lib/python3.10/multiprocessing/shared_memory.py", line 104, in __init__'
    for name in ("/psm_dcc9e254", "/ckpt_452136_0"):
        lost = f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'"
        found = said(*steps_of(1, 9), TRACEBACK, OWN_LINE, shared, lost)
        assert found.failure is not None and found.failure.id == "shared_memory_gone"
    lost = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'"
    found = said(*steps_of(1, 9), TRACEBACK, OWN_LINE, lost)
    assert found.failure is not None and found.failure.id == "no_such_file"


def test_a_process_that_multiprocessing_started_and_that_failed() -> None:
    """Its own account says that nothing got over what its program had logged."""
    quota = "OSError: [Errno 122] Disk quota exceeded"
    logged = ["ERROR [12/20 18:16:20 d2.engine.train_loop]: Exception during training:", *IN_PUSH, quota]
    account = [TRACEBACK, '  File "train_net.py", line 301, in <module>', "    launch(",
               "torch.multiprocessing.spawn.ProcessRaisedException: ", "",
               "-- Process 0 terminated with the following error:", *IN_PUSH, quota]  # fmt: skip
    hooks = "[12/20 18:16:21 d2.engine.hooks]: Total training time: 0:23:30 (0:00:09 on hooks)"
    found = said(*steps_of(1, 9), *logged, hooks, hooks, *account)
    assert found.failure is not None and found.failure.id == "disk_full"


@pytest.mark.parametrize(("ranks", "others"), [((3,), 0), ((3, 5), 1), ((3, 5, 6), 2)])
def test_lines_of_one_process_are_one_end(ranks: tuple[int, ...], others: int) -> None:
    """Torchrun's agent and its summary both speak of each process that a signal ended."""
    agent = [f"E0312 09:14:0{rank}.101000 1240 torch/distributed/elastic/multiprocessing/api.py:874] failed "
             f"(exitcode: -11) local_rank: {rank} (pid: {7711 + rank}) of binary: /usr/bin/python3"
             for rank in ranks[:1]]  # fmt: skip
    summary = ["Root Cause (first observed failure):"]
    for number, rank in enumerate(ranks):
        summary += [
            f"[{number}]:", "  time      : 2026-03-12_09:14:02", "  host      : dgx-4",
            f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : -11 (pid: {7711 + rank})",
            "  error_file: <N/A>", f"  traceback : Signal 11 (SIGSEGV) received by PID {7711 + rank}",
        ]  # fmt: skip
    found = said("step 1/9 loss 2.1", "step 2/9 loss 2.0", *agent, *summary)
    assert found.answer != "nothing" and found.alike == others
