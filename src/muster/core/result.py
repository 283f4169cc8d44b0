"""The result of a run. An unknown figure is None, never 0 and never -1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, computed_field, dataclasses

from muster.core.fabric import FabricRun
from muster.core.profile import StepProfile
from muster.core.section import Part
from muster.core.state import LogEnd, RunEnd, State

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA_VERSION = 1
NAMED = 5  # questions that a note names one by one


class Seconds(Part):
    """Where the time went. Evaluation and saving are not part of training."""

    total: float = Field(description="all attempts, without the time between them")
    setup: float | None = Field(
        None,
        description="start order to the slowest rank's first optimizer step, by the controller's clock; "
        "of the last attempt",
    )
    training: float | None = Field(
        None,
        description="optimizer steps, without evaluation and saving; all attempts, without steps done again",
    )
    evaluation: float | None = Field(None, description="of the same steps as training")
    saving: float | None = Field(None, description="of the same steps as training: checkpoints and the model")


class Throughput(Part):
    """Over the measured windows: after warm-up, without skipped steps, without evaluation and saving."""

    samples_per_second: float
    tokens_per_second: float = Field(description="real tokens, without padding")
    padded_tokens_per_second: float
    step_seconds_median: float
    step_seconds_p95: float
    variation: float | None = Field(description="coefficient of variation of samples/s over the windows")
    data_share: float | None = Field(
        None,
        description="of the time, spent getting batches by the rank that spends most: reading, collating or "
        "waiting for loader workers; a GPU may compute meanwhile. None: not measured",
    )
    windows: int
    measured_steps: int
    halves: tuple[float, float] | None = Field(
        None, description="median seconds of a step before and after the middle of the measured ones"
    )


class Code(Part):
    """A folder of code as it was sent to the hosts."""

    folder: str
    digest: str = Field(description="SHA-256 of all files' paths, modes and contents")
    files: int
    bytes: int
    sent: int = Field(0, description="bytes that went over connections: hosts had the rest")


class CommandRun(Part):
    """A user's command: what was started, and the progress that it printed."""

    command: list[str] = Field(description="without values that may be secrets")
    start: str = Field(description="torchrun, rank or host")
    told_by: str | None = Field(
        None, description="muster.step, or the format of its output; None: it told no steps that can be read"
    )
    rate: float | None = Field(None, description="per second, after the warm-up")
    unit: Literal["samples", "steps", "tokens"] = "samples"
    step_seconds: float | None = None
    variation: float | None = Field(None, description="coefficient of variation of the rate")
    rests_on: int = Field(0, description="steps")
    last_step: int | None = Field(None, description="its number, where numbers began anew before the end")
    not_finite: str | None = Field(None, description="since when its last losses are not finite, in words")
    seconds: float | None = Field(None, description="from its start on the hosts to its end on all of them")
    code: Code | None = None


class LearnedFigure(Part):
    """A further figure of the workload's training: pair_accuracy, margin, reward, kl."""

    name: str
    first: float | None = Field(None, description="in the first window of the training")
    final: float | None = Field(None, description="in the last one")
    held_out: float | None = Field(None, description="at the last evaluation; None: not measured there")

    @property
    def called(self) -> str:
        """Its name for people."""
        return self.name.replace("_", " ")

    @property
    def course(self) -> str:
        """Its values over the training; empty where it was not measured there."""
        if self.first is None or self.final is None:
            return ""
        return f"{self.final:.4g}" if self.first == self.final else f"{self.first:.4g} -> {self.final:.4g}"


class PhaseTime(Part):
    """A part of every optimizer step, over the measured windows: generating, scoring, training."""

    name: str
    share: float = Field(description="of the steps' time, on the rank that spends most on it")
    samples_per_second: float | None = Field(description="of all ranks, if there were this phase alone")


class Flops(Part):
    """Floating-point operations of the model, over the windows of the throughput; per device, their mean.

    Matrix products alone, forward and backward, by shapes with padding; attention in full.
    """

    model_per_second: float = Field(description="per device: what the gradient needs")
    hardware_per_second: float = Field(description="per device: with what gradient checkpointing repeats")
    peak: float | None = Field(None, description="mean of the devices; None: not known (CPUs)")
    peak_source: str | None = None
    arithmetic: str | None = Field(
        None, description="that the peak is of: fp32, tf32, bf16 (of fp8 as well), fp16"
    )
    mfu: float | None = Field(None, description="model FLOPs utilization: model_per_second / peak")
    hfu: float | None = Field(None, description="hardware FLOPs utilization: hardware_per_second / peak")
    counting_seconds: float | None = Field(None, description="what counting cost a rank, besides training")


