"""The run folder: every path in it, its state, and how to find it again."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from muster.core.errors import RunFolderError, UsageError, refused
from muster.core.near import did_you_mean
from muster.core.state import RunEnd, State
from muster.store.atomic import write_text
from muster.store.runlock import Claim, is_held, take

if TYPE_CHECKING:
    from pydantic import BaseModel

    from muster.core.recipe import Recipe
    from muster.core.result import PipelineResult, Result

Document = TypeVar("Document", bound="BaseModel")
DEFAULT_ROOT = Path("runs")
LAST = ("last", "latest")  # what finds the newest run
PIPELINE = "pipeline.yaml"  # a folder with it is a pipeline's
_MARKS = ("submission.json", "job.json")  # a folder with one of them is a run's


def from_here(path: Path) -> str:
    """Return a path as a user types it: relative where it lies below the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def new_mark() -> str:
    """Return a mark that tells a run from others of its name on hosts with disks of their own."""
    return os.urandom(4).hex()


def name_elsewhere(name: str, mark: str | None) -> str:
    """Return the name of a run's folder on hosts that do not see it, where other runs may have had its name.
    """
    return f"{name}-{mark}" if mark else name


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of one of a folder's JSON files. Raises RunFolderError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot be read: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise RunFolderError("cannot be read: it is not a JSON object", where=str(path))
    return data


class FolderItem:
    """A file or folder in a run's or bench's folder, by its name there. Reading the attribute gives the whole
    path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: Any, kind: type) -> Path:
        path: Path = folder.path
        return path / self._name


@dataclass(frozen=True)
class LockedFolder:
    """What the folders of a run, a pipeline and a bench share: one process at a time works on it, and its
    result is written last."""

    path: Path
    inside: ClassVar[tuple[str, ...]] = ()  # folders that it has from its begin
    named_by: ClassVar[str] = "--name or --output"

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.path.name

    @property
    def go_on(self) -> str:
        """The command that continues it."""
        return f"muster resume {self.path}"

    result = FolderItem("result.json")  # written last. Not there: not finished
    report = FolderItem("report.html")  # the page
    lock = FolderItem("controller.lock")
    controller = FolderItem("controller.json")  # who supervises it now
    stop_request = FolderItem("stop.request")  # `muster stop` creates it; the controller obeys

    def create(self) -> None:
        """Create the folder. Raises RunFolderError where it exists or cannot be created."""
        try:
            self.path.mkdir(parents=True)
            for name in self.inside:
                (self.path / name).mkdir()
        except FileExistsError:
            raise taken(self) from None
        except OSError as error:
            raise RunFolderError(f"cannot be made: {error.strerror}", where=str(self.path)) from None

    def claim(self, batch_job: str | None = None) -> Claim:
        """Make this process the folder's controller until it ends or releases it. Raises RunFolderError.

        `batch_job`: the id of the batch system's job that this process belongs to.
        """
        return take(self.lock, self.controller, self.id, batch_job)

    def controller_alive(self) -> bool | None:
        """Return whether a controller works on it now. None: one on another machine, by its signs of life."""
        return is_held(self.lock, self.controller)

    read_json = staticmethod(read_object)

    def _read_as(self, kind: type[Document]) -> Document | None:
        """Return the result, or None where there is none yet. Raises RunFolderError for a damaged file."""
        if not self.result.exists():
            return None
        try:
            return tolerant(kind, json.loads(self.result.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            problems = error.errors() if hasattr(error, "errors") else []  # pydantic's, which is not imported
            what = problems[0]["msg"] if problems else str(error)
            raise RunFolderError(
                f"is damaged: {what}",
                where=str(self.result),
                hint="keep it under another name: it then counts as not finished, and all else in its folder "
                "is still there",
            ) from None


@dataclass(frozen=True)
class JobFolder(LockedFolder):
    """What the folders of a run and of a pipeline share."""

    @property
    def id(self) -> str:
        """The name of the folder; of a pipeline's step, behind the pipeline's name."""
        return f"{self.path.parent.name}/{self.path.name}" if self.of_pipeline else self.path.name

    @property
    def of_pipeline(self) -> bool:
        """Whether it is a step of a pipeline."""
        return (self.path.parent / PIPELINE).is_file()

    @property
    def word(self) -> str:
        """The name by which commands in the current folder find it: its id, with --runs where that is not the
        default."""
        root = self.path.parents[self.of_pipeline]
        if root == DEFAULT_ROOT.absolute():
            return shlex.quote(self.id)
        return f"{shlex.quote(self.id)} --runs {shlex.quote(from_here(root))}"

    def state(self) -> State:
        """Return the state, from the folder's files and its controller."""
        try:
            return self._state()
        except RunFolderError:
            return State.DAMAGED

    def _state(self) -> State:
        if self.result.exists():
            status = self.read_json(self.result).get("status")
            if status not in get_args(RunEnd):
                raise RunFolderError("cannot be read: it has no status of a run", where=str(self.result))
            return State(status)
        if waiting := self._waiting():
            return waiting
        alive = self.controller_alive()
        if alive is None:
            return State.ELSEWHERE
        return State.RUNNING if alive else State.INTERRUPTED

    def _waiting(self) -> State | None:
        """Return the state while no controller has begun it; None: one has."""
        return None


