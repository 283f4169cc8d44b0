"""What rooms that compute make of input: what is read in a log, judged of hosts' answers, decided for hosts,
taken from a user's DeepSpeed file, recipe or data.

Input lies in rooms/, a case a line (that of logs is packed), and what comes of it in documents/. A case is
one line more; python -m tests.golden.test_rooms ROOM [CASE] prints them.
"""

from __future__ import annotations

import base64
import json
import lzma
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter

from muster.benches.document import JobRecord
from muster.benches.fold import fold_bench
from muster.benches.inputs import BenchInputs
from muster.benches.schedule import Task
from muster.benches.suite import Suite
from muster.checks.base import Finding, Level, Transport
from muster.checks.families.fabric import judge_group
from muster.checks.registry import family_of
from muster.core.batch import Batch
from muster.core.errors import DataError, MusterError
from muster.core.inventory import parse_hostfile, parse_hosts, read_inventory
from muster.core.job import Placement, read_job
from muster.core.recipe import Recipe, recipe_from
from muster.core.recipes import load_recipe
from muster.core.state import State
from muster.core.trace import Parameter
from muster.core.workload import Drawing, Lengths
from muster.dialogues.rows import Wanted, dialogue_of
from muster.dialogues.spec import load_samples
from muster.engines.base import merged, spec_of
from muster.engines.deepspeed import config as deepspeed
from muster.engines.spread import ModelSpread
from muster.fleet.cause import judge_outcome
from muster.fleet.messages import ProbeAnswer, RankProbe
from muster.fleet.standing import RankState
from muster.fleet.standing import judge as judge_hang
from muster.fleet.supervisor import Outcome
from muster.inputs.read import read_inputs
from muster.judging import Baseline, JobClass, Settings
from muster.judging.document import Judged
from muster.judging.joblogs import judged as judge_jobs
from muster.judging.logs import judge as judge_folder
from muster.planner.decide import Decided
from muster.planner.memory.activations import (
    KeptValues,
    activation_bytes,
    drawing_bytes,
    fused_bytes,
    logit_bytes,
    tile_bytes,
)
from muster.planner.memory.states import states
from muster.planner.time.steptime import traffic_of
from muster.readers._user import PLACES, Expression, UserFormat
from muster.readers.base import JobLog
from muster.results.fold import fold, make_result
from muster.results.stragglers import Stragglers
from muster.runs.dry_run import dry_run
from muster.store.events import Done, parse_event
from muster.store.records import Splits, find_data, parts_of
from muster.store.runfolder import RunFolder
from muster.worker.instruments.kineto import read as read_trace
from muster.worker.instruments.kineto import summarize
from muster.workloads.causal_lm.texts import find_texts
from muster.workloads.image_classification.files import find_images
from muster.workloads.text2sql.spec import TextToSqlData
from tests.golden import gpus as nvidia_smi
from tests.golden.accused import accused
from tests.golden.documents import DIGITS, Documents, anywhere, lines, rounded, workplace
from tests.golden.explanations import explains
from tests.golden.memories import needed
from tests.golden.test_judged import reduced
from tests.golden.watches import watched
from tests.support import on_hosts
from tests.unit.judging import context
from tests.unit.logs import read_log

FOLDER = Path(__file__).parent / "rooms"
TIMES = ("started", "ended", "run")  # of a bench's job
LONGEST = 2000  # of an input and of what is made of it
# Of a job: for this process, or said apart.
LEFT_OUT = {"digest", "content", "shapes", "why", "started", "ended"}
RECIPE = {
    "workload", "precision", "engine", "model", "train", "batch", "data", "env", "launch", "lora",
    "loss_scale", "generation", "reward", "ppo", "grpo", "dpo", "rloo", "checkpoint", "evaluate",
}  # fmt: skip
TRAINED = (
    "max_steps", "learning_rate", "schedule", "warmup", "beta1", "beta2", "epsilon", "clip", "optimizer",
)  # fmt: skip


