"""Logs as users have them: with prefixes of launchers and of collectors, in other encodings, compressed."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from muster.readers.base import JobLog
from tests.unit.logs import LOGS, chat_log, one

PREFIXES = {
    "srun --label": "0: ",
    "srun --label of more than nine": " 3: ",
    "mpirun --tag-output": "[1,0]<stdout>:",
    "mpirun 5 --tag-output": "[prterun-node01-1234@1,0]<stdout>: ",
    "mpirun --timestamp-output": "Mon Jul  8 05:52:00 2024[1,0]<stdout>:",
    "mpich -prepend-rank": "[0] ",
    "torchrun": "[default0]:",
    "torchrun in srun": "0: [default0]:",
    "kubectl --prefix": "[pod/worker-0/pytorch] ",
    "docker compose": "trainer-1  | ",
    "journalctl": "Jul 08 05:52:00 head python[123]: ",
    "ts": "Jul 08 05:52:00 ",
    "a colour": "\x1b[32m",
}


def told(job: JobLog) -> tuple[object, ...]:
    return job.outcome, job.hosts, job.workload, job.batch, job.steps, job.skipped_steps, job.rate


@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefix_hides_nothing(name: str) -> None:
    """One host, whose own lines have no prefix."""
    lines = chat_log(["n1"])
    assert told(one([PREFIXES[name] + line for line in lines])) == told(one(lines))


@pytest.mark.parametrize("name", ["srun --label", "torchrun in srun", "a colour"])
def test_a_label_before_the_hosts_that_pdsh_names(name: str) -> None:
    lines = [*chat_log(["n1", "n2"], ends=False), "n2: torch.OutOfMemoryError: CUDA out of memory."]
    job = one([PREFIXES[name] + line for line in lines])
    assert told(job) == told(one(lines)) and job.failed_hosts == ("n2",)


SHAPES: dict[str, tuple[str, Callable[[str], bytes]]] = {
    "Windows": ("log", lambda text: text.replace("\n", "\r\n").encode()),
    "UTF-16 with a mark": ("log", lambda text: text.encode("utf-16")),
    "UTF-16 without": ("log", lambda text: text.encode("utf-16-le")),
    "UTF-16, the other order": ("log", lambda text: text.encode("utf-16-be")),
    "UTF-8 with a mark": ("log", lambda text: b"\xef\xbb\xbf" + text.encode()),
    "Latin-1": ("log", lambda text: ("größe\n" + text).encode("latin-1")),
    "gzip": ("log.gz", lambda text: gzip.compress(text.encode())),
    "gzip of UTF-16": ("out", lambda text: gzip.compress(text.encode("utf-16"))),
}


@pytest.mark.parametrize("label", ["[rank0]:", "0: ", "[default0]:", "[1,0]<stdout>:"])
def test_labels_of_launchers_change_nothing(label: str) -> None:
    for name in ("megatron", "olmo", "composer", "modded", "nemo", "nano"):
        lines = LOGS[name].strip("\n").split("\n")
        job, labelled = one(lines), one([label + line for line in lines])
        assert labelled.measured == job.measured and labelled.batch == job.batch
