"""How a job ended, as its log tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.readers._read import without_harmless
from muster.store.logfiles import BrokenFile
from tests.unit.logs import chat_log, one, read_log


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


TITAN = "[rank0]:[titan] 2025-08-22 07:53:{:02d},498 - root - INFO - step: {:2d}  loss:  3.2  tps: 7,282"
ANNOUNCED = (
    "[rank0]:[titan] 2025-08-22 07:52:57,498 - root - INFO - Trainer is initialized with local batch size 1, "
    "global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps {} (warmup 200)"
)
DONE = [
    ANNOUNCED.format(20), *(TITAN.format(at, at) for at in range(1, 21)),
    "[rank0]:[titan] 2025-08-22 07:53:21,498 - root - INFO - Training completed",
]  # fmt: skip
BAR = "Epoch {}: 50%|#####     | {}/200 [{}<00:07, 12.51it/s, train_loss=0.306]"
RICH = "Epoch {}/2  ━━━━━━━━ {}/200 0:00:{:02d} •        18.02it/s train_loss: 0.358"
COMPOSED = "[epoch={}][batch={}/60]:"


@pytest.mark.parametrize(
    ("lines", "outcome", "steps"),
    [
        ([TITAN.format(at, at) for at in range(1, 21)], "succeeded", 20),
        ([ANNOUNCED.format(40), *(TITAN.format(at, at) for at in range(1, 21))], "timeout", 20),
        ([ANNOUNCED.format(20), *(TITAN.format(at, at) for at in range(1, 21))], "succeeded", 20),
        ([ANNOUNCED.format(25), *(TITAN.format(at, at) for at in range(10, 21, 10))], "succeeded", 20),
        ([*DONE, ANNOUNCED.format(40), *(TITAN.format(at, at) for at in range(21, 31))], "timeout", 30),
        ([*DONE, ANNOUNCED.format(40), *(TITAN.format(at, at) for at in range(21, 41))], "succeeded", 40),
        ([*DONE, *(TITAN.format(at + 30, at) for at in range(11, 16))], "timeout", 25),
        ([*DONE, *(TITAN.format(at + 30, at) for at in range(11, 21))], "succeeded", 30),
        ([BAR.format(0, at, f"00:{at // 10:02d}") for at in range(20, 201, 20)], "succeeded", 200),
        ([BAR.format(1, at, f"00:{at // 10:02d}") for at in range(20, 101, 20)], "timeout", 100),
        (
            [BAR.format(n // 200, n % 200 + 20, f"00:{n % 200 // 10:02d}") for n in range(0, 300, 20)],
            "timeout",
            300,
        ),
        ([RICH.format(2, at, at // 10) for at in range(20, 201, 20)], "succeeded", 200),
        ([RICH.format(1, at, at // 10) for at in range(20, 201, 20)], "timeout", 200),
        ([COMPOSED.format(1, at) for at in range(1, 61)], "succeeded", 60),
        ([COMPOSED.format(1, at) for at in range(1, 51)], "timeout", 50),
    ],
)
def test_a_log_that_ends_before_its_own_total_was_cut(lines: list[str], outcome: str, steps: int) -> None:
    """The total of the training, or of its epoch. Lines come every so many steps."""
    job = one(lines)
    assert (job.outcome, job.steps) == (outcome, steps)


# ---- the last line -----------------------------------------------------------------------------------------

NEMO = (
    "Training epoch {epoch}, iteration {step}/{last} | lr: 3e-05 | global_batch_size: 64 | {total}"
    "reduced_train_loss: 3.666 | train_step_timing in s: 2.4"
)


def nemo(epochs: int, stops: int, *, last: int = 19, total: bool = True) -> list[str]:
    """Steps of some whole epochs, and of one more up to a step."""
    steps = [(epoch, step) for epoch in range(epochs) for step in range(last + 1)]
    steps += [(epochs, step) for step in range(stops)]
    return [
        NEMO.format(epoch=epoch, step=step, last=last, total=f"global_step: {number} | " if total else "")
        for number, (epoch, step) in enumerate(steps)
    ]


@pytest.mark.parametrize("total", [True, False])
@pytest.mark.parametrize(
    ("epochs", "stops", "outcome"),
    [(1, 0, "succeeded"), (3, 0, "succeeded"), (0, 12, "timeout"), (2, 7, "timeout")],
)
def test_nemo_within_an_epoch_was_cut(epochs: int, stops: int, outcome: str, *, total: bool) -> None:
    lines = nemo(epochs, stops, total=total)
    assert one(lines, "n1.log").outcome == outcome
    assert one([*lines, "`Trainer.fit` stopped: `max_steps` reached."], "n1.log").outcome == "succeeded"


NO_END = [f"iter {number}: loss 3.1, time 100.00ms" for number in range(60)]  # nanoGPT's, which tells none
EIO = "OSError: [Errno 5] Input/output error: '/data/shard_40.tar'"


@pytest.mark.parametrize(
    ("last", "outcome", "failed"),
    [
        (f"n2: {EIO}", "failed", ("n2",)),
        (EIO, "failed", ()),
        ("RuntimeError: boom", "failed", ()),
        ("RuntimeError: boom (ignored)", "succeeded", ()),
        ("n2: no error", "succeeded", ()),
    ],
)
def test_an_exception_as_the_last_line(last: str, outcome: str, failed: tuple[str, ...]) -> None:
    job = one([*NO_END, last], "n1.log")
    assert (job.outcome, job.failed_hosts) == (outcome, failed)
    assert one([*NO_END, last, *NO_END[:9]], "n1.log").outcome == "succeeded"  # training went on