@lru_cache
def inputs(room: str) -> dict[str, Any]:
    """The input of each case of a room."""
    plain = FOLDER / f"{room}.json"
    if plain.exists():
        found: dict[str, Any] = json.loads(plain.read_text(encoding="utf-8"))
    else:
        found = json.loads(lzma.decompress(plain.with_suffix(".json.xz").read_bytes()))
    return found


def written(value: Any) -> Any:
    """The input with its files written: their paths."""
    if isinstance(value, Mapping) and "@folder" in value:
        folder = workplace() / "room" / value["@folder"]
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in value["files"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(
                file["text"].encode() if "text" in file else base64.b64decode(file["bytes"])
            )
        return value.get("before", "") + str(folder / value.get("file", ""))
    if isinstance(value, Mapping):
        return {key: written(each) for key, each in value.items()}
    return [written(each) for each in value] if isinstance(value, list) else value


def unlike_defaults(value: Any) -> Any:
    """The fields of a dataclass that differ from their defaults, and so for those in it."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    pairs = [  # a default of pydantic's stands in its Field
        (each.name, getattr(value, each.name), getattr(each.default, "default", each.default))
        for each in fields(value)
    ]
    return {name: unlike_defaults(own) for name, own, default in pairs if own != default}


def readings(path: str, text: list[str], user: Any = None, named: str | None = None) -> Iterator[str]:
    """Every job that is read in a log."""
    form = UserFormat.of(*user[0], **user[1]) if user else None
    pattern = Expression.of(named, PLACES, "--host-pattern") if named else None
    for job in read_log(path, text, form, pattern):
        own = {name: value for name, value in unlike_defaults(job).items() if name not in LEFT_OUT}
        derived = {"pace": job.pace, "step_seconds": job.step_seconds, "rate": job.rate}
        yield from sorted(lines(rounded(json.loads(json.dumps(own | derived)), DIGITS)))
        yield f"from {job.started} to {job.ended}"


def judgements(
    logs: list[Any], settings: Any = None, stored: Any = (), switches: Any = None
) -> Iterator[str]:
    """What is judged of jobs. `logs`: the path and the lines of each, or the fields of what was read."""
    adapter, read = TypeAdapter(JobLog), []
    for each in logs:
        read += read_log(*each) if isinstance(each, list) else [adapter.validate_python(each)]
    yield from told(judge_jobs("x", read, Settings(**(settings or {})), baselines(stored), switches))


def folders(folder: str, baseline: str | None = None, **how: Any) -> Iterator[str]:
    """What is judged of a folder of logs."""
    yield from told(judge_folder(Path(folder), baseline=Path(baseline) if baseline else None, **how))


def told(found: Judged) -> Iterator[str]:
    """A judgement with its reasons and notes."""
    yield from reduced(found.model_dump_json(exclude_defaults=True)).splitlines()
    yield from (f"{each.hosts}: {each.reason}" for each in found.hosts)
    yield from (f"{each.job} on {each.hosts}: {each.notes}" for each in found.jobs)
    yield f"gate {found.gate}, one of {found.one_of}"


def baselines(stored: Any) -> dict[JobClass, Baseline]:
    """What was normal before, of each work on so many hosts."""
    return {JobClass(work, size): Baseline(**baseline) for work, size, baseline in stored}


def judged(findings: list[Finding]) -> Iterator[str]:
    """A line for each finding that is trouble; of the others, which hosts have which."""
    quiet: dict[str, list[str]] = {}
    for each in findings:
        name = f"{each.check} {each.host}"
        if each.level in (Level.PASS, Level.NOT_APPLICABLE, Level.UNKNOWN):
            quiet.setdefault(each.level.value, []).append(name)
        else:
            yield f"{name} {each.level.value}: {each.problem}; {each.evidence}; {each.remedy}"
    yield from (f"{level}: {', '.join(names)}" for level, names in sorted(quiet.items()))


def findings(
    family: str, answers: Any, peers: Any = None, transport: Any = None, **changes: Any
) -> Iterator[str]:
    """What a family of checks says of hosts by their answers."""
    module = import_module(f"muster.checks.families.{family}")
    reached = {host: Transport(**about) for host, about in (transport or {}).items()}
    asked = context(**{"slots": dict.fromkeys(answers), "transport": reached, **changes})
    yield from judged(family_of(family, module).judge(answers, peers or {}, asked))


def groups(check: str, fabric: Any, **expects: Any) -> Iterator[str]:
    """What a group check says of hosts by what their ranks measured."""
    asked = context(expects={check: expects})
    yield from judged([each for each in judge_group(fabric, asked) if each.check == check])


def gpus(
    hosts: Any, answers: Any = None, told: bool = False, only: str | None = None, **asked: Any
) -> Iterator[str]:
    """What is said of hosts by what their nvidia-smi prints: checks of which the same is said together, what
    passes last. `answers`: of hosts without one; `told`: with all that was read of each kind of GPU; `only`:
    the one check that is looked at."""
    given = {host: nvidia_smi.answer(**about) for host, about in hosts.items()} | (answers or {})
    shown: list[Any] = []
    for host, answer in given.items() if told else ():
        yield f"{host}: driver {answer['driver']}"
        for gpu in answer["gpus"]:
            if (fields := {**gpu, "bus": None}) not in shown:
                shown.append(fields)
                yield from (f"{gpu['bus']} {line}" for line in lines(gpu))
    asked.setdefault("slots", dict.fromkeys(given))
    module = import_module("muster.checks.families.gpu")
    said: dict[str, list[str]] = {}
    findings = family_of("gpu", module).judge(given, {}, context(**asked))
    for each in findings:
        if only in (None, each.check):
            passed = each.level is Level.PASS and only is None
            words = "" if passed else f": {each.problem}; {each.evidence}; {each.remedy}"
            said.setdefault(f"{each.level.value}{words}", []).append(f"{each.check} {each.host}")
    assert sorted((each.check, each.host) for each in findings) == sorted(
        (check.name, host) for check in module.CHECKS for host in given
    )
    for words, names in sorted(said.items(), key=lambda each: each[0] == "pass"):
        yield f"{'the others' if words == 'pass' and len(said) > 1 else ', '.join(names)}: {words}"


def decisions(made: Decided) -> Iterator[str]:
    """What was decided, and why."""
    job = made.job
    yield f"{job.precision} on {job.device}; {astuple(job.batch)}; slots {made.slots}, threads {made.threads}"
    yield f"GPUs {made.visible_gpus} of {made.room.device} bytes, hosts of {made.room.host}"
    yield from (f"{each.field}={each.value}: {each.why}" for each in job.decisions)
    train, engine = made.recipe.train, made.recipe.engine
    yield f"compile {train.compile}, fused_loss {train.fused_loss}, workers {train.workers}"
    yield f"zero {engine.zero}, sync_each_batch {engine.sync_each_batch}, create {made.recipe.model.create}"
    for each in made.candidates:
        yield f"{'*' if each.chosen else '-'} {each.changes} fits {each.fits}: {each.why}"


def decided(hosts: str, facts: Any, recipe: Any, one_machine: bool = False) -> Iterator[str]:
    """A recipe as it is decided on hosts. `recipe`: its fields, or a shipped one and overrides."""
    asked = load_recipe(recipe[0], recipe[1:]) if isinstance(recipe, list) else recipe_from(recipe)
    yield from decisions(on_hosts(merged(asked), parse_hosts(hosts), facts, one_machine=one_machine))


def files(workload: str, path: str, *named: str, data: Any = None) -> Iterator[str]:
    """Which of a folder's files, or those that are named in it, are for what; and the fault that is found."""
    parts = {"causal-lm": find_texts, "image-classification": find_images}[workload]
    for place in (Path(path, each) for each in named or [""]):
        found = parts(place)
        for name in ("names", "train", "validation", "held_out", "unused"):
            if each := getattr(found, name, None):
                yield f"{name}: {str(list(each)).replace(path, '').replace('PosixPath', '')}"
        if any(file.suffix == ".parquet" for file in place.rglob("*")):
            continue  # of which their reader says what is wrong
        asked = recipe_from({"workload": workload, "data": {"path": str(place), **(data or {})}})
        try:
            asked.check_data(place, {})
        except DataError as error:
            yield f"{error.where}: {own_words(error)}; hint: {error.hint}"


def configured(ask: str, *given: Any, **recipe: Any) -> Iterator[str]:
    """What is made or read of a DeepSpeed configuration."""
    if ask == "config":
        precision = given[0] if given else "fp32"
        made: Any = deepspeed.deepspeed_config(recipe_from(recipe), Batch(4, 2, 24), precision)
    elif ask == "decisions":
        made = [asdict(each) for each in spec_of("deepspeed").decisions(recipe_from(given[0]))]
    else:
        made = getattr(deepspeed, ask)(*given)
    yield from lines(made)


def filled(
    file: Any, settings: Sequence[str] = (), hosts: str = "node1,node2", source: str = "demo"
) -> Iterator[str]:
    """What a dry run makes of a recipe with a DeepSpeed file: the file filled in, and what is said of it."""
    folder = workplace() / "room"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ds.json").write_text(json.dumps(file), encoding="utf-8")
    asked = read_inputs(source, hosts, [f"engine.config={folder / 'ds.json'}", *settings])
    yield f"precision {asked.recipe.precision}, batch {asked.recipe.batch.global_}"
    assert merged(recipe_from(asked.recipe.as_dict())) == asked.recipe
    told = dry_run(asked, RunFolder(folder / "run"))
    plan, recipe = told["plan"], told["recipe"]
    yield f"deepspeed: {json.dumps(told['deepspeed'])}"
    given = {name: recipe["train"][name] for name in TRAINED}
    yield f"train: {json.dumps(given)}; engine.zero {recipe['engine']['zero']}; {plan['engine']}"
    for each in told["decisions"]:
        if each["field"].startswith(("train.", "engine.", "precision")):
            yield f"{each['field']}={each['value']}: {each['why']}"
    yield f"memory: {json.dumps(rounded(plan['memory'].get('device'), DIGITS))}"
    yield from lines(rounded({"training": plan["training"], "notes": plan["notes"]}, DIGITS))


def recipes(source: str, overrides: list[str] | None = None) -> Iterator[str]:
    """A recipe that is loaded: what differs from the defaults of its workload."""
    made: Recipe = load_recipe(source, overrides or [])
    yield from lines(made.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=RECIPE))