def tolerant(kind: type[Document], data: Any) -> Document:
    """Return a document without the keys that this version does not define: a later version may have written
    them. Raises ValueError for any other fault."""
    try:
        return kind.model_validate(data)
    except ValueError as error:
        problems: list[Any] = getattr(error, "errors", list)()  # pydantic's, which is not imported
        unknown = [each["loc"] for each in problems if each["type"] == "extra_forbidden"]
        if not unknown or len(unknown) < len(problems):
            raise
    for *path, key in unknown:
        functools.reduce(operator.getitem, path, data).pop(key)
    return tolerant(kind, data)


@dataclass(frozen=True)
class RunFolder(JobFolder):
    """Paths of one run. Nothing is created until `create`."""

    inside = ("logs",)

    @property
    def mark(self) -> str | None:
        """The mark that the run got when it was created; None: it is not created yet, or older than marks."""
        try:
            return self._mark.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"cannot be read: {error}", where=str(self._mark)) from None

    @property
    def trained(self) -> RunFolder:
        """The run whose model this name stands for: of a pipeline, a step."""
        return self

    @property
    def elsewhere(self) -> str:
        """The name of its folder below `launch.workdir`, on hosts with disks of their own."""
        return name_elsewhere(self.path.name, self.mark)

    _mark = FolderItem("mark")
    recipe = FolderItem("recipe.yaml")  # the recipe as it was resolved, frozen before the launch
    plan = FolderItem("plan.json")  # decisions with their reasons
    job = FolderItem("job.json")  # the placement and everything else that was fixed
    # The configuration that the engine gets, and a copy of the user's own: named when one engine had any.
    engine_config = FolderItem("deepspeed.json")
    engine_config_given = FolderItem("deepspeed-given.json")
    # The measured peaks of the hosts' devices, out of the document that the recipe named.
    peaks = FolderItem("peaks.json")
    env = FolderItem("env.json")  # versions and environment of the controller
    events = FolderItem("events.jsonl")  # all events of all attempts, in the order of arrival
    logs = FolderItem("logs")  # one file per host and one per rank
    checkpoints = FolderItem("checkpoints")  # where hosts that share this folder save to
    model = FolderItem("model")  # the trained model, in the Hugging Face format
    tensorboard = FolderItem("tensorboard")  # TensorBoard event files
    # Profiles that were asked for: breakdowns by module and traces, a file per rank.
    profile = FolderItem("profile")
    code = FolderItem("code")  # of a command, where it was brought to hosts that share this folder
    # Held-out questions with the model's answers, one JSON object per line.
    predictions = FolderItem("predictions.jsonl")
    asked = FolderItem("asked.jsonl")  # what `muster ask --evaluate` answered last
    hang = FolderItem("hang.json")  # where each rank stood when the job was found to hang
    fabric = FolderItem("fabric")  # the fabric workload's tables, as CSV files
    room = FolderItem(".room")  # holds some room on the disk while the job runs, for its result
    # What was handed to a batch system: there before the job is, and the way to find it again.
    submission = FolderItem("submission.json")
    submitted_recipe = FolderItem("submitted.yaml")  # the recipe that the batch job reads
    batch_script = FolderItem("job.sh")  # what the batch system runs
    batch_output = FolderItem("job.log")  # what the batch job printed

    def host_log(self, host: str) -> Path:
        """Return the path of a host's agent log."""
        return self.logs / f"{_safe(host)}.log"

    def rank_log(self, host: str, rank: int) -> Path:
        """Return the path of a rank's output."""
        return self.logs / f"{_safe(host)}.rank{rank}.log"

    def create(self, ticket: str | None = None, mark: str | None = None) -> None:
        """Create the folder. Raises RunFolderError where it exists or cannot be created.

        `ticket`: that of the batch job in which this runs; a folder that was created for this job may exist.
        `mark`: the one by which hosts with disks of their own name what they keep of this run.
        """
        with refused(RunFolderError, "made", self.path):
            if not self.job.exists() and self.waits_for(ticket):
                self.logs.mkdir(exist_ok=True)  # the job's first start may have died here
            else:
                super().create()
            if mark:
                write_text(self._mark, f"{mark}\n")

    def waits_for(self, ticket: str | None) -> bool:
        """Return whether the folder was created for the batch job with this ticket."""
        if ticket is None or not self.submission.is_file():
            return False
        return bool(self.read_json(self.submission).get("ticket") == ticket)

    def read_result(self) -> Result | None:
        """Return the result, or None where the run has not ended. Raises RunFolderError for a damaged file.
        """
        from muster.core.result import Result  # pydantic's models take long to load; `muster ls` needs none

        return self._read_as(Result)

    def stop_asked(self) -> bool:
        """Return whether `muster stop` named this run, or the pipeline whose running step it is."""
        if self.stop_request.exists():
            return True
        above = JobFolder(self.path.parent)
        return self.of_pipeline and above.stop_request.exists() and above.controller_alive() is not False

    def set_result_aside(self) -> None:
        """Keep the last attempt's result under another name: until the new attempt ends, the run has no
        result."""
        result = self.read_result()
        if result is not None:
            self.result.replace(self.path / f"result.attempt{result.attempt}.json")

    def _waiting(self) -> State | None:
        if not self.submission.is_file() or self.job.exists():
            return None
        return State.CANCELLED if self.read_json(self.submission).get("cancelled") else State.SUBMITTED


