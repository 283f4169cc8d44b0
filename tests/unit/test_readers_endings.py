"""How a job ended, as its log tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.judging import Settings
from muster.judging.joblogs import culprits_of, judged
from muster.readers._read import without_harmless
from muster.readers.base import JobLog
from muster.store.logfiles import BrokenFile
from tests.unit.logs import chat_log, one, read_log


def test_a_log_that_stops_without_a_word() -> None:
    job = one(chat_log(["node-1"], ends=False))
    assert (job.outcome, job.failure) == ("timeout", None)
    assert job.reason == "the log stops after step 110 without an error and without an end"
    before = one(chat_log(["node-1"], ends=False)[:12])
    assert before.outcome == "timeout" and "before its first step" in (before.reason or "")


def test_a_non_zero_exit_after_the_last_figure_is_a_failure() -> None:
    job = one(
        [*chat_log(["n1", "n2"]), "n2: [ERROR] [launch.py:325:x] ['python3'] exits with return code = 1"]
    )
    assert (job.outcome, job.failed_hosts) == ("failed", ("n2",))


def test_what_was_written_before_the_job_went_on_ended_nothing() -> None:
    lines = chat_log(["n1"])
    place = next(n for n, line in enumerate(lines) if "step=20," in line)
    noise = ["OSError: [Errno 98] Address already in use"]
    assert one([*lines[:place], *noise, *lines[place:]]).outcome == "succeeded"
    cut = [*lines[:place], *noise, *lines[place : place + 20]]
    assert one(cut).outcome == "timeout"


def test_a_job_that_never_began() -> None:
    job = one(["ssh: connect to host node-9 port 22: Connection timed out"], "batch/node-9.log")
    assert (job.outcome, job.failure, job.hosts) == ("failed", "ssh_unreachable", ("node-9",))


def test_what_is_no_log() -> None:
    assert one([]).reason == "is empty"
    assert (one(["# Notes", "", "buy milk"]).reason or "").startswith("no known log format was recognised")
    assert (one(["a,b,c", "1,2,3"], "x.csv").reason or "").endswith("a, b, c")
    assert one([]).outcome == "unreadable"


def test_a_file_that_breaks_off_keeps_what_was_read() -> None:
    def cut() -> Iterator[str]:
        yield from chat_log(["node-1"])[:30]
        raise BrokenFile("cannot be read to its end: x")

    (job,) = read_log("a.log", cut())
    assert (job.outcome, job.reason, job.hosts) == ("unreadable", "cannot be read to its end: x", ("node-1",))
    assert job.steps and job.steps > 10


def test_a_file_that_breaks_off_behind_a_jobs_end_is_read() -> None:
    """The job did end; what is missing is behind it."""

    def cut() -> Iterator[str]:
        yield from chat_log(["node-1"])
        raise BrokenFile("cannot be read to its end: x")

    (job,) = read_log("a.log", cut())
    assert (job.outcome, job.reason) == ("succeeded", None)


# As launch.py of DeepSpeed 0.9 prints it (a public log of June 2023), of a longer command.
COMMAND = ["/home/u/miniconda3/envs/eval/bin/python", "-u", "main.py", "--local_rank=0",
           *(word for n in range(20) for word in (f"--argument_{n}", f"value-{n}"))]  # fmt: skip
LEFT = "[2023-06-29 05:59:48,261] [ERROR] [launch.py:320:sigkill_handler] {} exits with return code = {}"
LIMIT = "slurmstepd: error: *** JOB 42221 ON clr1247 CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***"
# From a public log of a training on Jean Zay (March 2023).
NODE = [
    "srun: error: Node failure on jean-zay-iam37",
    "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
    "slurmstepd: error: *** STEP 1943824.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE "
    "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
]
TERMINATED = "n1: [t] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting"


def test_a_long_reason_keeps_both_ends() -> None:
    job = one([*chat_log(["n1"], ends=False), LEFT.format(COMMAND, -11)])
    assert job.reason and len(job.reason) <= 300 and " ... " in job.reason
    assert job.reason.startswith("[2023-06-29") and job.reason.endswith("exits with return code = -11")


def failed(*lines: str, hosts: tuple[str, ...] = ("n1", "n2", "n3")) -> JobLog:
    return one([*chat_log(hosts, ends=False), *lines])


def test_all_hosts_that_crashed_by_themselves_are_named() -> None:
    crash = failed(
        *(f"{host}: {LEFT.format(COMMAND, code)}" for host, code in (("n2", -11), ("n1", -7), ("n3", 1)))
    )
    assert crash.failed_hosts == ("n2", "n1")
    killed = failed(*(f"{host}: {LEFT.format(COMMAND, -9)}" for host in ("n3", "n2")))
    assert (killed.failed_hosts, killed.failure) == (("n3", "n2"), "host_oom_killed")
    assert culprits_of(killed) == ("n3", "n2")
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    found = judged("x", [failed(f"n1: {ecc}", f"n3: {ecc}")], Settings(), {})
    assert [each.hosts[0] for each in found.hosts if each.condition == "failing"] == ["n1", "n3"]
    assert (found.jobs[0].failed_host, found.jobs[0].failed_hosts) == ("n1", ("n1", "n3"))


def test_what_follows_from_a_crash_is_not_one() -> None:
    peers = "[rank1]: torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly due to"
    job = failed(f"n1: {peers}", f"n2: {LEFT.format(COMMAND, -11)}", f"n1: {LEFT.format(COMMAND, 1)}")
    assert job.failed_hosts == ("n2",) and (job.reason or "").endswith("-11")
    raised = failed(
        "n1: Traceback (most recent call last):", "n1: ValueError: x", f"n1: {LEFT.format(COMMAND, -11)}"
    )
    assert raised.reason == "ValueError: x"


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("srun: error: n2: task 12: Segmentation fault (core dumped)", ("n2",)),
        ("srun: error: n[2-3]: tasks 8-23: Exited with exit code 1", ("n2", "n3")),
        ("process rank 3 with PID 0 on node n2 exited on signal 11 (Segmentation fault).", ("n2",)),
        ("pdsh@n1: n3: ssh exited with exit code 1", ("n3",)),
    ],
)
def test_hosts_that_a_launcher_names(line: str, hosts: tuple[str, ...]) -> None:
    job = failed(line)
    assert (job.outcome, job.failed_hosts) == ("failed", hosts)


def test_hosts_in_torchruns_account() -> None:
    """torch/distributed/elastic/multiprocessing/errors, as torch 2.13 prints it."""
    account = """\