def samples(path: str, data: Any = None) -> Iterator[str]:
    """The pairs of a file."""
    yield from (
        str(astuple(each)) for each in TextToSqlData.model_validate(data or {}).form.read([Path(path)])
    )


def splits(path: str, asked: Any = None) -> Iterator[str]:
    """Which files of a folder are trained on, and which are held out."""
    found = find_data(Path(path), Splits(**(asked or {})))
    for name in ("train", "validation", "unused"):
        yield f"{name}: {[str(file.relative_to(path)) for file in getattr(found, name)]}"
    yield parts_of(Path(path), found.train, found.validation, 0.05, found.unused)


def dialogues(row: dict[str, Any], wanted: Any = None) -> Iterator[str]:
    """The prompt and the answers of a row."""
    made = dialogue_of(row, Wanted(**(wanted or {})), "rows.jsonl:7")
    yield from (f"{turn.role}: {turn.text!r}" for turn in made.turns)
    yield f"answer {made.answer!r}, rejected {made.rejected!r}, a chat: {made.chat}"


def sets(files: Any, workload: str = "sft", **data: Any) -> Iterator[str]:
    """What is trained on of rows of prompts and answers, and what is held out. `files`: rows, or how many and
    one with its {number}."""
    place = workplace() / "room" / "sets"
    for name, rows in files.items():
        if isinstance(rows, dict):
            made = [json.dumps(rows["row"]).replace("{number}", str(n)) for n in range(rows["count"])]
        else:
            made = [json.dumps(each) for each in rows]
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("\n".join(made) + "\n", encoding="utf-8")
    with anywhere(place):
        found = load_samples(recipe_from({"workload": workload, "data": data}))  # type: ignore[arg-type]
    for name, part in (("train", found.train), ("held out", found.held_out)):
        yield f"{name}: {len(part)}, chats {sum(each.chat for each in part)}"
        yield f"{name}: {' '.join(each.question for each in part)}"
    yield from found.notes
    yield f"skipped {found.skipped.count}: {found.skipped.first}"


