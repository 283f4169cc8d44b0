"""How a job ended, as its log tells."""

from __future__ import annotations

from collections.abc import Iterator

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
