"""What to benchmark: recipes x group sizes x thresholds, one YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from muster.core.errors import UsageError
from muster.core.near import did_you_mean
from muster.core.recipes import find_file, read_yaml
from muster.core.section import PositiveInt, Section
from muster.core.units import parse_bytes, parse_rate
from muster.inputs import entries
from muster.inputs.entries import After, check_names, explain, located, parts_of, with_names

SHIPPED = Path(__file__).resolve().parent.parent / "suites"

# What a job comes to, by the names that thresholds and tables use. Unknown ones are not there, never 0.
Figure = Literal[
    "samples_per_second", "tokens_per_second", "step_seconds", "variation", "mfu", "flops_per_second",
    "memory", "seconds", "setup_seconds", "training_seconds", "loss", "evaluation_loss", "perplexity",
    "exact_match", "execution_match", "skipped_share", "busbw", "latency", "matmul",
]  # fmt: skip
FIGURES: tuple[str, ...] = get_args(Figure)


def _as_number(value: Any) -> Any:
    size = parse_bytes(value) if isinstance(value, str) else None
    return value if size is None else size


Amount = Annotated[float, BeforeValidator(_as_number)]  # 40GB, or a number
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,40}$")]
Sizes = list[PositiveInt | Literal["all"]] | Literal["doubling", "adaptive"]
_ALL: Sizes = ["all"]

# Descriptions of what an entry may say in place of the suite.
GROUPS = (
    "Numbers of hosts per job, such as [1, 2, all]. doubling: 1, 2, 4 and so on up to all hosts. adaptive: "
    "chosen from earlier results to find bad hosts."
)
COVER = "all: every host takes part in a job of every size. first: only the first hosts do."
REPEATS = "How often each job is run."
TIMEOUT = "Seconds after which a job is ended."
WARM_UP = "Run one short job before many start at once, so that caches are filled."

_FIXED = ("repeats", "curve", "cover")  # keys of entries whose groups are given, not chosen from results


class Threshold(Section):
    """What a figure of every job must be at least, or at most."""

    figure: Figure = Field(description="The measured figure that is compared.")
    at_least: Amount | None = Field(
        None, description="The smallest good value: a number, or a size such as 40GB. Give this or at_most."
    )
    at_most: Amount | None = Field(
        None, description="The largest good value: a number, or a size such as 40GB. Give this or at_least."
    )
    per: Literal["job", "host", "slot", "fleet"] = Field(
        "job",
        description="What the figure is divided by first. job: nothing. host, slot: their number. fleet: "
        "what "
        "is normal for the same recipe on as many hosts.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Threshold:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give one of at_least and at_most")
        return self

    @property
    def words(self) -> str:
        """at least 115 samples_per_second per slot"""
        bound = self.at_least if self.at_least is not None else self.at_most
        side = "at least" if self.at_least is not None else "at most"
        per = {"job": "", "host": " per host", "slot": " per slot", "fleet": " of the fleet's"}[self.per]
        return f"{side} {bound:g}{per}"

    def met(self, value: float) -> bool:
        """Return whether a figure, already divided as `per` says, is good enough."""
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)


class Checks(Section):
    """The inspection before the jobs: what `muster check` finds unfit takes no part."""

    profile: str | None = Field(
        None, description="Check profile: a shipped name, or a file. Null: the checks' defaults."
    )
    group: bool = Field(
        False, description="Also start ranks on the fit hosts and measure links and devices together."
    )
    gpus: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None, description="GPUs that each host must have; 0: none. Null: as many as it turns out to have."
    )


class Published(Section):
    """Published figures of an entry's recipe on one kind of device, for comparison with what is measured."""

    source: str = Field(description="Who published it, and where.")
    on: str = Field(description="The device, by words of its name, such as h100 or a100-80gb.")
    samples_per_second: Annotated[dict[PositiveInt, Amount], Field(min_length=1)] = Field(
        description="Samples per second by number of ranks."
    )
    memory: Amount | None = Field(None, description="Peak of a device's memory, such as 40.7GB.")

    def means(self, device: str) -> bool:
        """Return whether a device of this name is of the kind."""
        return all(word in device.lower().replace(" ", "") for word in self.on.lower().split("-"))