[0]:
  time      : 2025-03-04_10:11:12
  host      : n2
  rank      : 9 (local_rank: 1)
  exitcode  : -11 (pid: 1234) SIGSEGV
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 1234"""
    assert failed(*account.splitlines()).failed_hosts == ("n2",)


def test_torchruns_account_tells_of_no_later_line() -> None:
    """Its host is that of the process that it is about; who wrote another line is not known."""
    job = failed(
        "  host      : n2", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB."
    )
    assert (job.failure, job.failed_hosts) == ("cuda_oom", ())


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "signal", [TERMINATED, f"n2: {LEFT.format(COMMAND, -9)}", f"n2: {LEFT.format(COMMAND, -15)}"]
)
def test_a_scheduler_outranks_the_signal_that_it_sent(signal: str, first: bool) -> None:
    """Wherever the lines stand; a bar can be in front of them, and labels of srun."""
    for limit in (LIMIT, f"22%|##  | 11/50 [1:55:26<6:49:05, 629.37s/it]{LIMIT}", f"3: {LIMIT}",
                  "slurmstepd: error: *** STEP 9999 ON hpc CANCELLED DUE TO TIME LIMIT ***"):  # fmt: skip
        job = failed(*([limit, signal] if first else [signal, limit]))
        assert job.outcome == "timeout" and "DUE TO TIME LIMIT" in (job.reason or "")
        assert not job.failed_hosts
    kill = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=42490.0. Some of the step tasks have been OOM"
    )
    job = failed(*([kill, signal] if first else [signal, kill]))
    assert (job.outcome, job.failure) == ("failed", "slurm_oom")


def test_a_node_that_failed_is_the_one_that_slurm_names() -> None:
    hosts = ("jean-zay-iam17", "jean-zay-iam37")
    for lines in (NODE, NODE[::-1], [TERMINATED, *NODE]):
        job = failed(*lines, hosts=hosts)
        assert (job.outcome, job.failure, job.failed_hosts) == ("failed", "slurm_time_or_node", hosts[1:])
        assert culprits_of(job) == hosts[1:]


def test_an_error_of_its_own_outranks_the_limit_that_it_waited_for() -> None:
    own = ["n2: Traceback (most recent call last):", "n2: ValueError: a tensor of the wrong shape"]
    assert failed(*own, LIMIT).reason == "ValueError: a tensor of the wrong shape"
    assert failed("n2: torch.OutOfMemoryError: CUDA out of memory.", LIMIT).failure == "cuda_oom"
    late = failed(LIMIT, *own)
    assert late.outcome == "timeout"


def test_what_was_cancelled_for_a_reason_that_slurm_names_elsewhere() -> None:
    """From a public log of May 2023: the job that was killed for its memory is said to be cancelled first."""
    cancelled = "slurmstepd: error: *** JOB 25428400 ON node022 CANCELLED AT 2023-05-30T19:46:40 ***"
    oom = (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=25428400.batch. Some of your processes "
        "may have been killed by the cgroup out-of-memory handler."
    )
    for lines in ([cancelled, oom], [oom, cancelled], [LIMIT, oom]):
        job = failed(*lines)
        assert (job.outcome, job.failure) == ("failed", "slurm_oom")
    limit = failed(cancelled, LIMIT)
    assert limit.outcome == "timeout" and "TIME LIMIT" in (limit.reason or "")
    assert failed(cancelled).outcome == "timeout"


NANO = [f"iter {step}: loss 4.1, time 250.{step:02d}ms, mfu 30.00%" for step in range(30)]
HARMLESS = [
    "Prompt: Why does my server say 'No space left on device'?",
    "sample 3: 'RuntimeError: CUDA out of memory' means that the GPU is full",
    '{"question": "ssh says Permission denied (publickey). What can I do?", "label": 1}',
    "[rank0] generated: BrokenPipeError: [Errno 32] Broken pipe is raised when nobody reads",
    "Q1 user: what is STEP 7.0 ON n1 CANCELLED AT 2024-07-08T05:52:10 DUE TO TIME LIMIT ***",
    "x.py:7: UserWarning: No space left on device would be raised if the cache grew",
    "wandb: WARNING Connection reset by peer; retrying (1/7)",
    "[W socket.cpp:426] [c10d] The server socket has failed to bind (errno: 98 - Address already in use).",
    "Terminated early: the loss does not change",
    "KeyboardInterrupt is handled: press Ctrl-C to stop",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_words_of_a_failure_in_data_and_warnings_are_none(line: str) -> None:
    """Also at the end of a log in a format that does not say when a job is over."""
    assert one([*NANO, line], "node07.log").outcome == "succeeded"
    assert one(["a line", line], "node07.log").outcome == "unreadable"
    assert one([*chat_log(["n1"], ends=False), line]).outcome == "timeout"


@pytest.mark.parametrize(
    ("line", "outcome", "failure"),
    [
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB for sample 3: too long",
            "failed",
            "cuda_oom",
        ),
        ('{"level": "error", "msg": "CUDA out of memory"}', "failed", "cuda_oom"),
        ("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", "failed", "ssh_host_key"),
        ("[W902 agent/api.py:7] Received 15 death signal, shutting down workers", "timeout", None),
        ("KeyboardInterrupt", "timeout", None),
    ],
)
def test_what_a_program_says_of_itself_counts_beside_data_and_as_a_warning(
    line: str, outcome: str, failure: str | None
) -> None:
    found = one([*NANO, line], "node07.log")
    assert (found.outcome, found.failure) == (outcome, failure)


@pytest.mark.parametrize("name", ["results.csv", "node07.json", "README.md", "train.py"])
def test_a_table_or_a_program_that_names_a_failure_is_no_job(name: str) -> None:
    """Such as the results of an earlier `muster judge --output`, in the folder of the logs."""
    assert one(["job,reason", "node07,RuntimeError: CUDA out of memory"], name).outcome == "unreadable"


PLUGIN = (
    "{host}:4239:4239 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : "
    "libnccl-net.so: cannot open shared object file: No such file or directory"
)


@pytest.mark.parametrize(
    "line",
    [
        PLUGIN.format(host="n1"),
        "ATL-GPUNode-012:1039703:1041339 [0] NCCL INFO [Service thread] Connection closed by localRank 5",
        "2024-07-08 05:53:16.025410: I tensorflow/x.cc:9] libnvinfer.so.7: cannot open shared object file",
        "I0708 05:53:16.025410 139 net.cc:9] libibverbs.so.1: cannot open shared object file",
        "2024-07-08 05:53:16 | INFO     | app:main:7 - CUDA out of memory, trying half of the batch",
        'level=info msg="torch.OutOfMemoryError: CUDA out of memory"',
    ],
)
def test_a_line_below_a_warning_is_no_evidence(line: str) -> None:
    stops = one([*chat_log(["n1", "n2"], ends=False), line])
    assert (stops.outcome, stops.failure, stops.failed_hosts) == ("timeout", None, ())
    crash = "n2: [t] [ERROR] [launch.py:321:sigkill_handler] ['python3'] exits with return code = -11"
    crashed = one([*chat_log(["n1", "n2"], ends=False), line, crash])
    assert (crashed.failure, crashed.failed_hosts) == ("crashed", ("n2",))
    error = "n1: [t] [INFO] x ERROR: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB."
    assert one([*chat_log(["n1", "n2"], ends=False), error]).failure == "cuda_oom"


CRASHES = [
    ["n2: [t] [ERROR] [launch.py:321:sigkill_handler] ['python3'] exits with return code = -11",
     "pdsh@head: n2: ssh exited with exit code 245"],
    ["srun: error: n2: task 12: Segmentation fault (core dumped)",
     "srun: error: n2: task 12: Exited with exit code 139"],
    ["job.sh: line 7: 4242 Aborted                 (core dumped) python main.py"],
    ["  what():  CUDA driver error: driver shutting down",
     "n2: [t] [ERROR] [launch.py:321:sigkill_handler] ['python3'] exits with return code = -6"],
]  # fmt: skip


@pytest.mark.parametrize("lines", CRASHES)
def test_a_crash_after_the_end_is_none_in_training(lines: list[str]) -> None:
    """Whether the training's end is said, or all other ranks left well (a public log of 128 ranks)."""
    whole = chat_log(["n1", "n2"])
    for last in (whole, [line for line in whole[:-1] if "Throughput" not in line]):
        job = one([*last, *lines])
        assert (job.outcome, job.failure, job.reason) == ("succeeded", None, None)
        assert job.pace and any(lines[0][-20:] in note for note in job.notes)
    within = one([*chat_log(["n1", "n2"], ends=False), *lines])
    assert within.outcome == "failed"
    oom = "n2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB."
    assert one([*whole, oom, *lines]).failure == "cuda_oom"


