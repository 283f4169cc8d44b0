"""Train: from recipe and hosts to a run folder with a result. Nothing starts unless every host can."""

from __future__ import annotations

import inspect
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster import __version__
from muster.core.errors import InventoryError, JobError, MusterError, RunFolderError, refused
from muster.core.job import ENGINE_CONFIG, Decision, Facts, Job, Placement, place
from muster.core.printable import scrubbed_data
from muster.core.recipe import recipe_from
from muster.core.recipes import read_yaml
from muster.core.registry import versions_of
from muster.core.result import Code, Failure, Hung, Result
from muster.core.slurm import allocation
from muster.core.state import State
from muster.engines.base import packages
from muster.failures.table import disk_full
from muster.fleet.cause import judge_command, judge_outcome, unresolved, with_way_on
from muster.fleet.fetch import copy_between, fetch_model, fetch_profiles
from muster.fleet.interrupts import interrupts
from muster.fleet.launchers.slurm import TICKET
from muster.fleet.messages import ProbeAnswer
from muster.fleet.supervisor import Listener, Outcome, Supervisor
from muster.inputs.hub import check_names
from muster.inputs.peaks import peaks_of
from muster.inputs.read import Inputs
from muster.planner.decide import Chosen, Decided
from muster.planner.orders import greeting, orders, with_code
from muster.planner.plan import ask, hosts_first, plan_first, promised
from muster.reports.fabric import write_tables
from muster.results.fold import learned_nothing, make_result
from muster.results.stragglers import Stragglers
from muster.runs.checkpoints import BEGINNING, Start, WantedCheckpoint, choose
from muster.runs.continuing import continued, same_batch
from muster.runs.explain import with_evidence
from muster.runs.groups import Groups
from muster.runs.hang import Watch
from muster.runs.recorder import FLUSH, Follower, Recorder, Watcher
from muster.runs.requirements import check_disk, check_hosts, check_profile, check_sharing
from muster.runs.slowdown import Slowdown
from muster.store import events, sealed
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import RunFolder, new_mark
from muster.store.runlock import Claim
from muster.store.secrets import masked, masked_command, masked_program, scrubber
from muster.store.tree import Tree, read_tree
from muster.store.values import forget, recipe_file
from muster.workloads.command.spec import CommandRecipe

ROOM = 1 << 18  # bytes that are held for the result, should the disk be full by then


def ignore(event: object) -> None:
    """Do nothing with an event."""


@dataclass(frozen=True)
class Attempt:
    """A run's first attempt, or one that continues from a checkpoint."""

    number: int = 1
    wanted: WantedCheckpoint = field(default_factory=WantedCheckpoint)

    @property
    def resume(self) -> bool:
        """Whether it continues."""
        return self.number > 1