class Entry(entries.NamedRecipe):
    """One recipe on groups of hosts. What is None is as the suite says."""

    name: Name = Field(
        "", validate_default=False, description="Name of the entry in results. Default: the recipe's name."
    )
    command: list[str] | None = Field(
        None,
        exclude=True,
        description="In place of `recipe`: a program and its arguments, as `muster run` starts them. "
        "`set: {run: {start: rank}}` says how.",
    )
    after: After = Field(
        default_factory=list,
        description="The entry, or a list of entries, with the same groups, whose jobs on the same hosts "
        "must have ended before. The first one's model is `model.name`, unless `set` says which.",
    )
    groups: Sizes | None = Field(None, description=f"{GROUPS} Null: as the suite says.")
    cover: Literal["all", "first"] | None = Field(None, description=f"{COVER} Null: as the suite says.")
    repeats: PositiveInt | None = Field(None, description=f"{REPEATS} Null: as the suite says.")
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description=f"{TIMEOUT} Null: as the suite says."
    )
    warm_up: bool | None = Field(None, description=f"{WARM_UP} Null: as the suite says.")
    curve: Literal["weak", "strong"] | None = Field(
        None,
        description="Report the efficiency by number of hosts. weak: the work grows with the hosts. strong: "
        "the same work on all sizes. Null: no curve.",
    )
    thresholds: list[Threshold] = Field(
        default_factory=list, description="What this entry's jobs must reach, besides the suite's thresholds."
    )
    published: list[Published] = Field(
        default_factory=list,
        description="Published figures of this recipe, shown next to what is measured.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_command(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("command") is None:
            return data
        if data.get("recipe"):
            raise ValueError("give one of recipe and command")
        return {**data, "recipe": {"workload": "command", "command": data["command"]}}

    @property
    def foreign(self) -> bool:
        """Whether its job is a command of the user's."""
        return isinstance(self.recipe, dict) and self.recipe.get("workload") == "command"

    @property
    def called(self) -> str:
        """Its recipe, for people."""
        return self.recipe if isinstance(self.recipe, str) else str(self.recipe.get("workload", "a recipe"))


class Suite(Section):
    """What to benchmark."""

    about: str = Field("", description="One line that describes the suite.")
    check: Checks | None = Field(
        None, description="Check the hosts first and leave out unfit ones. Null: all hosts take part."
    )
    jobs: Annotated[list[Entry], Field(min_length=1)] = Field(
        description="The entries: each runs one recipe on groups of hosts."
    )
    groups: Sizes = Field(default_factory=lambda: _ALL, description=f"{GROUPS} Default: [all].")
    cover: Literal["all", "first"] = Field("all", description=COVER)
    repeats: PositiveInt = Field(1, description=REPEATS)
    timeout: Annotated[float, Field(gt=0)] = Field(3600.0, description=TIMEOUT)
    warm_up: bool = Field(True, description=WARM_UP)
    at_once: PositiveInt | None = Field(
        None,
        description="Largest number of jobs at the same time. Null: as many as there are free hosts for.",
    )
    thresholds: list[Threshold] = Field(
        default_factory=list, description="What the jobs of every entry must reach."
    )
    slow: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.01,
        description="The smallest slowdown that makes a host slow, as a share of the fleet's step time "
        "(0.01 is 1 %).",
    )
    waves: PositiveInt = Field(
        6, description="Largest number of rounds of jobs that an adaptive entry may ask for."
    )
    switches: dict[str, str] = Field(
        default_factory=dict, description="Name of each network switch and its hosts, such as node[01-08]."
    )
    compare: list[str] | None = Field(
        None,
        description="Compare the entries with each other: the recipe keys in which they may differ. Null: no "
        "comparison.",
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return with_names(data, "jobs")

    @model_validator(mode="after")
    def _sensible(self) -> Suite:
        self.check_jobs()
        return self

    def check_jobs(self) -> None:
        """Raise ValueError where entries, groups and what follows what contradict each other."""
        check_names(self.jobs, "entry", "entries")
        if any(groups == [] for groups in (self.groups, *(each.groups for each in self.jobs))):
            raise ValueError("groups must name at least one size")
        for each in self.jobs:
            useless = [key for key in _FIXED if getattr(each, key) not in (None, 1)]
            if useless and self.of(each).groups == "adaptive":
                raise ValueError(f"{each.name}: {useless[0]} and adaptive groups do not go together")
            held = {
                other.name: self.of(other) for other in self.jobs if other.name in (each.name, *each.after)
            }
            alike = {(str(of.groups), of.cover, of.repeats) for of in held.values()}
            if each.after and (len(alike) > 1 or held[each.name].groups == "adaptive"):
                what = "must have the same groups (none of them adaptive), cover and repeats"
                raise ValueError(f"{' and '.join(held)} {what}, since one follows the other")

    def of(self, entry: Entry) -> Suite:
        """Return the suite as it holds for an entry, which may say otherwise."""
        settings: dict[str, Any] = {}
        for name in ("groups", "cover", "repeats", "timeout", "warm_up"):
            own = getattr(entry, name)
            settings[name] = getattr(self, name) if own is None else own
        if entry.foreign and entry.warm_up is None:  # it has no short form: it would be run a time more
            settings["warm_up"] = False
        return self.model_copy(update={**settings, "thresholds": [*self.thresholds, *entry.thresholds]})


@dataclass(frozen=True)
class Narrowing:
    """A part of a suite, from the command line. Empty: as the suite says.

    `only`: names of entries, whose predecessors stay as well; `groups`: such as 1,2,all; `timeout`: seconds
    of a job; `at_least`: a speed that every job must reach, such as 600samples/s.
    """

    only: tuple[str, ...] = ()
    groups: str = ""
    timeout: float | None = None
    at_least: str = ""

    def of(self, suite: Suite) -> Suite:
        """Return the suite, narrowed. Raises UsageError."""
        jobs = _with_predecessors(suite, self.only) if self.only else suite.jobs
        changes: dict[str, Any] = {}
        if self.groups:
            changes["groups"] = _sizes_of(self.groups)
        if self.timeout is not None:
            changes["timeout"] = self.timeout
        jobs = [entry.model_copy(update=dict.fromkeys(changes)) for entry in jobs]  # null: as the suite
        if self.at_least:
            value, figure, per = parse_rate(self.at_least, "--at-least")
            bound = {"figure": figure, "at_least": value, "per": per}
            changes["thresholds"] = [*suite.thresholds, Threshold.model_validate(bound)]
        made = suite.model_copy(update={**changes, "jobs": jobs})
        try:
            made.check_jobs()
        except ValueError as error:
            raise UsageError(str(error), where="--groups") from None
        return made


def _with_predecessors(suite: Suite, only: Sequence[str]) -> list[Entry]:
    entries = {entry.name: entry for entry in suite.jobs}
    for name in only:
        if name not in entries:
            hint = did_you_mean(name, entries) or f"entries: {', '.join(entries)}"
            raise UsageError(f"the suite has no entry {name!r}", where="--only", hint=hint)
    kept = list(only)
    for name in kept:  # which grows
        kept += [before for before in entries[name].after if before not in kept]
    return [entry for entry in suite.jobs if entry.name in kept]


def _sizes_of(text: str) -> Sizes:
    """Parse 1,2,all, or a word. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words in (["doubling"], ["adaptive"]):
        return "doubling" if words == ["doubling"] else "adaptive"
    sizes: list[int | Literal["all"]] = []
    for word in words:
        if word != "all" and not (word.isdecimal() and int(word)):
            raise UsageError(
                f"is no number of hosts: {word!r}", where="--groups", hint="2, or 1,2,all, doubling, adaptive"
            )
        sizes.append("all" if word == "all" else int(word))
    return sizes


def shipped_suites() -> dict[str, Path]:
    """Return the suites that come with Muster, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_suite(source: str) -> Path:
    """Return a file, or a shipped suite's. Raises UsageError."""
    return find_file(source, "suite", shipped_suites(), UsageError)


def load_suite(source: str) -> Suite:
    """Read and check a suite; recipes next to it become absolute paths.

    Raises UsageError naming the file and the field, RecipeError for a recipe that does not exist.
    """
    path = find_suite(source)
    suite = suite_from(read_yaml(path), where=str(path))
    jobs = [located(each, path, f"jobs.{number}", SHIPPED) for number, each in enumerate(suite.jobs)]
    return suite.model_copy(update={"jobs": jobs})


def suite_from(data: dict[str, Any], *, where: str) -> Suite:
    """Return the suite of plain data. Raises UsageError about the first thing that is wrong."""
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        raise _explain(error, where) from None


def _explain(error: ValidationError, where: str) -> UsageError:
    """Return pydantic's first error as one line with the field's path."""
    parts = parts_of(error)
    model: type[Section] = Checks if parts[:1] == ["check"] else Suite
    if parts[:1] in (["jobs"], ["thresholds"]) and len(parts) > 1:
        model = Threshold if "thresholds" in parts else Entry
    complaint = explain(error, where, model.model_fields, "docs/bench.md", "'.', '-' and '_'")
    given = error.errors(include_url=False)[0].get("input")
    if complaint.hint is None and parts[-1:] == ["figure"] and isinstance(given, str):
        complaint.hint = did_you_mean(given, FIGURES) or f"figures: {', '.join(FIGURES)}"
    elif complaint.hint is None and "groups" in parts:
        complaint.hint = "such as [1, 2, all], doubling, or adaptive"
    return complaint