@dataclass(frozen=True)
class PipelineFolder(JobFolder):
    """Paths of one pipeline. It contains each step's run folder, by the step's name."""

    pipeline = FolderItem(PIPELINE)  # the steps as they were resolved, in the order in which they run
    hosts = FolderItem("hosts.json")  # where they run

    def step(self, name: str) -> RunFolder:
        """Return a step's run folder, which may not exist yet."""
        return RunFolder(self.path / name)

    @property
    def steps(self) -> list[RunFolder]:
        """The run folders of all steps, in the order in which they run. Raises RunFolderError."""
        from muster.core.recipes import read_yaml

        try:
            folders = [self.step(str(each["name"])) for each in read_yaml(self.pipeline)["pipeline"]]
        except (UsageError, KeyError, TypeError):
            folders = []
        if folders:
            return folders
        raise RunFolderError("is damaged: it has no list of steps", where=str(self.pipeline))

    @property
    def trained(self) -> RunFolder:
        """The last step that has a model; the first step where none has."""
        steps = self.steps
        return next((each for each in reversed(steps) if each.model.is_dir()), steps[0])

    def read_result(self) -> PipelineResult | None:
        """Return the result, or None where the pipeline has not ended. Raises RunFolderError for a damaged
        file."""
        from muster.core.result import PipelineResult

        return self._read_as(PipelineResult)

    def controller_alive(self) -> bool | None:
        """Return whether a controller works on it now: its own signs of life are given between steps alone.
        """
        alive = [super().controller_alive(), *(each.controller_alive() for each in self.steps)]
        return True if True in alive else None if None in alive else False


def taken(folder: LockedFolder) -> RunFolderError:
    """Return the error for a folder that exists already."""
    return RunFolderError(
        "is already there, and nothing is ever written over",
        where=str(folder.path),
        hint=f"choose another {folder.named_by}, or `{folder.go_on}`",
    )


def new_run_folder(root: Path, *, workload: str, model: str) -> RunFolder:
    """Return a new folder whose name sorts by time and describes the run:
    20261121-093000-text2sql-t5-small-4f2a."""
    return RunFolder(stamped(root, "", f"{workload}-{model}"))