def train(
    inputs: Inputs,
    run: RunFolder,
    *,
    attempt: Attempt | None = None,
    claim: Claim | None = None,
    watch: Watcher = ignore,
    announce: Callable[[Job], None] = ignore,
) -> Result:
    """Run the job to its end. The result is also in the run folder.

    Raises UsageError where hosts cannot be used (nothing was started then, and no folder is left behind).
    """
    attempt = attempt or Attempt()
    ticket = os.environ.get(TICKET)
    if inputs.launcher_name == "slurm" and allocation(os.environ) is None:
        raise InventoryError(
            "launch.launcher=slurm works inside an allocation",
            where=inputs.inventory.source,
            hint="salloc first, or --hosts slurm:/NODES, which submits a batch job",
        )
    if not attempt.resume and run.path.exists() and not ticket:
        run.create()  # raises: it is there already
    if inputs.launcher.ONE_MACHINE:
        check_names(inputs.recipe, inputs.env)
    command = inputs.recipe if isinstance(inputs.recipe, CommandRecipe) else None
    # Before any host is asked: hashing many files takes longer than an agent waits for a word.
    tree = read_tree(Path(command.run.sync), but=run.path.parent) if command and command.run.sync else None
    inputs, chosen = hosts_first(inputs, ask)
    places = place([(host, host.slots or 1) for host in inputs.inventory.hosts])
    nonce = f".muster-{secrets.token_hex(8)}"
    mark = run.mark if attempt.resume else new_mark()
    sign = _leave(run.path.parent / nonce)
    try:
        with Supervisor(places, inputs.launcher, inputs.recipe.launch, run.id) as supervisor:
            orders = greeting(
                inputs.recipe,
                places,
                run_dir=run.path,
                nonce=nonce,
                job_id=run.id,
                attempt=attempt.number,
                mark=mark,
                env=inputs.env,
            )
            start = None
            if attempt.resume:
                code_of_seals = inspect.getsource(sealed)
                orders = {host: {**spec, "sealed": code_of_seals} for host, spec in orders.items()}
            facts = supervisor.greet(orders)
            if attempt.resume and inputs.recipe.trains:
                if attempt.wanted.step != BEGINNING and any(about["checkpoints"] for about in facts.values()):
                    inputs = same_batch(run, inputs, facts)
                    watch(events.Phase(time=time.time(), rank=0, name="verify"))
                copy = partial(_copy, places, facts, supervisor, watch)
                start = choose(run, inputs.recipe, supervisor, facts, attempt.wanted, copy)
            decided = supervisor.meanwhile(partial(agree, inputs, run, facts, attempt, chosen, start))
            if not attempt.resume:
                run.create(ticket, mark)
            with claim or run.claim(os.environ.get("SLURM_JOB_ID")) as held:
                if run.waits_for(ticket):  # its submitter may have ended before it could write the job's id
                    written = run.read_json(run.submission)
                    if not written.get("job"):
                        write_json(run.submission, {**written, "job": os.environ.get("SLURM_JOB_ID")})
                return _run(inputs, run, held, supervisor, decided, facts, watch, announce, tree)
    finally:
        sign.unlink(missing_ok=True)


def agree(
    inputs: Inputs,
    run: RunFolder,
    facts: Facts,
    attempt: Attempt,
    chosen: Chosen | None = None,
    start: Start | None = None,
) -> Decided:
    """Decide everything that was open, from the hosts' facts, and make the run's job and start orders.
    `chosen`: the hosts to use, of more that were given; `start`: where it continues. Raises UsageError."""
    start = start or Start()
    recipe = inputs.recipe
    check_hosts(facts, recipe)
    decided = plan_first(inputs, facts, chosen)
    check_disk(recipe, facts)
    check_sharing(recipe, run, facts)
    check_profile(recipe, decided.job.world_size)
    threads = decided.threads if decided.job.device == "cpu" else None
    data, notes = decided.recipe.data, decided.plan.data if decided.plan else []
    name = Path(data.path).name if data.path else data.name or data.source
    of_data = [Decision("data", name, note) for note in notes]  # what is held out, left out, changed or cut
    peaks, unmeasured = peaks_of(recipe.measure.peaks, decided.job.placements, facts, threads)
    job = replace(
        decided.job,
        id=run.id,
        attempt=attempt.number,
        resume_step=start.step,
        decisions=(*inputs.noted, *of_data, *decided.job.decisions, *unmeasured, *start.notes),
        peaks=peaks,
    )
    if start.step is not None:
        job = continued(run, job)
    decided = replace(decided, job=job)
    return replace(decided, orders=orders(inputs, decided, facts))


def _copy(
    places: tuple[Placement, ...],
    facts: Facts,
    supervisor: Supervisor,
    watch: Watcher,
    step: int,
    source: str,
    target: str,
) -> None:
    """Copy a checkpoint from a host's own disk to another's, while agents are kept alive."""
    watch(events.Phase(time=time.time(), rank=0, name="copy"))
    by_host = {place.host: (place, f"{facts[place.host]['base']}/checkpoints") for place in places}
    ends = by_host[source], by_host[target]
    name = f"checkpoint-{step}"
    supervisor.meanwhile(partial(copy_between, supervisor.remote, *ends, name))