class Memory(Part):
    """Peaks in bytes, the highest of all ranks."""

    allocator_peak: int | None = Field(None, description="the framework's allocator (CUDA)")
    device_peak: int | None = Field(None, description="in use on the device, by everything")
    resident_peak: int | None = Field(None, description="a rank's resident host memory")


class WrittenFile(Part):
    """A file or folder that the engine wrote by itself, as its configuration asks."""

    what: str = Field(description="the section that asks for it: flops_profiler, tensorboard")
    host: str
    path: str = Field(description="on that host")
    head: list[str] = Field(default_factory=list, description="first lines of a file of text")


class Unscored(Part):
    """A held-out question whose expected query cannot be run, so that its rows cannot be compared."""

    index: int = Field(description="of the question in the held-out set, from 0")
    why: str


class Quality(Part):
    """How the trained model answered held-out questions."""

    questions: int
    exact_match: float = Field(description="share of right answers: see metric")
    metric: str = Field("exact match", description="what that is called: exact match, top-1 accuracy")
    execution_match: float | None = Field(
        None, description="share of `scored` with the same rows from the database; None: nothing was scored"
    )
    scored: int | None = Field(
        None, description="questions whose expected query could be run; None: all, or there is no database"
    )
    unscored: list[Unscored] = Field(
        default_factory=list, description="questions whose expected query cannot be run"
    )
    seconds: float | None = None


def unscored_words(questions: int, scored: int | None, failed: Sequence[Unscored]) -> str | None:
    """Return how many questions do not count in the execution match, and which; None: all of them count.
    `failed`: those whose expected query cannot be run."""
    if scored is None or scored == questions:
        return None
    left, whys = questions - scored, []
    if failed:
        named = "; ".join(f"question {each.index + 1}: {each.why}" for each in failed[:NAMED])
        more = f"; {len(failed) - NAMED:,} more" if len(failed) > NAMED else ""
        whys.append(f"the expected query of {len(failed):,} cannot be run ({named}{more})")
    if left > len(failed):
        whys.append(f"{left - len(failed):,} have no database")
    verb = "question does" if left == 1 else "questions do"
    return f"{left:,} held-out {verb} not count in same rows: {', and '.join(whys)}"


class Extreme(Part):
    """An attention logit, and where it was."""

    logit: float
    layer: str
    step: int


class AttentionExtremes(Part):
    """The attention logits of the whole run, as far as `measure.attention` sampled them, and the cost of
    sampling."""

    largest: Extreme | None = Field(description="None: no finite one")
    smallest: Extreme | None
    windows: int
    seconds: float = Field(description="spent measuring, all windows, on the slowest ranks")
    share: float | None = Field(description="of the training seconds")


class Planned(Part):
    """The plan's predictions, for comparison with the measurements."""

    memory: int | None = Field(None, description="bytes of a rank's device; on CPUs of the process")
    traced: bool = Field(False, description="the memory's activations are of a trace of the model")
    on_device: bool = Field(True, description="the memory is a GPU's; else a process's")
    step_seconds: float | None = Field(None, description="None: the devices' speed was not known")
    samples_per_second: float | None = None


class Hung(Part):
    """A job that made no progress: which rank the others waited for."""

    what: str
    seconds: float = Field(description="without progress, when it was looked at")
    step: int | None = Field(None, description="the last one that a rank did; None: no steps are known")
    ranks: list[int] = Field(description="that keep the others; empty: it is not known which")
    hosts: list[str] = Field(
        default_factory=list,
        description="that say nothing any more, or that nothing arrives at: one, or both ends of a link",
    )
    certain: bool = Field(description="whether all that was heard agrees on these ranks, or on this one host")
    waiting: list[int] = Field(default_factory=list, description="ranks that waited for others")
    witnesses: list[str] = Field(default_factory=list, description="what speaks for it")


LEAST = 0.05  # of a step: of two or three hosts none is named for less