def results(stream: list[dict[str, Any]], job: Any, status: str, ended: float) -> Iterator[str]:
    """The result of a run's events."""
    of = read_job(job)
    assert of is not None
    folded = fold(parse_event(json.dumps(each)) for each in stream)
    made = make_result(folded, of, status=State(status), failure=None, ended=ended)
    yield from lines(rounded(made.model_dump(mode="json", exclude_defaults=True), DIGITS))


def paces(job: Any, stream: list[dict[str, Any]]) -> Iterator[str]:
    """Who holds a run up, by its events: each time that it changes, and at the end."""
    of = read_job(job)
    assert of is not None
    watch = Stragglers(of)
    for each in stream:
        if (changed := watch.add(parse_event(json.dumps(each)))) is not None:
            yield f"at {each.get('time')}: {changed.words}"
            yield from lines(rounded(changed.model_dump(mode="json", exclude_defaults=True), DIGITS))
    last = watch.pace()
    yield from lines(last and rounded(last.model_dump(mode="json", exclude_defaults=True), DIGITS))


def hangs(ranks: list[Any], stepping: bool, looks: Any = None) -> Iterator[str]:
    """Whom ranks wait for, by how each was seen."""
    states = [
        RankState(rank, host, RankProbe.model_validate(seen) if seen else None) for rank, host, seen in ranks
    ]
    answers = {host: ProbeAnswer.model_validate(each) for host, each in (looks or {}).items()}
    found = judge_hang(states, stepping=stepping, looks=answers)
    yield f"hangs {found.hangs}, certain {found.certain}; ranks {[each.rank for each in found.culprits]}"
    yield f"hosts {found.hosts}; waiting {found.waiting}; {found.what}"
    yield from (*found.witnesses, f"hint: {found.hint}")