def bring_code(tree: Tree, run: RunFolder, supervisor: Supervisor, facts: Facts) -> Code:
    """Send a command's folder to all hosts: those that share the run folder have one copy in it. Raises
    RecipeError and HostError."""
    if any(about["shared"] for about in facts.values()):
        shutil.rmtree(run.code, ignore_errors=True)  # of an earlier attempt
        supervisor.meanwhile(partial(tree.write, run.code))
    others = [host for host, about in facts.items() if not about["shared"]]
    sent = supervisor.bring(tree, others) if others else 0
    return Code(
        folder=str(tree.folder), digest=tree.digest, files=len(tree.files), bytes=tree.size, sent=sent
    )


def _leave(sign: Path) -> Path:
    """Leave a sign next to the run folder: hosts that see it share this file system. Raises RunFolderError.
    """
    with refused(RunFolderError, "written", sign.parent, "choose another --output or --runs"):
        sign.parent.mkdir(parents=True, exist_ok=True)
        sign.touch()
    return sign


def _run(
    inputs: Inputs,
    run: RunFolder,
    claim: Claim,
    supervisor: Supervisor,
    decided: Decided,
    facts: Facts,
    watch: Watcher,
    announce: Callable[[Job], None],
    tree: Tree | None,
) -> Result:
    run.set_result_aside()
    if not os.environ.get(TICKET):  # a job that Slurm starts again obeys what was asked of its first start
        run.stop_request.unlink(missing_ok=True)
    try:
        freeze(run, inputs, decided)
        run.room.write_bytes(bytes(ROOM))
    except OSError as error:
        raise disk_full(error, run.path) or error from None
    job = decided.job
    announce(job)
    command = inputs.recipe if isinstance(inputs.recipe, CommandRecipe) else None
    scrub = scrubber(inputs.env, command.command if command else ())
    follow = Follower(job, command.user_format()) if command else None
    per_host = command is not None and command.run.start == "host"
    hang = Watch(
        inputs.recipe.hang,
        job.placements,
        supervisor.look,
        quiet=supervisor.quiet,
        announces=command is not None,
        per_host=per_host,
    )

    groups = Groups(job.world_size)
    watched = follow is not None and not per_host and job.world_size > 1
    slowdown = Slowdown(job.placements, supervisor.look) if watched else None

    def tick() -> str | None:
        claim.touch()
        for text in (groups.note(hang.steps), slowdown.note(hang.steps) if slowdown else None):
            if text is not None:
                recorder.say(events.Noted, text=text)
        recorder.write_logs(FLUSH)
        if wish.stop:
            return wish.stop
        if run.stop_asked():
            return "stopped by `muster stop`"
        if hang.tick() is not None:
            hung = note_hang(run, hang, recorder)
            return hung.what if inputs.recipe.hang.action == "stop" else None
        return None

    def looked(host: str, answer: ProbeAnswer) -> None:
        hang.looked(host, answer)
        if slowdown is not None:
            slowdown.looked(host, answer)

    def log(host: str, rank: int | None, lines: list[str]) -> None:
        recorder.log(host, rank, lines)
        hang.output(lines)
        if follow is not None and follow.steps > hang.steps:
            hang.progress(follow.steps)

    with interrupts() as wish, Recorder(run, job.attempt, watch, scrub, follow, Stragglers(job)) as recorder:
        try:
            recorder.begin_logs(list(facts))
            detail = {"resume_step": job.resume_step, "hosts": list(facts)}
            recorder.say(events.JobState, state="begin", detail=detail)
            for host, about in facts.items():
                own = {name: value for name, value in about.items() if name != "port"}
                recorder.say(events.HostFacts, host=host, facts=own)
            listener = Listener(
                recorder.event, log, recorder.hardware, tick, hang.pulses, looked, groups.heard
            )
            code = bring_code(tree, run, supervisor, facts) if tree else None
            begun = time.monotonic()
            outcome = supervisor.run(with_code(decided.orders), listener)
            took = time.monotonic() - begun
            recorder.last_progress()
            result = _conclude(inputs, run, job, recorder, outcome, facts, supervisor, hang)
            if result.command is not None:
                measured = result.command.model_copy(update={"code": code, "seconds": took})
                result = result.model_copy(update={"command": measured})
            recorder.say(events.JobState, state="end", detail={"status": result.status})
            _write_predictions(run, result)
            write_tables(run, result)
            _write_result(run, result)
        except Exception as error:  # whatever it is: nothing runs on, and the run says that it failed
            supervisor.leave(keep=True)
            result = _broken(run, job, recorder, error)
    run.stop_request.unlink(missing_ok=True)
    if result.status.good:  # nothing is left to resume
        forget(recipe_from(read_yaml(run.recipe)).env_kept)
    return result