def test_what_jobs_that_end_well_print_too_is_no_reason() -> None:
    """An error that a program gets over: it stands in most logs of jobs that trained to the end."""
    met = ["Traceback (most recent call last):", "OSError: libfoo.so.1: cannot open shared object file"]
    logs = [one([*met, *chat_log([f"n{n}"])], f"n{n}.log") for n in range(1, 9)]
    crash = "[t] [ERROR] [launch.py:321:sigkill_handler] ['python3'] exits with return code = -11"
    bad = one([*chat_log(["n9"], ends=False, windows=3), *met, crash], "n9.log")
    assert bad.failure == "shared_library"
    found = without_harmless([*logs, bad])
    assert found[:-1] == logs
    assert (found[-1].failure, found[-1].failed_hosts) == ("crashed", ())
    stops = one([*chat_log(["n9"], ends=False, windows=3), *met], "n9.log")
    assert without_harmless([*logs, stops])[-1].outcome == "timeout"
    other = one([*chat_log(["n9"], ends=False), met[0], met[1].replace("foo", "bar")], "n9.log")
    assert without_harmless([*logs, other])[-1].failure == "shared_library"


def test_what_every_rank_prints_hides_no_crash() -> None:
    """Eight hosts get over the same error, in good jobs and in one where the third of them then crashes."""
    hosts = [f"n{n}" for n in range(1, 9)]
    met = [
        f"{host}: {line}"
        for host in hosts
        for line in (
            "Traceback (most recent call last):",
            "OSError: libfoo.so.1: cannot open shared object file",
        )
    ]
    whole = chat_log(hosts)
    good = [one([whole[0], *met, *whole[1:]], f"job{n}.log") for n in range(3)]
    crash = "n3: [t] [ERROR] [launch.py:321:sigkill_handler] ['python3'] exits with return code = -11"
    bad = one([*chat_log(hosts, ends=False, windows=3), *met, crash], "bad.log")
    found = without_harmless([*good, bad])[-1]
    assert (found.outcome, found.failure, found.failed_hosts) == ("failed", "crashed", ("n3",))
