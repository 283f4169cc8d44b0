"""Every reader: what it makes of logs in its format's shape, and what all of them keep."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster.readers
from muster.core.errors import UsageError
from muster.core.registry import plugin_names
from muster.readers._frame import Frame, stamp
from muster.readers._mapping import Mapping, load_mapping, load_mappings
from muster.readers._read import hosts_of_path, read_log
from muster.readers.base import HEAD, TAIL, JobLog, Series, Window
from muster.store.logfiles import BrokenFile
from tests.unit.logs import LIGHTNING, at, chat_log, metaseq_log, trainer_log

READERS = sorted(plugin_names("muster.readers"))
MAPPINGS = load_mappings()


def one(lines: Sequence[str], path: str = "job.log") -> JobLog:
    """The one job of these lines."""
    (job,) = read_log(path, lines, MAPPINGS)
    return job


# ---- the contract ------------------------------------------------------------------------------------------


def test_the_readers_there_are() -> None:
    assert set(READERS) == {"deepspeed", "deepspeed_chat", "metaseq", "table", "trainer"}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_has_what_is_promised(name: str) -> None:
    promised = re.findall(r"^ *(\w+)\(", muster.readers.__doc__ or "", re.MULTILINE)
    assert promised == ["Reader", "line", "readings"]
    module = importlib.import_module(f"muster.readers.{name}")
    assert module.FORMAT and module.HINTS and inspect.getdoc(module.Reader)
    reader = module.Reader(Frame(), MAPPINGS)
    assert reader.readings() == [] and reader.closed is False


MIXED = [
    *chat_log(["n1", "n2"], windows=2),
    *trainer_log(steps=30).replace("\r", "\n").split("\n"),
    *metaseq_log(),
    *LIGHTNING,
    "Traceback (most recent call last):",
    "n2: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "n1: [x] exits with return code = 1",
    "--world_info=eyJ9",
    "SLURM_JOB_NODELIST=n[1-",
    "WORLD INFO DICT: {1: [[",
]


@given(
    st.lists(st.tuples(st.integers(0, len(MIXED) - 1), st.integers(0, 60), st.text(max_size=12)), max_size=40)
)
def test_mangled_lines_never_break_a_reader(cuts: list[tuple[int, int, str]]) -> None:
    """Lines of all formats, in any order, with anything written into them."""
    lines = [MIXED[line][: -place or None] + text + MIXED[line][-place:] for line, place, text in cuts]
    for job in read_log("job.csv", lines, MAPPINGS):
        assert job.outcome in ("succeeded", "failed", "timeout", "unreadable")
        assert job.rate is None or job.rate >= 0
        assert (job.outcome == "succeeded") == (job.reason is None)


@given(st.lists(st.text(max_size=60), max_size=30))
def test_any_text_is_read(lines: list[str]) -> None:
    jobs = read_log("a/b.log", lines, MAPPINGS)
    assert len(jobs) == 1


# ---- DeepSpeed and DeepSpeed-Chat --------------------------------------------------------------------------


def test_deepspeed_chat() -> None:
    """The warm-up ends after ten steps that were used: of the first ten, eight were skipped."""
    job = one(chat_log(["node-1"]))
    assert (job.outcome, job.hosts, job.hosts_from, job.world_size) == ("succeeded", ("node-1",), "log", 8)
    assert (job.format, job.workload) == ("DeepSpeed, DeepSpeed-Chat", "facebook/opt-350m (step1_sft)")
    assert "local_rank" not in job.recipe and "--max_seq_len 512" in job.recipe
    assert (job.batch, job.steps, job.skipped, job.memory) == (192, 110, 8, int(33.78 * 2**30))
    assert job.measured is not None
    assert (job.measured.windows, job.measured.steps, job.measured.skipped) == (9, 90, 0)
    assert job.rate == pytest.approx(192 / 0.2, rel=1e-4)
    assert job.step_seconds == pytest.approx(0.2, rel=1e-4)


def test_two_hosts_are_joined_by_pdsh_prefixes() -> None:
    job = one(chat_log(["node-1", "node-2"]))
    assert (job.hosts, job.world_size, job.batch) == (("node-1", "node-2"), 16, 384)
    assert job.rate == pytest.approx(384 / 0.2, rel=1e-4)
    assert job.recipe == one(chat_log(["node-3"])).recipe  # so that a judge can compare them


def test_windows_with_skipped_steps_do_not_count() -> None:
    """They are faster: with them, the rate would be 1 % higher."""
    job = one(chat_log(["node-1"], skipped=(8, 0, 0, 0, 9)))
    assert (job.skipped, job.measured.windows if job.measured else 0) == (17, 8)
    assert job.rate == pytest.approx(192 / 0.2, rel=1e-4)


def test_where_every_window_has_skipped_steps_only_used_samples_count() -> None:
    job = one(chat_log(["node-1"], skipped=(1,) * 11))
    assert job.measured is not None and job.measured.skipped > 0 and "skipped" in job.notes[0]
    assert job.rate == pytest.approx(9 * 192 / (9 * 0.2 + 0.18), rel=1e-3)


def test_a_job_that_skipped_all_steps_trained_nothing() -> None:
    job = one(chat_log(["node-1"], windows=3, skipped=(10,) * 4))
    assert (job.outcome, job.failure, job.rate) == ("failed", "loss_scale_too_high", 240 * 4)
    assert "all 40 steps were skipped" in (job.reason or "")


def test_the_timers_own_average_where_lines_have_no_stamps() -> None:
    lines = [re.sub(r"\[2024[^]]*\] ", "", line) for line in chat_log(["node-1"])]
    assert one(lines).rate == pytest.approx(960, rel=1e-4)
    assert one(lines).step_seconds == pytest.approx(0.2, rel=1e-4)


def test_without_a_batch_the_average_still_gives_a_rate() -> None:
    """As of a program of one's own that uses DeepSpeed."""
    lines = [line for line in chat_log(["node-1"]) if "SamplesPerSec" in line]
    job = one(lines, "logs/node-1.log")
    assert (job.batch, job.step_seconds, job.hosts, job.hosts_from) == (None, None, ("node-1",), "name")
    assert job.rate == pytest.approx(960, rel=1e-4)
    assert job.outcome == "succeeded"  # these lines do not say when a job is over