def note_hang(run: RunFolder, hang: Watch, recorder: Recorder) -> Hung:
    """Record that the job hangs, and where each rank is."""
    hung = hang.hung()
    with suppress(OSError):
        write_json(run.hang, hang.document())
    recorder.say(events.Hanging, found=hung)
    recorder.say(events.Noted, text=f"{hung.what} ({hang.words()})")
    return hung


def _write_result(run: RunFolder, result: Result) -> None:
    run.room.unlink(missing_ok=True)
    write_json(run.result, result.model_dump(mode="json"))


def _broken(run: RunFolder, job: Job, recorder: Recorder, error: Exception) -> Result:
    """Return the result of a job that the controller could not hold to its end, written where there is room.

    A full disk of the controller is such an end; an error of muster's own is raised again.
    """
    user_error: MusterError | None = error if isinstance(error, MusterError) else None
    if isinstance(error, OSError):
        user_error = disk_full(error, run.path)
    about = (
        user_error.as_dict()
        if user_error
        else {"what": f"an error in muster itself: {type(error).__name__}: {error}"}
    )
    failure = with_way_on(Failure.model_validate(about), run.word, recorder.folded.saved, None)
    failure = failure.model_copy(update={"what": recorder.scrub(failure.what)})
    result = make_result(recorder.folded, job, status=State.FAILED, failure=failure, ended=time.time())
    with suppress(OSError):
        _write_result(run, result)
    if user_error is None:
        raise error
    return result


def _conclude(
    inputs: Inputs,
    run: RunFolder,
    job: Job,
    recorder: Recorder,
    outcome: Outcome,
    facts: Facts,
    supervisor: Supervisor,
    hang: Watch,
) -> Result:
    folded = recorder.folded
    if inputs.recipe.foreign:
        status, failure = judge_command(outcome, recorder.lines_of, job.placements)
    else:
        status, failure = judge_outcome(
            outcome, folded.failed, folded.done, job.world_size, job.placements, recorder.rank_words
        )
    if folded.hang is not None and outcome.stopped == folded.hang.what:
        status, failure = State.FAILED, hang.failure()
    if not status.good and outcome.stopped and not hang.steps:
        failure = unresolved(recorder.lines_of, job.placements) or failure
    first = job.placements[0]
    saved = inputs.recipe.trains and inputs.recipe.checkpoint.model
    if saved and status.good and not facts[first.host]["shared"]:
        try:
            files = next((each.files for each in reversed(folded.saved) if each.step is None), None)
            base = facts[first.host]["base"]
            fetch_model(supervisor.remote, first, base, run, files)
        except JobError as error:
            status, failure = State.FAILED, Failure.model_validate(error.as_dict())
    if run.model.is_dir():
        folded.model_path = str(run.model)
    fetch_profiles(supervisor.remote, job, facts, run, folded.profiled)
    if failure is not None:
        lost = next(iter(outcome.lost), None) if len(job.placements) > 1 else None
        bad = {each.checkpoint for each in folded.failed}
        usable = [each for each in folded.saved if each.step not in bad]
        failure = with_way_on(with_evidence(failure, run, recorder.lines_of), run.word, usable, lost)
        failure = Failure.model_validate(
            {name: recorder.scrub(value) if isinstance(value, str) else value for name, value in failure}
        )
    if status.good and (failure := learned_nothing(folded, job)):
        status = State.FAILED
    return make_result(
        folded,
        job,
        status=status,
        failure=failure,
        ended=time.time(),
        planned=promised(run.read_json(run.plan)),
    )


