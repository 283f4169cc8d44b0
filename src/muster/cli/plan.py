"""muster plan"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import Hosts, Json, Recipe, Root, Words, split_words
from muster.cli.output import err_console, print_json, say
from muster.cli.parameters import Option
from muster.core.errors import UsageError
from muster.core.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from muster.planner.machines import UserFigures

EXAMPLES = """Examples:

  muster plan opt-benchmark model.name=opt-13b --on a100-80gb:8x4,200Gbit-ib

  muster plan my.yaml --hosts node[1-4] engine.name=deepspeed engine.zero=auto --write chosen.yaml

  muster plan my.yaml --on h200:8x8,10Gbit launch.hosts=auto batch.micro=auto

  muster plan causal-lm model.name=Qwen/Qwen2.5-7B data.sequence=4096 --on h100:8x4,400Gbit-ib --tokens 20B

  muster plan --calibrate last

  muster plan text2sql-t5-large --on a100-40gb:1x3,10Gbit --samples 56355 --price 1.2"""


def plan(
    recipe: Recipe = "",
    words: Words = None,
    hosts: Hosts = "",
    on: Annotated[
        str,
        Option("--on", help="Plan for machines you do not have: DEVICE:PER_HOSTxHOSTS[,DEVICE:...],LINK."),
    ] = "",
    samples: Annotated[int | None, Option("--samples", min=1, help="Training samples per epoch.")] = None,
    tokens: Annotated[
        str, Option("--tokens", help="Tokens to be trained in all, such as 20B; in place of --samples.")
    ] = "",
    price: Annotated[
        float | None, Option("--price", min=0, help="Price of a host per hour, in any currency.")
    ] = None,
    link: Annotated[
        str, Option("--link", help="Link between hosts, instead of what they report: 10Gbit, hdr, ...")
    ] = "",
    host_memory: Annotated[
        str, Option("--host-memory", help="Memory of each host of --on, such as 512GB.")
    ] = "",
    write: Annotated[
        Path | None,
        Option("--write", "-w", help="Write the decided recipe here (and DeepSpeed's JSON)."),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Use formulas only; do not trace the model.")] = False,
    calibrate: Annotated[
        list[str] | None,
        Option("--calibrate", metavar="RUN", help="Learn from a finished run; may be repeated."),
    ] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Predict what fits, how fast it trains and what to choose, before anything is started or rented."""
    if calibrate:
        _calibrate(calibrate, root, link or None, as_json=json and not recipe)
        if not recipe:
            return 0
    hosts, _, changes = split_words(words, hosts)
    from muster.cli.views.plans import print_plan
    from muster.cli.views.waiting import Waiting
    from muster.inputs.pipeline import find_pipeline
    from muster.inputs.read import inherited_decisions, read_inputs, read_recipe
    from muster.planner.plan import plan_hosts, plan_on, write_plan

    if not recipe:
        raise UsageError("no recipe was given", hint="muster plan RECIPE --on h200:8x4,10Gbit")
    if bool(hosts) == bool(on):
        raise UsageError(
            "one of --hosts and --on is needed", hint="--on h200:8x4,10Gbit, or --hosts node[1-4]"
        )
    if on and link:
        raise UsageError("is part of --on", where="--link", hint=f"--on {on},{link}")
    if hosts and host_memory:
        raise UsageError("is reported by the hosts themselves", where="--host-memory", hint="leave it out")
    figures = _user_figures(samples, tokens, price, link, host_memory)
    if file := find_pipeline(recipe):
        if write is not None:
            raise UsageError("writes one recipe, and this is a pipeline", where="--write")
        return _plan_steps(file, hosts, on, changes, figures, traced=not quick, json=json)
    with Waiting(err_console()) as line:
        if on:
            made = read_recipe(recipe, changes)
            noted = inherited_decisions(recipe, changes, made)
            decided = plan_on(made, on, figures, traced=not quick, say=line.now, noted=noted)
        else:
            inputs = read_inputs(recipe, hosts, changes)
            decided = plan_hosts(inputs, figures, traced=not quick, say=line.now)
    plan = decided.plan
    assert plan is not None  # what trains nothing is refused
    if json:
        print_json(plan.model_dump(mode="json"))
    else:
        print_plan(plan)
    if write is not None:
        for file in write_plan(decided, write):
            err_console().print(f"written     {file}")
        if decided.chosen is not None and decided.chosen.skips:
            names = ",".join(host.name for host in decided.chosen.hosts)
            err_console().print(f"            for --hosts {names}")
    return 1 if plan.memory is not None and plan.memory.lacking else 0


def _plan_steps(
    file: Path, hosts: str, on: str, changes: list[str], figures: UserFigures, *, traced: bool, json: bool
) -> int:
    """Plan each step of a pipeline that trains, before any of them is trained. Return the exit code."""
    from muster.cli.views.plans import print_plan
    from muster.cli.views.waiting import Waiting
    from muster.runs.pipeline import plan_steps

    with Waiting(err_console()) as line:
        plans = plan_steps(file, hosts, on, changes, figures, traced=traced, say=line.now)
    if json:
        documents = [{"step": name, "plan": each.model_dump(mode="json")} for name, each in plans.items()]
        print_json({"pipeline": documents})
    for number, (name, plan) in enumerate(plans.items() if not json else (), 1):
        say(f"{chr(10) * (number > 1)}step {name}")
        print_plan(plan)
    return 1 if any(plan.memory is not None and plan.memory.lacking for plan in plans.values()) else 0


def _user_figures(
    samples: int | None, tokens: str, price: float | None, link: str, host_memory: str
) -> UserFigures:
    from muster.planner.machines import UserFigures

    memory = parse_bytes(host_memory) if host_memory else None
    if host_memory and not memory:
        raise UsageError(f"{host_memory!r} is not a size", where="--host-memory", hint="such as 512GB")
    count = parse_count(tokens) if tokens else None
    if tokens and count is None:
        raise UsageError(
            f"{tokens!r} is not a number of tokens", where="--tokens", hint="such as 20B or 300M"
        )
    return UserFigures(samples, price, link or None, memory, count)


def _calibrate(names: list[str], root: Path, link: str | None, *, as_json: bool) -> None:
    """Learn from runs, and print what was learned."""
    from dataclasses import asdict

    from muster.planner.calibrate import calibrate
    from muster.store.runfolder import find_run

    calibration, file, errors = calibrate([find_run(name, root) for name in names], link)
    if as_json:
        print_json({"file": str(file), **asdict(calibration), "errors": errors})
        return
    console = err_console()
    for name, share in calibration.efficiency.items():
        fixed = calibration.fixed.get(name)
        more = f", and {1000 * fixed:.1f} ms per micro-step" if fixed else ""
        console.print(f"learned     {name}: {share:.1%} of the stated figures{more}")
    for name, figures in calibration.links.items():
        if figures.bandwidth:
            console.print(f"learned     {name}: {figures.bandwidth / 1e6:,.1f} MB/s")
    for name, moved in calibration.hosts.items():
        console.print(f"learned     memory of a {name}'s host: {moved / 1e9:,.1f} GB/s")
    for name, spread in calibration.spreads.items():
        console.print(f"learned     hosts of {name} differ by {spread:.1%} of a step (standard deviation)")
    for run, error in errors.items():
        console.print(f"            {run}: predicted {error:+.1%} of what was measured")
    console.print(f"kept in     {file}")
