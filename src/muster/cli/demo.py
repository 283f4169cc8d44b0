"""muster demo"""

from __future__ import annotations

from pathlib import Path

from muster.cli.options import Hosts, Json, Root, Words, split_words
from muster.cli.output import err_console

EXAMPLES = """Examples:

  muster demo

  muster demo train.max_steps=50 engine.zero=3"""


def demo(
    words: Words = None,
    hosts: Hosts = "",
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """End-to-end demo on this machine: data, two pretend hosts, training, answers. No GPU, no network."""
    from muster.agent.gpu import gpu_files
    from muster.cli.train import finish
    from muster.cli.views.progress import ProgressView
    from muster.cli.views.results import print_answers
    from muster.core.units import counted
    from muster.inputs.read import read_inputs
    from muster.runs.afterwards import answers_of
    from muster.runs.train import train
    from muster.store.runfolder import new_run_folder

    console = err_console()
    hosts, _, changes = split_words(words, hosts)
    inputs = read_inputs("demo", hosts or "local:2x1", changes)
    gpus = gpu_files(usable=False)
    if gpus and inputs.recipe.launch.device == "cpu":
        console.print(
            f"The demo uses the CPUs and leaves {counted(gpus, 'GPU')} idle. "
            "One rank on a GPU: muster demo --hosts local:1 launch.device=cuda"
        )
    generated = getattr(inputs.recipe.data, "generated", None)
    if generated:
        console.print(
            f"A small T5 learns from scratch to translate {generated.train} generated questions into SQL "
            "over real SQLite tables,\n"
            f"with DeepSpeed ZeRO-{inputs.recipe.engine.zero} "
            f"on {len(inputs.inventory.hosts)} pretend hosts of this machine;\n"
            f"then it answers {generated.validation} questions that it has never seen, "
            "and both its SQL and the expected SQL are executed:\n"
            "an answer is right where the rows are the same."
        )
    run = new_run_folder(root, workload="demo", model="t5")
    with ProgressView(console) as view:
        view.now("asking the hosts, and planning")
        result = train(inputs, run, watch=view, announce=view.announce)
    if not json:
        print_answers(answers_of(run, 5))
    return finish(result, run, json=json)