def test_older_lines_of_the_timer() -> None:
    lines = [f"[{at(step / 5)}] [INFO] [timer.py:198:stop] 0/{step}, RunningAvgSamplesPerSec=5.0, "
             "CurrSamplesPerSec=5.0, MemAllocated=0.36GB" for step in range(10, 90, 10)]  # fmt: skip
    assert one(lines, "node-1.log").rate == pytest.approx(5.0)


def test_evaluation_between_epochs_does_not_count() -> None:
    lines = chat_log(["node-1"])
    place = next(n for n, line in enumerate(lines) if "step=60," in line)
    later = [re.sub(r"05:52:(\d\d)", lambda m: f"05:53:{m[1]}", line) for line in lines[place:]]  # 60 s later
    job = one([*lines[:place], "***** Evaluating perplexity, Epoch 1/2 *****", *later])
    assert job.rate == pytest.approx(960, rel=1e-3)
    assert job.measured and job.measured.windows == 8


def test_a_run_that_began_anew_in_the_same_file() -> None:
    job = one([*chat_log(["node-1"], ends=False, windows=4), *chat_log(["node-1"], windows=4)])
    assert (job.outcome, job.steps) == ("succeeded", 100)
    assert job.rate == pytest.approx(960, rel=2e-2)


def test_latency_lines_of_deepspeed_chat() -> None:
    lines = ["|E2E latency=4.06s |Gather latency=0.00s |"] + [
        f"End-to-End => Latency: {latency}s, TFLOPs: 69.5, Samples/sec: {32 / latency}, Time/seq 0.13s"
        for latency in (9.0, *[4.0] * 29)
    ]
    assert one(lines, "node-1.log").rate == pytest.approx(8.0)