class Straggler(Part):
    """A host that the others wait for in every step."""

    host: str
    kind: Literal["computation", "link"]
    cost: float = Field(description="by so much each step takes longer because of it; of a link: at most")
    slower: float = Field(
        description="its own time in a step over that of the other hosts, less one; of a link: seconds a byte"
    )
    within: float = Field(description="standard error of `cost`")
    part: str | None = Field(
        None, description="of the step, that makes most of it: data, forward, backward, optimizer"
    )
    to: str | None = Field(None, description="the link's other end; None: all links of the host")
    first_step: int | None = Field(None, description="when it was named; None: no steps are known")
    last_step: int | None = Field(None, description="when it was slow no more; None: to the end")

    @property
    def words(self) -> str:
        """A sentence for people."""
        when = f", from step {self.first_step} to {self.last_step}" if self.last_step else ""
        if self.kind == "link":
            which = f"the link of {self.host} to {self.to}" if self.to else f"every link of {self.host}"
            slower = _longer(self.slower, "other links")
            return f"{which} takes {slower} for a byte: steps may be {_longer(self.cost)} because of it{when}"
        what = "getting its batches" if self.part == "data" else "its own computation"
        part = f", mostly {self.part}" if self.part not in (None, "data") else ""
        slower = _longer(self.slower, "the others'")
        why = f"{what} takes {slower}{part}"
        return f"{self.host} makes every step {_longer(self.cost)}: {why}{when}"


def _longer(more: float, others: str = "") -> str:
    """Return 0.2 as "20 % longer (than others)"; from three times on: "5 times as long (as others)"."""
    words, than = (
        (f"{100 * more:.0f} % longer", "than") if more < 2 else (f"{1 + more:.0f} times as long", "as")
    )
    return f"{words} {than} {others}" if others else words


KERNEL = "the processes' own time"  # a source of Pace


class Pace(Part):
    """Whether one host holds the others up."""

    hosts: int = Field(description="that are compared")
    within: float | None = Field(
        description="of a step's time, that the hosts' own time differs by; None: not enough is known"
    )
    moments: int = Field(description="in which they were compared")
    source: str = Field(description="of what: the steps' windows, or the processes' own time")
    stragglers: list[Straggler] = Field(default_factory=list, description="the worst first")

    @property
    def words(self) -> str:
        """A sentence for people; empty where too little is known."""
        if self.stragglers:
            return "; ".join(each.words for each in self.stragglers[:NAMED])
        if self.within is None:
            return ""
        differs = f"differs by {100 * self.within:.1f} % of a step"
        if self.source == KERNEL:  # which sees who computes, and neither who sleeps nor what is slow in all
            sure = "longer" if self.within < LEAST else "surely longer"
            return (
                f"none of {self.hosts} hosts computes {sure}: the time of its processes {differs}; "
                "a rank that sleeps or waits is not seen so"
            )
        sure = "slow" if self.within < LEAST else "surely slow"
        return f"none of {self.hosts} hosts is {sure}: what each does itself {differs}"


class DecisiveLine(Part):
    """The line of a log that shows the failure."""

    file: str | None = Field(description="of a run: below its folder; None: read from a pipe")
    line: int | None = Field(None, description="its number, from 1; None: not known")
    text: str
    host: str | None = None
    rank: int | None = None
    time: float | None = Field(None, description="Unix time, by the clock of who wrote it")
    code: str | None = Field(None, description="an exception's: FILE:LINE where it was raised")

    @property
    def place(self) -> str:
        """The file and the line number, for people."""
        words = [self.file or "standard input", *([str(self.line)] if self.line else [])]
        return ":".join(words) + (f" (raised at {self.code})" if self.code else "")


class Failure(Part):
    """Why a run did not succeed."""

    what: str
    where: str | None = None
    host: str | None = None
    hint: str | None = None
    usage: bool = Field(False, description="bad input rather than a breakdown")
    id: str | None = Field(None, description="in the table of failures; None: not one of them, or not known")
    evidence: DecisiveLine | None = None