def _write_predictions(run: RunFolder, result: Result) -> None:
    """Write the held-out answers of the event log, in their order, to a file of their own."""
    answers = [
        event
        for event in events.read_events(run.events)
        if isinstance(event, events.Answer) and event.attempt == result.attempt
    ]
    if answers:
        ordered = sorted(answers, key=lambda answer: answer.index)
        include = {"index", "question", "predicted", "expected", "exact", "executed", "unscored"}
        write_text(
            run.predictions, "".join(answer.model_dump_json(include=include) + "\n" for answer in ordered)
        )


# ----------------------------------------------------------------------------------------------------
# Writes down what is fixed, before anything starts: recipe.yaml, plan.json, env.json, job.json.


def freeze(run: RunFolder, inputs: Inputs, decided: Decided) -> None:
    """Write everything that hosts have agreed to."""
    job, orders = decided.job, decided.orders
    recipe = inputs.recipe.as_dict()
    shown = inputs.recipe.env_show
    own, given = inputs.recipe.engine.config, run.engine_config_given
    if own and not given.exists():
        write_text(given, Path(own).expanduser().read_text(encoding="utf-8"))
        recipe["engine"]["config"] = str(given)  # a resumed run reads what this one read
    config = next(iter(orders.values()))["job"][ENGINE_CONFIG]
    if config:
        write_json(run.engine_config, config)
    if job.peaks and not run.peaks.exists():
        write_json(run.peaks, asdict(job.peaks))
        recipe["measure"]["peaks"] = str(run.peaks)
    # What the plan chose stays chosen: a resumed run has to find its checkpoints' shards as they were cut.
    recipe["engine"]["zero"] = job.recipe["engine"]["zero"]
    recipe["engine"]["sync_each_batch"] = job.recipe["engine"]["sync_each_batch"]
    recipe["train"]["gradient_checkpointing"] = job.recipe["train"]["gradient_checkpointing"]
    key = inputs.recipe.env_kept if run.recipe.exists() else None  # a resumed run's own, or a new one
    write_text(run.recipe, recipe_file(recipe, key))
    decisions = [asdict(each) for each in job.decisions]
    plan = decided.plan.model_dump(mode="json") if decided.plan else {}
    write_json(run.plan, scrubbed_data({**plan, "decisions": decisions}))
    write_json(
        run.env,
        {
            "muster": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "controller": platform.node(),
            "argv": masked_command(sys.argv, shown),
            "versions": _versions(),
            "rank_environment": masked(inputs.env, shown),
        },
    )
    hosts = {host: _recorded(order, shown) for host, order in orders.items()}
    written = {
        **job.as_dict(),
        "inventory": inputs.inventory.as_dict(),
        "orders": hosts,
        ENGINE_CONFIG: config,
    }
    write_json(run.job, scrubbed_data(written))


def _recorded(order: Mapping[str, Any], shown: Sequence[str]) -> dict[str, Any]:
    """Return a start order for job.json: without the job, which is there once, and without values."""
    host = order["host"]
    own = {**host, "env": masked(host["env"], shown), "argv": masked_program(host["argv"])}
    return {**{key: value for key, value in order.items() if key != "job"}, "host": own}


def _versions() -> dict[str, str | None]:
    names = ("torch", "transformers", *packages(), "accelerate", "pydantic")
    return {**dict.fromkeys(names), **versions_of(names)}