# ---- outcomes ----------------------------------------------------------------------------------------------


def test_a_log_that_stops_without_a_word() -> None:
    job = one(chat_log(["node-1"], ends=False))
    assert (job.outcome, job.failure) == ("timeout", None)
    assert job.reason == "the log stops after step 110 and says neither why nor that it is over"
    before = one(chat_log(["node-1"], ends=False)[:12])
    assert before.outcome == "timeout" and "before its first step" in (before.reason or "")


FAILURES = [
    (["n2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB."],
     "failed", "cuda_oom", "n2"),
    (["n2: RuntimeError: CUDA error: uncorrectable ECC error encountered",
      "n1: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"],
     "failed", "gpu_hardware", "n2"),
    (["n1: [rank0]: torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly",
      "n2: [t] [ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = -9"],
     "failed", "host_oom_killed", "n2"),
    (["n1: Traceback (most recent call last):", '  File "main.py", line 1, in <module>',
      "n1: ValueError: a tensor of the wrong shape",
      "n1: [t] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 7",
      "n1: [t] [ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = 1"],
     "failed", None, "n1"),
    (["n1: [t] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting"],
     "timeout", None, "n1"),
    (["slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-07-08T05:52:10 DUE TO TIME LIMIT ***"],
     "timeout", None, None),
    (["slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-07-08T05:52:10 DUE TO NODE FAILURE, SEE LOG ***"],
     "failed", "slurm_time_or_node", None),
]  # fmt: skip


@pytest.mark.parametrize(("last", "outcome", "failure", "host"), FAILURES)
def test_why_a_job_failed(last: list[str], outcome: str, failure: str | None, host: str | None) -> None:
    job = one([*chat_log(["n1", "n2"], windows=3, ends=False), *last])
    assert (job.outcome, job.failure, job.failed_host) == (outcome, failure, host)
    assert job.reason and job.reason in last[-1].partition(": ")[2] + " ".join(last)


def test_the_exception_is_the_reason_and_not_the_exit_code() -> None:
    job = one([*chat_log(["n1", "n2"], ends=False), *FAILURES[3][0]])
    assert job.reason == "ValueError: a tensor of the wrong shape"


def test_a_non_zero_exit_after_the_last_figure_is_a_failure() -> None:
    job = one(
        [*chat_log(["n1", "n2"]), "n2: [ERROR] [launch.py:325:x] ['python3'] exits with return code = 1"]
    )
    assert (job.outcome, job.failed_host) == ("failed", "n2")


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
    assert one(["# Notes", "", "buy milk"]).reason == "nothing in it that any reader knows"
    assert one(["a,b,c", "1,2,3"], "x.csv").reason == "no mapping names its columns: a,b,c"
    assert one([]).outcome == "unreadable"


def test_a_file_that_breaks_off_keeps_what_was_read() -> None:
    def cut() -> Iterator[str]:
        yield from chat_log(["node-1"])[:30]
        raise BrokenFile("cannot be read to its end: x")

    (job,) = read_log("a.log", cut())
    assert (job.outcome, job.reason, job.hosts) == ("unreadable", "cannot be read to its end: x", ("node-1",))
    assert job.steps and job.steps > 10


# ---- Transformers ------------------------------------------------------------------------------------------


def split(text: str) -> list[str]:
    return re.split("[\r\n]", text)


def test_the_trainers_bars() -> None:
    """64 samples a second; its own account says 58.2, since the first step took half a minute."""
    job = one(split(trainer_log()), "node-1.log")
    assert (job.format, job.outcome, job.batch, job.steps) == ("Transformers", "succeeded", 64, 300)
    assert job.rate == pytest.approx(64, rel=0.01)
    assert job.reported == pytest.approx(58.2, rel=0.01)


def test_without_the_announcement_the_batch_comes_from_the_account() -> None:
    job = one(split(trainer_log(batch=None)), "node-1.log")
    assert job.batch == 64 and job.rate == pytest.approx(64, rel=0.01)