def causes(
    outcome: Any, failures: list[Any], done: Sequence[int] = (), places: Any = (), logs: Any = None
) -> Iterator[str]:
    """Why a job of two ranks did not succeed."""
    made = TypeAdapter(Outcome).validate_python(outcome)
    reports = [parse_event(json.dumps(each)) for each in failures]
    ended = {rank: Done(time=1, rank=rank, step=1) for rank in done}
    hosts = [Placement(*each) for each in places]
    status, failure = judge_outcome(
        made,
        reports,
        ended,
        2,
        hosts,
        lambda host, rank: (logs or {}).get(host, ""),  # type: ignore[arg-type]
    )
    yield f"{status}"
    yield from lines(asdict(failure) if is_dataclass(failure) else failure and failure.model_dump())


def hosts(text: str, source: str | None = None) -> Iterator[str]:
    """A list of hosts, or a file of them."""
    found = parse_hosts(text) if source is None else parse_hostfile(text, source=source)
    yield f"{found.launcher}: {', '.join(f'{each.name} {each.slots}' for each in found.hosts)}"


def profiles(*traces: list[Any]) -> Iterator[str]:
    """Where a step goes by a trace, and by that of the step whose lines are marked."""
    read = []
    for number, events in enumerate(traces):
        path = workplace() / f"trace{number}.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
        read.append(read_trace(path))
    found = summarize(*read)
    yield from lines(rounded(found.model_dump(mode="json"), DIGITS))
    yield found.verdict


