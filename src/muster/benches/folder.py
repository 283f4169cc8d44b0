"""A bench's folder: every path in it, what is frozen before the first job, and which jobs are over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from muster.core.errors import NO_ROOM, JobError, RunFolderError
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import (
    FolderItem,
    LockedFolder,
    PipelineFolder,
    RunFolder,
    find_any,
    read_object,
    stamped,
)

if TYPE_CHECKING:  # `muster ls` needs none of them
    from muster.benches.document import Bench, JobRecord
    from muster.core.inventory import Host, Inventory


@dataclass(frozen=True)
class BenchFolder(LockedFolder):
    """Paths of one bench. Nothing is created until `create`.

    `mark`: ends the names of its run folders, by which hosts with disks of their own name what they keep: two
    benches have jobs of one name.
    """

    inside = ("jobs", "recipes", "runs")
    named_by = "--output"
    mark: str = field(default_factory=lambda: os.urandom(3).hex())

    @property
    def go_on(self) -> str:
        """The command that continues it."""
        return f"muster bench --continue {self.path}"

    suite = FolderItem("suite.yaml")  # the suite as it was resolved
    schedule = FolderItem("schedule.json")  # hosts, jobs and their order; adaptive entries add theirs
    inspection = FolderItem("inspection.json")  # what was found before the first job
    # A copy of what an earlier bench found normal. Not there: there was none to begin with.
    baseline = FolderItem("baseline.json")
    result = FolderItem("bench.json")
    table = FolderItem("results.csv")  # the results of jobs, a row each
    runs = FolderItem("runs")  # the jobs' run folders: `muster ls --runs` lists them
    lock = FolderItem("bench.lock")

    def recipe(self, entry: str) -> Path:
        """Return an entry's recipe as it was resolved."""
        return self.path / "recipes" / f"{entry}.yaml"

    def hosts(self, job: str) -> Path:
        """Return the hosts of a job, for --hosts."""
        return self.path / "jobs" / f"{job}.hosts.json"

    def record(self, job: str) -> Path:
        """Return the path of a job's record, written when it is over. Absent: it is to run (again)."""
        return self.path / "jobs" / f"{job}.json"

    def log(self, job: str) -> Path:
        """Return the path of what `muster train` printed."""
        return self.path / "jobs" / f"{job}.log"

    def attempts(self, job: str) -> list[RunFolder]:
        """Return the existing run folders of a job, the last one last."""
        runs = []
        for number in range(1, 1000):
            run = self._attempt(job, number)
            if not run.path.exists():
                break
            runs.append(run)
        return runs

    def next_attempt(self, job: str) -> RunFolder:
        """Return a run folder that does not exist yet."""
        return self._attempt(job, len(self.attempts(job)) + 1)

    def _attempt(self, job: str, number: int) -> RunFolder:
        name = f"{job}-{self.mark}" if self.mark else job
        return RunFolder(self.runs / (name if number == 1 else f"{name}.again{number - 1}"))

    def relative(self, run: RunFolder) -> str:
        """Return a run folder's path in this one."""
        return str(run.path.relative_to(self.path))

    def marked(self) -> BenchFolder:
        """Return it with its original mark. Raises RunFolderError where this is no bench's folder."""
        return replace(self, mark=str(self.read_schedule().get("mark", "")))

    def write(self, path: Path, text: str, *, private: bool = False) -> None:
        """Write a file of this folder, whole. Raises JobError."""
        with self._writing(path):
            write_text(path, text, private=private)

    def write_data(self, path: Path, data: Any) -> None:
        """Write data as JSON. Raises JobError."""
        with self._writing(path):
            write_json(path, data)

    def open_log(self, job: str) -> IO[bytes]:
        """Open the log of a job for appending what `muster train` prints. Raises JobError."""
        with self._writing(self.log(job)):
            return self.log(job).open("ab")

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            again = f"`{self.go_on}`" if self.schedule.exists() else "begin again with another --output"
            full = error.errno in NO_ROOM
            raise JobError(
                f"cannot be written: {error.strerror or error}",
                where=str(path),
                hint=f"{'make room' if full else 'mend that'}, then {again}",
                failure="disk_full" if full else None,
            ) from None

    def write_hosts(self, job: str, hosts: Sequence[Host], inventory: Inventory) -> Path:
        """Write the job's hosts as an inventory: slots, logins and the way to reach them stay as they are."""
        from muster.core.inventory import inventory_document

        self.write_data(self.hosts(job), inventory_document(hosts, inventory.launcher))
        return self.hosts(job)

    def write_record(self, record: JobRecord) -> None:
        """Write a job's record: from now on it is not run again."""
        from muster.benches.document import RECORD

        self.write_data(self.record(record.job), RECORD.dump_python(record, mode="json"))

    def read_result(self) -> Bench | None:
        """Return the result; None: it has not ended. Raises RunFolderError for a damaged file."""
        from muster.benches.document import Bench

        return self._read_as(Bench)

    def records(self, jobs: Sequence[str]) -> dict[str, JobRecord]:
        """Return the records of the finished ones of these jobs. Raises RunFolderError for a damaged file."""
        from muster.benches.document import RECORD

        read = {}
        for job in jobs:
            path = self.record(job)
            if not path.exists():
                continue
            try:
                read[job] = RECORD.validate_json(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise RunFolderError(
                    f"cannot be read: {str(error).splitlines()[0]}",
                    where=str(path),
                    hint="without this file the job is run again",
                ) from None
        return read

    def read_schedule(self) -> dict[str, Any]:
        """Return the written schedule. Raises RunFolderError where this is no bench's folder."""
        if not self.schedule.exists():
            hint = "it has no schedule.json"
            raise RunFolderError("is not the folder of a bench", where=str(self.path), hint=hint)
        return read_object(self.schedule)


def list_benches(root: Path) -> list[BenchFolder]:
    """Return benches directly under `root`, oldest first by name."""
    return [BenchFolder(schedule.parent) for schedule in sorted(root.glob("*/schedule.json"))]


def find(text: str, root: Path) -> RunFolder | PipelineFolder | BenchFolder:
    """Return a run, a pipeline or a bench: by path, by id under `root`, by a unique part of its id, or
    `last`. A bench's runs are below it, where only a path finds them. Raises RunFolderError."""
    path = Path(text).expanduser()
    benches = {bench.id: bench for bench in list_benches(root)}
    if (path / "schedule.json").is_file():
        return BenchFolder(path.absolute())
    if text in benches:
        return benches[text]
    try:
        return find_any(text, root)
    except RunFolderError:
        matches = [bench for name, bench in benches.items() if text and text in name]
        if len(matches) != 1:
            raise
        return matches[0]


def new_bench_folder(root: Path, suite: str) -> BenchFolder:
    """Return a folder whose name sorts by time and describes the bench:
    20261121-093000-bench-acceptance-4f2a."""
    return BenchFolder(stamped(root, "bench-", suite))