def test_a_short_run_has_the_trainers_own_account() -> None:
    """Whole seconds are too coarse for it."""
    job = one(split(trainer_log(step=0.1)), "node-1.log")
    assert job.measured is None and job.rate == job.reported == pytest.approx(300 * 64 / 60)
    assert "tool's own" in job.notes[0]


def test_evaluation_bars_stop_the_trainings_clock() -> None:
    text = trainer_log(step=1.0, steps=400)
    place = text.index("200/400")
    later = re.sub(
        r"\[(\d\d):(\d\d)<", lambda m: f"[{int(m[1]) + 5:02d}:{m[2]}<", text[place:]
    )  # five minutes
    evaluation = "\r 50%|█████     | 5/10 [00:05<00:05, 1.0it/s]\r100%|███| 10/10 [05:00<00:00, 1.0it/s]"
    text = f"{text[:place]}200/400 [03:50<01:00, 1.0s/it]{evaluation}\r  50%|██  | {later}"
    job = one(split(text), "node-1.log")
    assert job.rate == pytest.approx(64, rel=0.02)


def test_a_trainer_that_was_cut_off() -> None:
    job = one(split(trainer_log().partition("{'train_runtime'")[0]), "node-1.log")
    assert job.outcome == "timeout" and "after step 300" in (job.reason or "")


def test_a_trainer_without_bars() -> None:
    lines = ["{'loss': 0.51, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.5}"] * 3
    assert (one(lines, "node-1.log").outcome, one(lines, "node-1.log").format) == ("timeout", "Transformers")
    metrics = [
        "***** train metrics *****",
        "  train_runtime            = 0:12:22.52",
        "  train_samples_per_second =      227.7",
    ]
    job = one([*lines, *metrics], "node-1.log")
    assert (job.outcome, job.rate) == ("succeeded", 227.7)


# ---- metaseq -----------------------------------------------------------------------------------------------


def test_metaseq() -> None:
    job = one(metaseq_log(), "node-1.log")
    assert (job.format, job.outcome, job.batch, job.steps, job.skipped) == (
        "metaseq",
        "succeeded",
        64,
        101,
        1,
    )
    assert job.rate == pytest.approx(32.0)
    assert job.measured and job.measured.tokens == pytest.approx(job.measured.samples * 2048)
    assert one(metaseq_log(ends=False), "node-1.log").outcome == "timeout"


# ---- tables ------------------------------------------------------------------------------------------------


def test_lightnings_metrics() -> None:
    job = one(LIGHTNING, "node07/lightning_logs/version_0/metrics.csv")
    assert (job.outcome, job.hosts, job.format) == ("succeeded", ("node07",), "table")
    assert job.rate == pytest.approx(32.0)


def mapped(lines: list[str], **keys: object) -> list[JobLog]:
    return read_log("results.csv", lines, [Mapping.model_validate(keys)])


def test_a_table_with_a_row_per_host_and_step() -> None:
    lines = ["host;iter;ms"] + [
        f"{host};{step};{ms}" for step in range(50) for host, ms in (("a", 100), ("b", 125))
    ]
    first, second = mapped(
        lines, columns={"host": "host", "step": "iter", "step_seconds": "ms"}, batch=32, unit=0.001
    )
    assert (first.path, first.hosts, second.hosts) == ("results.csv#a", ("a",), ("b",))
    assert first.rate == pytest.approx(320) and second.rate == pytest.approx(256)
    assert first.step_seconds == pytest.approx(0.1)


def test_a_table_of_rates() -> None:
    """The rate of the mean, not the mean of rates: half of the time at 100, half at 300 samples/s."""
    lines = [
        "t,speed",
        "0,100",
        *[f"{2 * n},100" for n in range(1, 25)],
        *[f"{48 + n},300" for n in range(1, 49)],
    ]
    (job,) = mapped(lines, columns={"seconds": "t", "samples_per_second": "speed"})
    assert job.measured and job.rate == pytest.approx(job.measured.samples / job.measured.seconds)
    assert 200 < (job.rate or 0) < 225  # the warm-up is taken from the slow half


