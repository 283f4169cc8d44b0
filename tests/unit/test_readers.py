"""What all readers keep, and what they share: hosts, time stamps, which lines they are given."""

from __future__ import annotations

import importlib
import inspect
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster.readers
from muster.core.registry import plugin_names
from muster.readers._feed import KeywordFilter
from muster.readers._frame import Frame, stamp
from muster.readers._paths import hosts_of_path, place_of
from muster.readers._user import PLACES, Expression, UserFormat
from tests.unit.logs import LIGHTNING, LOGS, chat_log, metaseq_log, read_log, trainer_log

READERS = sorted(plugin_names("muster.readers"))


# ---- the contract ------------------------------------------------------------------------------------------


def test_the_readers_there_are() -> None:
    assert set(READERS) == {
        "deepspeed", "deepspeed_chat", "lines", "metaseq", "mllog", "table", "trainer", "user_lines"
    }  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_reader_has_what_is_promised(name: str) -> None:
    promised = re.findall(r"^ *(\w+)\(", muster.readers.__doc__ or "", re.MULTILINE)
    assert promised == ["Reader", "line", "readings"]
    module = importlib.import_module(f"muster.readers.{name}")
    assert module.FORMAT and module.HINTS and inspect.getdoc(module.Reader)
    reader = module.Reader(Frame(user=UserFormat.of(["(?P<seconds>never)"])))
    assert reader.readings() == [] and reader.closed is False


MIXED = [
    *chat_log(["n1", "n2"], windows=2),
    *trainer_log(steps=30).replace("\r", "\n").split("\n"),
    *metaseq_log(),
    *LIGHTNING,
    *(line for text in LOGS.values() for line in text.strip("\n").split("\n")),
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
    own = UserFormat.of([r"(?P<time>[\d-]+ [\d:,]+).*?(?P<step>\d+).*?(?P<seconds>[\d.]+)"])
    for job in read_log("job.csv", lines, own, Expression.of("(?P<host>j.*b)", PLACES, "")):
        assert job.outcome in ("succeeded", "failed", "timeout", "unreadable")
        assert job.rate is None or job.rate >= 0
        assert (job.outcome == "succeeded") == (job.reason is None)


@given(st.lists(st.text(max_size=60), max_size=30))
def test_any_text_is_read(lines: list[str]) -> None:
    jobs = read_log("a/b.log", lines)
    assert len(jobs) == 1


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
    assert hosts_of_path(path)[0] == hosts


@pytest.mark.parametrize(
    ("path", "job", "rank"),
    [
        ("a/node07.rank3.log", "a/node07.log", 3),
        ("a/node07-task_3.out", "a/node07", 3),
        ("a/node07.gpu3.log", "a/node07.log", None),
        ("a/local_rank_3.log.gz", "a/.log.gz", None),
        ("node07/attempt_1/3/stdout.log", "node07/attempt_1/*/.log", None),
        ("node07/rank3/stderr", "node07/*/", 3),
        ("slurm-12.err", "slurm-12", None),
        ("r.rank3.csv#node07", "r.csv#node07", 3),
        ("a/3/node07-3.log", "a/3/node07-3.log", None),  # numbers that are nobody's rank
        ("task3/node07.log", "task3/node07.log", None),
        ("layout/standard.log", "layout/standard.log", None),
    ],
)
def test_what_files_of_one_job_share(path: str, job: str, rank: int | None) -> None:
    assert place_of(path) == (job, rank)


def test_time_stamps() -> None:
    first, second = stamp("[2024-07-08 23:59:59,990] x"), stamp("2024-07-09T00:00:00.010 | y")
    assert first and second and second - first == pytest.approx(0.02)
    assert stamp("2024-19-08 23:59:59") is None and stamp("x") is None


# ---- the sieve ---------------------------------------------------------------------------------------------


WORDS = ("rror", "step=30", "step", "\u2588", "exit code", "x1y")
PIECES = st.lists(
    st.sampled_from([*WORDS, "1", "30", " ", "ste", "p=", "r", "e", "x", "y", "\x1b[0m"]), max_size=8
)


@given(st.lists(st.lists(PIECES.map("".join), max_size=12), max_size=4))
def test_no_line_with_a_word_in_it_is_missed(blocks: list[list[str]]) -> None:
    """And those that have none of the words, even with other digits or none, are told by nobody."""
    groups = [WORDS[:2], WORDS[2:4], WORDS[4:]]
    sieve = KeywordFilter(groups)
    for lines in blocks:
        told = {place: bits for place, bits, _ in sieve.telling(lines)}
        for place, line in enumerate(lines):
            for number, words in enumerate(groups):
                said = bool(told.get(place, 0) & 1 << number)
                assert said or not any(word in line for word in words)
                bare = re.sub("[0-9]", "", line)
                assert not said or any(re.sub("[0-9]", "", word) in bare for word in words)


def test_what_the_sieve_remembers_is_bounded() -> None:
    """20 MB of lines that differ in more than digits."""
    sieve, letters = KeywordFilter([["step"]]), str.maketrans("0123456789", "abcdefghij")
    tracemalloc.start()
    try:
        for block in range(20):
            lines = [(str(1000 * block + row).translate(letters) + " ") * 200 for row in range(1000)]
            assert sieve.telling([*lines, "step 1"]) == [(1000, 1, "step ")]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("mark", ["/", "|"])
def test_lightnings_throughput_by_its_separator(mark: str) -> None:
    (log,) = read_log("node1/metrics.csv", [line.replace("|", mark) for line in LIGHTNING])
    assert log.step_seconds == pytest.approx(0.5)


def test_tokens_of_one_device_are_those_of_all_where_their_number_is_said() -> None:
    steps = [f"completed step: {n}, seconds: 2.0, TFLOP/s/device: 80.4, Tokens/s/device: 500.0, "
             "total_weights: 8000, loss: 9.1" for n in range(30)]  # fmt: skip
    (one,) = read_log("node1.log", steps)
    (whole,) = read_log("node1.log", ["Num_devices: 8, shape (8, 1)", *steps])
    assert (one.tokens_per_second, whole.tokens_per_second) == (pytest.approx(500), pytest.approx(4000))
