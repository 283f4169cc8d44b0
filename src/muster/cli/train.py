"""muster train"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from muster.cli.options import (
    Detach,
    DryRun,
    Hosts,
    Json,
    Name,
    Output,
    Recipe,
    Root,
    Verbose,
    Words,
    split_words,
)
from muster.cli.output import err_console, print_json, say
from muster.core.errors import UsageError

if TYPE_CHECKING:
    from muster.core.result import Result
    from muster.inputs.read import Inputs
    from muster.store.runfolder import RunFolder

EXAMPLES = """Examples:

  muster train text2sql-wikisql --hosts local:2 data.path=data/wikisql

  muster train my.yaml --hosts node1:8,node2:8 engine.name=deepspeed engine.zero=3

  muster train my.yaml --hosts hostfile batch.global=512 --dry-run

  muster train my-pipeline.yaml --hosts hostfile STEP.train.max_steps=100"""


def train(
    recipe: Recipe,
    words: Words = None,
    hosts: Hosts = "",
    output: Output = None,
    name: Name = "",
    root: Root = Path("runs"),
    dry_run: DryRun = False,
    verbose: Verbose = False,
    detach: Detach = False,
    json: Json = False,
) -> int:
    """Run a recipe on hosts: one command, all hosts, one result; or a pipeline of recipes."""
    from muster.inputs.pipeline import find_pipeline
    from muster.inputs.read import read_inputs

    hosts, _, changes = split_words(words, hosts)
    if file := find_pipeline(recipe):
        from muster.cli.views.pipelines import finish_pipeline, print_dry_run, seeing
        from muster.runs.pipeline import read_pipeline, run_pipeline
        from muster.store.runfolder import PipelineFolder, stamped

        if detach:
            raise UsageError("a pipeline is not handed to Slurm", where="--detach", hint="salloc first")
        folder = PipelineFolder(_named(output, name, root) or stamped(root, "pipeline-", file.stem))
        if dry_run:
            return print_dry_run(file, hosts, changes, folder, json=json, verbose=verbose)
        steps = read_pipeline(file, hosts, changes)
        return finish_pipeline(run_pipeline(steps, folder, seeing=seeing), folder, json)
    inputs = read_inputs(recipe, hosts, changes, waits=True)
    return start(inputs, output, name, root, dry_run=dry_run, verbose=verbose, detach=detach, json=json)


def start(
    inputs: Inputs,
    output: Path | None,
    name: str,
    root: Path,
    *,
    dry_run: bool,
    verbose: bool,
    detach: bool,
    json: bool,
) -> int:
    """Run it here, submit it to Slurm, or print what would run. Return the exit code."""
    from muster.cli.views.progress import ProgressView
    from muster.runs.train import train as run_train
    from muster.store.runfolder import RunFolder, run_folder_of

    made = _named(output, name, root)
    run = RunFolder(made) if made else run_folder_of(inputs.recipe, root)
    if inputs.inventory.ask is not None:
        return _submit(inputs, run, detach=detach, dry_run=dry_run, json=json)
    if dry_run:
        return _dry_run(inputs, run, json=json, verbose=verbose)
    with ProgressView(err_console()) as view:
        view.now("asking the hosts, and planning")
        result = run_train(inputs, run, watch=view, announce=view.announce)
    return finish(result, run, json=json)


def _named(output: Path | None, name: str, root: Path) -> Path | None:
    """Return the folder that the user wants. Raises UsageError."""
    from muster.store.runfolder import named_run_folder

    if output and name:
        raise UsageError("and --output both say where the run's folder is", where="--name")
    return named_run_folder(root, name).path if name else output and output.absolute()


def _submit(inputs: Inputs, run: RunFolder, *, detach: bool, dry_run: bool, json: bool) -> int:
    """Submit the job to Slurm, and follow it unless it is detached."""
    from muster.cli.views.progress import watch
    from muster.runs.submit import script, submit

    if dry_run:
        text = script(inputs, run, "<a ticket>")
        print_json({"script": text}) if json else say(text, end="")
        return 0
    job = submit(inputs, run)
    err_console().print(f"submitted as Slurm job {job}\nrun folder  {run.path}")
    if not detach:
        result = watch(run, stops=True)
        assert result is not None  # Ctrl-C stops the job, so the watching ends with it
        return finish(result, run, json=json)
    print_json({"id": run.id, "path": str(run.path), "slurm_job": job}) if json else say(run.path)
    return 0


def finish(result: Result, run: RunFolder, *, json: bool) -> int:
    """Write the report and print the result. Return the exit code: 0 succeeded, 1 failed."""
    from muster.cli.views.results import print_afterwards, print_result
    from muster.reports.page import report

    try:
        page = str(report(run))
    except OSError as error:
        page = f"could not be written: {error.strerror}"
    if json:
        print_json(result.model_dump(mode="json"))
    else:
        print_result(result)
    err_console().print(f"run folder  {run.path}\nreport      {page}")
    if result.status.good:
        print_afterwards(run)
    return result.status.exit_code


def _dry_run(inputs: Inputs, run: RunFolder, *, json: bool, verbose: bool) -> int:
    from muster.cli.views.waiting import waiting
    from muster.runs.dry_run import dry_run, format_dry_run

    with waiting(err_console(), "planning"):
        document = dry_run(inputs, run)
    if json:
        print_json(document)
    else:
        say(format_dry_run(document, verbose=verbose))
    return 0