class HostReport(Part):
    """A host of the run: its hardware and its work."""

    host: str
    ranks: list[int]
    facts: dict[str, Any] = Field(default_factory=dict)
    cpu_percent_mean: float | None = None
    memory_used_peak: int | None = None
    gpu_percent_mean: float | None = None
    cpu_use: list[tuple[float, float, float]] = Field(
        default_factory=list,
        description="Unix times, a few of them, with the core-seconds until then of all processes of the "
        "host, and of the run's own",
    )
    stolen: float | None = Field(
        None, description="share of the cores' time that the machine's own host gave to others"
    )
    slowed: float | None = Field(None, description="share of samples in which a GPU was slowed down")
    strangers: int | None = Field(None, description="most other processes at a time on a GPU of the run")
    share: int | None = Field(
        None, description="samples of every micro-step that its ranks took; None: as many as all others"
    )
    speed: float | None = Field(
        None, description="samples/s of its ranks as measured before the training, without the others"
    )
    forward_seconds: float | None = Field(
        None,
        description="of a micro-step's forward pass on its slowest rank, without waiting for others: median "
        "of the measured windows",
    )
    parts: dict[str, float] = Field(
        default_factory=dict,
        description="of the steps' time, what the rank that waits least spent on data, forward, backward, "
        "optimizer, waiting for others, and the rest",
    )