def benches(
    suite: Any, source: str, tasks: list[Any], records: list[Any], recipes: Any = None, stored: Any = (),
    dropped: Any = None, notes: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """The document of a bench whose jobs are over."""
    entries, adapter = Suite.model_validate(suite), TypeAdapter(JobRecord)
    jobs = TypeAdapter(list[Task]).validate_python(tasks)
    rows = {each.id: each.row for each in jobs}
    own = {name: recipe_from(each) for name, each in (recipes or {}).items()}
    by_name = {each.name: own.get(each.name) or load_recipe(str(each.recipe)) for each in entries.jobs}
    made = fold_bench(
        id="bench",
        inputs=BenchInputs("test", entries, read_inventory(source), by_name),
        dropped=dropped or {},
        tasks=jobs,
        records={each["job"]: adapter.validate_python({**rows[each["job"]], **each}) for each in records},
        notes=notes,
        started=0.0,
        ended=100.0,
        stored=baselines(stored),
    )
    digests: dict[str, str] = {}  # of recipes: in their order, as each key of a recipe changes them all
    text = re.sub(
        r"(?<=, )[0-9a-f]{8}(?=[,\"])", lambda m: digests.setdefault(m[0], f"recipe {len(digests) + 1}"),
        made.model_dump_json(exclude_defaults=True),
    )  # fmt: skip
    document: dict[str, Any] = rounded(json.loads(text), DIGITS)
    for name in ("hosts", "links", "switches", "peers", "jobs", "curves", "published"):
        for each in document.pop(name, ()):
            yield f"{name}: {json.dumps({key: each[key] for key in sorted(each) if key not in TIMES})}"
    yield from lines({**document, "gate": made.gate, "left": dict(made.left)})


def spreads(model: str, ranks: int = 5, **fields: Any) -> Iterator[str]:
    """What ranks hold of a small model, the fullest one and the last one, and what they exchange."""
    tensors = tuple(
        Parameter(name, tuple(shape), trained, unit) for name, shape, trained, unit in inputs("models")[model]
    )
    spread = ModelSpread(ranks=ranks, **fields)
    for rank in (None, ranks - 1):
        whose = "most" if rank is None else "the last rank"
        yield f"{whose}: {unlike_defaults(states(spread, tensors, rank))}"
    traffic = traffic_of(tensors, spread)
    for name in ("early", "last"):
        passes = getattr(traffic, name)
        for way, segments in (("forward", passes.forward), ("backward", passes.backward)):
            for each in segments:
                calls = "; ".join(f"{kind} {called(each, kind)}" for kind in ("gathers", "reduces"))
                yield f"{name} {way} {each.share:.{DIGITS}g}: {calls}"
    hides = f"gathers hide {traffic.gathers_hide}, reduces hide {traffic.reduces_hide}"
    yield f"step: {called(traffic, 'step')}; {traffic.micro_steps} micro-steps; {hides}"


def called(of: Any, name: str) -> list[tuple[Any, ...]]:
    return [astuple(call) for call in getattr(of, name)]


KEPT = {
    "fp32": KeptValues(4), "fp32 on a CPU, probabilities kept": KeptValues(4, fused=False, mask=4),
    "half": KeptValues(2), "half, probabilities kept": KeptValues(2, fused=False),
    "mixed": KeptValues(2, mixed=True), "mixed, probabilities kept": KeptValues(2, mixed=True, fused=False),
    "compiled": KeptValues(2, compiled=True),
}  # fmt: skip


def activations(config: dict[str, Any]) -> Iterator[str]:
    """Bytes that a small model keeps for its backward pass, by formula, and of its output and its answers."""
    lengths, drawing, rows = Lengths(9), Drawing(prompt=5, answer=4, at_once=True), 18
    for name, kept in KEPT.items():
        layers = [activation_bytes(config, lengths, kept, checkpointing=again) for again in (False, True)]
        output = logit_bytes(config, lengths, kept), fused_bytes(config, rows, kept, "cuda", True)
        tiles = [tile_bytes(config, rows, kept, device) for device in ("cuda", "cpu")]
        drawn = list(drawing_bytes(config, drawing, 2, kept).values())
        yield f"{name}: layers {layers}, output {output}, tiles {tiles}, drawn {drawn}"


def values(function: str, calls: list[Any]) -> Iterator[str]:
    """What a function or a method makes of each input, or its error. A call: its arguments, or named ones as
    well. Data stands for the classes that the function takes; a method's first is of its own class. What
    stands behind (). is what the document has of the result."""
    module, _, name = function.partition(":")
    name, _, part_of_it = name.partition("().")
    called: Any = import_module(f"muster.{module}")
    owner = None
    for part in name.split("."):
        owner, called = called, getattr(called, part)
    hints = {} if isinstance(called, type) else {"self": owner, **get_type_hints(called)}
    kinds = (
        [] if isinstance(called, type) else [hints.get(each, Any) for each in signature(called).parameters]
    )
    for call in calls:
        named = dict(call) if isinstance(call, dict) and "args" in call else {"args": call}
        try:
            given = named.pop("args")
            args = [taken(*each) for each in zip(kinds, given, strict=False)] if kinds else given
            result = called(*args, *given[len(args) :], **named)
            result = getattr(result, part_of_it) if part_of_it and result is not None else result
            told = result.model_dump(exclude_defaults=True) if isinstance(result, BaseModel) else result
            made = json.dumps(TypeAdapter(Any).dump_python(told), default=vars)
            text = json.dumps(json.loads(made, parse_float=significant), ensure_ascii=False)
        except (MusterError, ValueError) as error:
            where, hint = (getattr(error, each, None) for each in ("where", "hint"))
            text = f"{type(error).__name__}: {getattr(error, 'what', error)}; where {where}; hint {hint}"
        yield f"{json.dumps(call, ensure_ascii=False)[:LONGEST]} -> {text[:LONGEST]}"


def taken(kind: Any, value: Any) -> Any:
    """A dictionary as what a function takes in its place."""
    return TypeAdapter(kind).validate_python(value) if isinstance(value, dict) else value


def significant(figure: str) -> float:
    return float(f"{float(figure):.{DIGITS}g}")


ROOMS: dict[str, Callable[..., Iterator[str]]] = {
    "readings": readings, "judgements": judgements, "folders": folders, "paces": paces, "findings": findings,
    "groups": groups, "gpus": gpus, "decided": decided, "deepspeed": configured, "recipes": recipes,
    "samples": samples, "splits": splits, "dialogues": dialogues, "results": results, "hangs": hangs,
    "causes": causes, "hosts": hosts, "profiles": profiles, "benches": benches,
    "values": values, "spreads": spreads, "activations": activations, "files": files,
    "memories": needed, "sets": sets, "watches": watched, "explains": explains,
    "accused": accused, "filled": filled,
}  # fmt: skip


def own_words(error: MusterError) -> str:
    """What is wrong, without what a parser says of it."""
    return re.sub("(is not JSON|is not valid YAML): .*", r"\1", error.what, flags=re.DOTALL)


def outcome(room: str, case: str) -> str:
    """What the room makes of a case's input, or the error that it raises."""
    given = written(inputs(room)[case])
    args, more = (given, {}) if isinstance(given, list) else (given.pop("args", []), given)
    try:
        return "".join(f"{line}\n" for line in ROOMS[room](*args, **more)) or "nothing\n"
    except MusterError as error:
        what = own_words(error)
        place = f"{error.where}; host {error.host}; failure {error.failure}"
        return f"{type(error).__name__}: {what}\nwhere: {place}\nhint: {error.hint}\n"
    finally:
        shutil.rmtree(workplace() / "room", ignore_errors=True)


DOCUMENTS = [
    Documents(room, tuple(inputs(room)), lambda case, room=room: outcome(room, case)) for room in ROOMS
]
CASES = [(document, case) for document in DOCUMENTS for case in document.cases]


@pytest.mark.parametrize(("document", "case"), CASES, ids=[f"{each.kind}: {case}" for each, case in CASES])
def test_what_a_room_makes_of_its_input(document: Documents, case: str) -> None:
    document.check(case)


if __name__ == "__main__":
    cases = inputs(sys.argv[1])
    for name in sys.argv[2:] or cases:
        print(name, json.dumps(cases[name], ensure_ascii=False) if sys.argv[2:] else "")