def test_a_mapping_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    for text, what in (
        ("columns: {step: s}", "needs one of seconds, step_seconds, samples_per_second"),
        ("columns: {seconds: a, step_seconds: b}", "give one of them"),
        ("columns: {secons: a}", "unknown key 'columns.secons'"),
        ("columns: [a]", "columns"),
        ("batch: 0\ncolumns: {seconds: a}", "batch"),
        ("{", "not valid YAML"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=re.escape(what)):
            load_mapping(file)


def test_shipped_mappings_load() -> None:
    assert MAPPINGS and all(each.about for each in MAPPINGS)


# ---- hosts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "hosts"),
    [
        ("logs/node07.log", ("node07",)),
        ("logs/node07.rank3.log", ("node07",)),
        ("node07/attempt_0/0/stdout.log", ("node07",)),
        ("run/node07/train.log.gz", ("node07",)),
        ("slurm-1234-node07.out", ("node07",)),
        ("node[01-02].log", ("node01", "node02")),
        ("node01+node02.log", ("node01", "node02")),
        ("logs/train.log", ()),
        ("stdout", ()),
    ],
)
def test_hosts_of_a_path(path: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of_path(path) == hosts


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("SLURM_JOB_NODELIST=node[01-02]", ("node01", "node02")),
        ("cmd = pdsh -S -w a,b --world_info=eyJhIjogWzAsIDFdLCAiYiI6IFswXX0= --node_rank=%n", ("a", "b")),
        ("node01:123:456 [0] NCCL INFO Bootstrap : Using eth0", ("node01",)),
    ],
)
def test_hosts_of_a_line(line: str, hosts: tuple[str, ...]) -> None:
    assert one([line, *metaseq_log()], "train.log").hosts == hosts


def test_time_stamps() -> None:
    first, second = stamp("[2024-07-08 23:59:59,990] x"), stamp("2024-07-09T00:00:00.010 | y")
    assert first and second and second - first == pytest.approx(0.02)
    assert stamp("2024-19-08 23:59:59") is None and stamp("x") is None


# ---- windows -----------------------------------------------------------------------------------------------

WINDOWS = st.builds(
    Window,
    steps=st.integers(1, 50),
    skipped=st.just(0),
    samples=st.floats(1, 1e6),
    seconds=st.floats(1e-3, 1e4),
)


@given(st.lists(WINDOWS, min_size=1, max_size=40))
def test_a_rate_is_samples_over_seconds(windows: list[Window]) -> None:
    """Of the windows after the warm-up, whatever their lengths: never a mean of rates."""
    series = Series()
    for window in windows:
        series.add(window)
    found = series.measured()
    assert found is not None
    rest = windows[-found.windows :]
    assert found.rate == pytest.approx(sum(w.samples for w in rest) / sum(w.seconds for w in rest))
    passed = sum(w.steps for w in windows[: -found.windows])
    assert passed - (windows[-found.windows - 1].steps if passed else 0) <= max(
        10, sum(w.steps for w in windows) / 3
    )


def test_long_runs_keep_a_bounded_number_of_windows() -> None:
    series = Series()
    for number in range(100_000):
        series.add(Window(10, int(number % 50 == 0), 640.0, 2.0 + number % 2))
    assert len(series.head) <= HEAD and len(series.tail) <= TAIL
    found = series.measured()
    # Every 25th of the windows of two seconds had a skipped step; they alternate with 25 of three seconds.
    assert found is not None and found.rate == pytest.approx(49 * 640 / (24 * 2 + 25 * 3), rel=1e-3)
    assert found.steps == 10 * (98_000 - 1)  # one window of warm-up had a skipped step


def test_nonsense_is_no_window() -> None:
    series = Series()
    for window in (Window(0, 0, 1, 1), Window(1, 0, 1, 0), Window(1, 0, 1, float("nan")), Window(1, 2, 1, 1)):
        series.add(window)
    assert series.measured() is None