class Result(Part):
    """result.json: written last, atomically. No result.json: not finished."""

    schema_version: int = SCHEMA_VERSION
    id: str
    status: RunEnd
    failure: Failure | None = None
    attempt: int
    workload: str
    model: str | None = Field(description="None: nothing is trained")
    parameters: int | None = None
    engine: str | None
    precision: str | None
    world_size: int
    global_batch: int | None
    started: float = Field(description="Unix time")
    ended: float
    seconds: Seconds
    steps: int = Field(description="optimizer steps done, all attempts")
    skipped_steps: int = 0
    samples: int = Field(description="samples that an optimizer step used")
    epochs: float | None = None
    loss_first: float | None = Field(None, description="mean over the steps of the first window")
    loss_final: float | None = Field(None, description="mean over the steps of the last window")
    evaluation_loss: float | None = None
    perplexity: float | None = Field(None, description="language models: exp of the held-out loss per token")
    figures: list[LearnedFigure] = Field(default_factory=list, description="further ones, of the workload")
    throughput: Throughput | None = None
    phases: list[PhaseTime] = Field(default_factory=list, description="of a step that has such")
    flops: Flops | None = Field(None, description="None: not counted")
    memory: Memory
    profiles: list[StepProfile] = Field(
        default_factory=list, description="where a step's time goes, of each rank with measure.profile=trace"
    )
    files: list[WrittenFile] = Field(
        default_factory=list, description="what the engine wrote by itself, as its configuration asks"
    )
    planned: Planned | None = Field(None, description="None: the model was not known before the run")
    quality: Quality | None = None
    attention: AttentionExtremes | None = None
    fabric: FabricRun | None = Field(None, description="of the fabric workload, which trains nothing")
    hang: Hung | None = Field(None, description="None: the job was not found to hang")
    pace: Pace | None = Field(None, description="None: one host, or nothing could be compared")
    command: CommandRun | None = Field(None, description="of `muster run`, whose command is the user's own")
    hosts: list[HostReport]
    versions: dict[str, str] = Field(default_factory=dict)
    model_path: str | None = None
    notes: list[str] = Field(default_factory=list, description="what a reader must know to trust the figures")
    caveats: list[str] = Field(
        default_factory=list,
        description="those of the notes that say what a success lacks: steps, a change of the weights",
    )

    @property
    def outcome(self) -> str:
        """The status with its caveats, for people."""
        return f"{self.status}, but {'; '.join(self.caveats)}" if self.caveats else self.status

    @property
    def memory_beside_plan(self) -> float | None:
        """Measured over planned bytes of a rank, less one; None where either is not known."""
        plan, memory = self.planned, self.memory
        measured = memory.device_peak if plan and plan.on_device else memory.resident_peak
        return measured / plan.memory - 1 if plan and plan.memory and measured else None

    @property
    def speed_beside_plan(self) -> float | None:
        """Measured over planned samples/s, less one; None where either is not known."""
        plan, speed = self.planned, self.throughput
        if plan is None or not plan.samples_per_second or speed is None:
            return None
        return speed.samples_per_second / plan.samples_per_second - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobEntry:
    """A job, as its log or its run folder describes it."""

    job: str = Field(
        description="the log's path in the folder, with #HOST for a table's column of hosts; or its id"
    )
    outcome: LogEnd
    reason: str | None = Field(default=None, description="why it did not succeed: the decisive line")
    hint: str | None = None
    failure: str | None = Field(default=None, description="id in the table of failures")
    failed_host: str | None = Field(
        default=None,
        description="that wrote the decisive line, or is to blame as far as the job knows",
    )
    failed_hosts: tuple[str, ...] = Field(
        default=(), description="all that failed by themselves, that one first"
    )
    format: str | None = None
    hosts: tuple[str, ...] = ()
    hosts_from: str = Field(
        default="", description="log; pattern (--host-pattern); guess: file name, or guess: folder name"
    )
    world_size: int | None = None
    workload: str = Field(default="", description="what was trained, as far as the log states it")
    work: str = Field(default="", description="jobs of the same work on as many hosts are compared")
    started: float | None = Field(
        default=None, description="Unix time, as `ended`; of a log, by the clock of who wrote it"
    )
    ended: float | None = None
    steps: int | None = Field(default=None, description="attempted")
    skipped_steps: int | None = Field(default=None, description="that a loss scaler threw away")
    samples_per_second: float | None = Field(
        default=None,
        description="samples over seconds of the measured windows; of jobs without any, the tool's own; null "
        "where the log does not tell how many samples a step has",
    )
    reported: float | None = Field(default=None, description="samples/s that the tool printed")
    step_seconds: float | None = Field(default=None, description="null: nothing timed, or only per sample")
    measured_samples: float | None = None
    measured_seconds: float | None = None
    windows: int | None = None
    variation: float | None = Field(
        default=None, description="coefficient of variation of samples/s over windows"
    )
    tokens_per_second: float | None = None
    memory: int | None = Field(default=None, description="peak of the allocator in bytes")
    loss: float | None = Field(default=None, description="the last one in the log")
    slower: float | None = Field(default=None, description="than its peers: share of a healthy step's time")
    judged: bool = Field(default=False, description="it counts as evidence")
    misses: tuple[str, ...] = Field(default=(), description="thresholds that it does not meet")
    notes: tuple[str, ...] = ()
    # Of a bench's job alone.
    entry: str = Field(default="", description="of the suite; this and what follows: of a bench's job alone")
    recipe: str = ""
    repeat: int = 1
    warm_up: bool = Field(default=False, description="not measured, not judged")
    leftover: tuple[str, ...] = Field(default=(), description="hosts for whose sake the group is there")
    wave: int | None = Field(default=None, description="of an adaptive entry")
    run: str = Field(default="", description="run folder, relative to the bench's; its last attempt")
    figures: dict[str, float] = Field(default_factory=dict, description="by the names of thresholds")
    measure: str | None = Field(default=None, description="of a command: by what it is compared with others")
    not_measured: tuple[str, ...] = Field(
        default=(), description="why its figures are no measurement; they have no verdict then"
    )

    @computed_field(description="hosts")  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        """How many hosts it had."""
        return len(self.hosts)

    @property
    def took(self) -> float | None:
        """Seconds from its start to its end, where both are known."""
        return None if self.started is None or self.ended is None else self.ended - self.started

    def divisor(self, per: str) -> int | None:
        """Return what a figure is divided by to be one of a host or a slot (a rank); None: not known."""
        return {"job": 1, "host": self.size or None, "slot": self.world_size}[per]

    @classmethod
    def of(cls, other: JobEntry, /, **values: Any) -> Self:
        """Make a row of this class of another's, with other `values`."""
        return cls(**{each.name: getattr(other, each.name) for each in fields(JobEntry)} | values)


class StepResult(Part):
    """A step of a pipeline."""

    name: str
    after: list[str] = Field(default_factory=list)
    run: str = Field(description="its run's folder")
    status: State = Field(description="of its result; or interrupted; or not begun")
    result: Result | None = Field(None, description="None: it has none")


class PipelineResult(Part):
    """result.json of a pipeline: written last, atomically. No result.json: not finished."""

    schema_version: int = SCHEMA_VERSION
    id: str
    workload: Literal["pipeline"] = "pipeline"
    status: RunEnd
    failure: Failure | None = Field(None, description="of the step that ended it")
    attempt: int
    started: float = Field(description="Unix time")
    ended: float
    seconds: Seconds
    pipeline: list[StepResult] = Field(description="in the order in which they run")
    notes: list[str] = Field(default_factory=list, description="what a reader must know of the steps")