def stamped(root: Path, kind: str, text: str) -> Path:
    """Return a folder name that sorts by time and describes its content."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:40]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return (root / f"{stamp}-{kind}{words}-{os.urandom(2).hex()}").absolute()


def run_folder_of(recipe: Recipe, root: Path) -> RunFolder:
    """Return a new folder, named after what is trained."""
    name = recipe.model.name or ("custom" if recipe.trains else "")
    return new_run_folder(root, workload=recipe.workload, model=name.rstrip("/").rpartition("/")[2])


def named_run_folder(root: Path, name: str) -> RunFolder:
    """Return the folder of a run that the user has named. Raises UsageError for an invalid name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}", name) or name in LAST:
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            where="--name",
            hint=f"{name} means the newest run"
            if name in LAST
            else "at most 63 letters, digits, '.', '-' and '_', a letter or digit first",
        )
    return RunFolder((root / name).absolute())


def find_run(text: str, root: Path = DEFAULT_ROOT) -> RunFolder:
    """Return a run by path, by id under `root`, by a unique part of its id, or `last`; a pipeline's step as
    last/sft. Raises RunFolderError."""
    folder = find_any(text, root)
    if isinstance(folder, RunFolder):
        return folder
    names = ", ".join(f"{folder.id}/{each.path.name}" for each in folder.steps)
    raise RunFolderError("is a pipeline, and not a run", where=text, hint=f"its steps: {names}")


def find_any(text: str, root: Path = DEFAULT_ROOT) -> RunFolder | PipelineFolder:
    """Return a run as `find_run` finds it, or a pipeline. Raises RunFolderError."""
    path = folder_of(text)
    for each in (path, path and root / path):
        if each and (there := folder_at(each)):
            return there
    if path and (path / "schedule.json").is_file():
        raise RunFolderError(
            "is a bench, and not a run",
            where=text,
            hint=f"`muster bench --continue {path}`; its runs: `muster ls --runs {path / 'runs'}`",
        )
    folders = list_folders(root)
    if text in LAST and folders:
        return folders[-1]
    head, _, step = text.rpartition("/")
    names = [each.id for each in folders]
    if head in LAST or any(head and head in name for name in names):
        return _step_of(find_any(head, root), step)
    matches = [run for run in folders if text == run.id] or [run for run in folders if text in run.id]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunFolderError(f"fits {len(matches)} runs", where=text, hint=f"such as {matches[-1].id}")
    hint = did_you_mean(text, names) or f"`muster ls` lists those in {root}/"
    raise RunFolderError("no such run", where=text, hint=hint)


def _step_of(folder: JobFolder, name: str) -> RunFolder:
    """Return a step that has begun. Raises RunFolderError."""
    if not isinstance(folder, PipelineFolder):
        raise RunFolderError("is a run, and no pipeline with steps", where=folder.id)
    names = [each.path.name for each in folder.steps]
    if name not in names:
        hint = did_you_mean(name, names) or f"its steps: {', '.join(names)}"
        raise RunFolderError(f"has no step named {name!r}", where=folder.id, hint=hint)
    if not isinstance(step := folder_at(folder.path / name), RunFolder):
        raise RunFolderError(f"step {name} has not begun", where=folder.id)
    return step


def folder_of(text: str) -> Path | None:
    """Return the path in a user's text; None: the text is no path."""
    try:
        path = Path(text).expanduser()
        path.exists()
        return path
    except (OSError, RuntimeError, ValueError):  # longer than a file name can be; ~nobody; a null byte
        return None


def folder_at(path: Path) -> RunFolder | PipelineFolder | None:
    """Return the run or pipeline at a path; None: it is neither."""
    if os.path.isfile(path / PIPELINE):  # noqa: PTH113 - never raises
        return PipelineFolder(path.absolute())
    if any(os.path.isfile(path / name) for name in _MARKS):  # noqa: PTH113
        return RunFolder(path.absolute())
    return None


def list_folders(root: Path = DEFAULT_ROOT) -> list[RunFolder | PipelineFolder]:
    """Return runs and pipelines under `root`, sorted by their (last) start: users may have chosen their
    names."""
    if not root.is_dir():
        return []
    started: dict[Path, int] = {}
    for name in (*_MARKS, PIPELINE):  # the job's own mark is the later one
        for path in root.glob(f"*/{name}"):
            try:
                started[path.parent.absolute()] = path.stat().st_mtime_ns
            except FileNotFoundError:  # deleted just now
                continue
    paths = [path for path, _ in sorted(started.items(), key=lambda item: (item[1], item[0]))]
    return [each for path in paths if (each := folder_at(path))]


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)
