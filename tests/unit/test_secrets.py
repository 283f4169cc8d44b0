"""Values of variables, passwords and tokens: in no file or page that people share, and with the ranks all the
same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import RecipeError
from muster.core.inventory import frozen_inventory
from muster.core.printable import scrubbed, scrubbed_data
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.inputs.read import Inputs, check, inputs_of, read_inputs
from muster.reports.page import report
from muster.runs.dry_run import dry_run, format_dry_run
from muster.runs.recorder import Recorder
from muster.runs.requirements import needed
from muster.runs.resume import frozen_recipe
from muster.runs.submit import submit
from muster.runs.train import Attempt, agree, freeze
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.secrets import (
    completed,
    masked,
    masked_command,
    masked_program,
    masked_setup,
    masked_words,
    scrubber,
)
from muster.store.values import forget
from tests.shell import FakeShell

VALUES = {  # nothing but its name tells that some of these are secret
    "GITHUB_PAT": "pat-of-mine-1",
    "DATABASE_URL": "postgres://me:hunter2@db/x",
    "SSH_KEY": "key-of-mine-3",
    "WANDB_KEY": "0123456789abcdef0123456789abcdef01234567",
    "GREETING": "hello-from-4",
}
OPTION, SSH, SETUP = "option-value-5", "ssh-value-6", "setup-value-7"
EVERY = [*VALUES.values(), OPTION, SSH, SETUP, "hunter2"]


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    """Variables from all the places where they can be given."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    Path(".deepspeed_env").write_text("GITHUB_PAT=pat-of-mine-1\n")
    words = [
        *(f"env.{name}={value}" for name, value in VALUES.items() if name != "GITHUB_PAT"),
        f"launch.options=[-x, API={OPTION}, --tag-output]",
        f"launch.ssh_options=[-o, SetEnv=API={SSH}, -p, '2222']",
        "launch.launcher=openmpi",
        f"launch.setup=module load cuda; export API={SETUP} B='x y'",
        "env.NCCL_DEBUG=INFO",
        "env_show=[NCCL_DEBUG]",
    ]
    monkeypatch.setattr("sys.argv", ["muster", "train", "digits", "--hosts", "n1,n2", *words])
    return read_inputs("digits", "n1:1,n2:1", words)


def written(inputs: Inputs, folder: Path) -> tuple[RunFolder, dict]:
    """A run as it is written down before its start; and what the first host is sent."""
    run = RunFolder(folder)
    run.create()
    made = decided(inputs)
    freeze(run, inputs, made)
    return run, made.orders["n1"]


def holders(folder: Path) -> dict[str, list[str]]:
    """Files of a folder that hold a value, and which."""
    texts = {path.name: path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()}
    found = {name: [value for value in EVERY if value in text] for name, text in texts.items()}
    return {name: values for name, values in found.items() if values}


def test_nothing_of_a_run_folder_holds_a_value(inputs: Inputs, tmp_path: Path) -> None:
    run, order = written(inputs, tmp_path / "run")
    report(run)
    assert holders(run.path) == {}
    page = run.report.read_text()
    assert all(name in page for name in VALUES) and "INFO" in page  # names are told, and what env_show lists
    assert order["host"]["env"] == {**VALUES, "NCCL_DEBUG": "INFO"}  # the ranks have them
    assert not any(value in json.dumps(order["job"]) for value in EVERY)  # and spec.json, on hosts, does not


def test_a_resumed_run_has_them_again(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = written(inputs, tmp_path / "run")
    state = Path(os.environ["XDG_STATE_HOME"]) / "muster/values"
    key = frozen_recipe(run).env_kept
    assert key is not None
    assert (state.stat().st_mode & 0o777, (state / f"{key}.json").stat().st_mode & 0o777) == (0o700, 0o600)

    def again() -> Inputs:
        return check(frozen_recipe(run), frozen_inventory(run.read_json(run.job)["inventory"], "job.json"))

    assert (again().env, again().recipe.launch) == (inputs.env, inputs.recipe.launch)
    freeze(run, again(), decided(again()))
    assert frozen_recipe(run).env_kept == key and again().env == inputs.env  # and a third attempt

    forget(key)  # another machine
    with pytest.raises(RecipeError, match="has no value") as caught:
        again()
    assert caught.value.where == "env.DATABASE_URL"
    for name, value in {**VALUES, "API": OPTION, "B": "x y"}.items():
        monkeypatch.setenv(name, value)
    assert again().env == inputs.env
    assert again().recipe.launch.options == inputs.recipe.launch.options
    assert again().recipe.launch.setup == f"module load cuda; export API={OPTION} B='x y'"


def decided(inputs: Inputs):  # type: ignore[no-untyped-def]
    """With its start orders."""
    return agree(inputs, RunFolder(Path("run")), facts_of(inputs), Attempt())


def facts_of(inputs: Inputs) -> dict:
    """What hosts without GPUs say of themselves."""
    about = {"gpus": [], "cores": 2, "python": "python3", "address": "n1", "port": 1}
    about |= {"shared": True, "versions": dict.fromkeys(needed(inputs.recipe), "1")}
    return {host.label: about for host in inputs.inventory.hosts}


def test_a_variable_without_a_value_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "mine")
    assert read_inputs("digits", "local:1", ["env.HF_TOKEN=null"]).env == {"HF_TOKEN": "mine"}
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RecipeError, match="has no value"):
        read_inputs("digits", "local:1", ["env.HF_TOKEN=null"])


def test_a_dry_run_shows_names(inputs: Inputs, tmp_path: Path) -> None:
    """And which file sets what, as the plan of a start does: ~/.deepspeed_env or the one here."""
    plan = dry_run(inputs, RunFolder(tmp_path / "run"))
    for text in (json.dumps(plan), format_dry_run(plan, verbose=True)):
        assert [value for value in EVERY if value in text] == []
        assert "WANDB_KEY" in text and "INFO" in text
    run, _ = written(inputs, tmp_path / "other")
    for text in (format_dry_run(plan), run.plan.read_text()):
        assert f"set by {Path.cwd()}/.deepspeed_env" in text


def test_a_batch_job_reads_them_where_they_are_kept(tmp_path: Path) -> None:
    given = read_inputs("digits", "slurm:/2x1", ["env.SSH_KEY=key-of-mine-3"], waits=True)
    run = RunFolder(tmp_path / "run")
    FakeShell(answer_run=lambda argv: (0, b"77\n", b"")).use()
    submit(given, run)
    assert holders(run.path) == {}
    assert read_inputs(str(run.submitted_recipe), "local:1", []).env == {"SSH_KEY": "key-of-mine-3"}


def test_logs_and_events_are_masked(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    token = "ghp_0123456789abcdefghijABCDEFGHIJ"
    said = f"clone https://me:hunter2@host/x with {token}; my_pw=key-of-mine-3; HF_TOKEN='abc\"d' and \\ kept"
    with Recorder(run, 1, lambda event: None, scrubber(VALUES)) as recorder:
        recorder.log("n1", 0, [said, "the loss is 0.5, lone \ud800 half"])
        recorder.event("n1", json.dumps({"v": 1, "kind": "failed", "time": 1.0, "what": said, "rank": 0}))
    assert holders(run.path) == {} and token not in (
        run.events.read_text() + run.rank_log("n1", 0).read_text()
    )
    (event,) = events.read_events(run.events)
    assert isinstance(event, events.Failed)
    assert event.what.startswith(
        "clone https://me:(hidden)@host/x with ghp_(hidden); my_pw=(hidden); HF_TOKEN='("
    )
    assert event.what.endswith(" and \\ kept")
    assert "the loss is 0.5" in run.rank_log("n1", 0).read_text()


def test_a_password_in_a_variable_that_is_shown_is_not() -> None:
    env = {"http_proxy": "http://me:hunter2@proxy:80", "HF_TOKEN": "abc", "N": None}
    assert masked(env, ["http_proxy", "N"]) == {
        "http_proxy": "http://me:(hidden)@proxy:80", "HF_TOKEN": "(hidden)", "N": "(hidden)",
    }  # fmt: skip
    upper = scrubbed_data(["my-own", {"a": ["my-own"]}], lambda text: text.upper())
    assert upper == ["MY-OWN", {"a": ["MY-OWN"]}]


SAME = [
    ["--pad_token", "<pad>", "--max-token", "512", "--use_auth_token", "True"],
    ["data.prompt_key=prompt", "LR=0.1", "--tokenizer", "gpt2", "--token", "--lr"],
    ["--api_key"],
    ["python", "-u", "x.py"],
    ["--key", "input_ids"],
    ["--auth", "none"],
]
BASH = ["bash", "-c", "export HF_TOKEN=hunter2; python x.py --secret hunter2 --lr 1 && y"]


@pytest.mark.parametrize(
    ("mask", "words", "shown"),
    [
        (masked_words, "-x|token=abc", "-x|token=(hidden)"),
        (masked_words, "--export=ALL,A=1,B=2", "--export=ALL,A=(hidden),B=(hidden)"),
        (masked_words, '-o|SetEnv=A="b c" B=d', "-o|SetEnv=A=(hidden) B=(hidden)"),
        (masked_words, "-o|ProxyCommand=sshpass -p pw ssh x", "-o|ProxyCommand=sshpass -p (hidden) ssh x"),
        *((masked_words, each, each) for each in ("--gres=gpu:8", "-p|2222", "-F|/a", "--mca|x|y")),
        # Of a command: arguments whose names say it; a tokenizer's tokens and a data set's keys are none.
        *(
            (masked_program, words, words.replace("hunter2", "(hidden)").replace("aB3" * 8, "(hidden)"))
            for words in (
                "x.py|--api_key|hunter2", "--hub-token=hunter2", "+trainer.logger.wandb_key=hunter2",
                '{"password": "hunter2", "n": 3}', "|".join(BASH), "curl|https://me:hunter2@host/x",
                "curl|-u|me:hunter2|host", "--aws_session_token|hunter2", "logger.wandb.key=hunter2",
                f"--cluster-key|{'aB3' * 8}", *("|".join(words) for words in SAME),
            )
        ),
        (masked_program, "-H|Authorization: Bearer hunter2", "-H|Authorization: (hidden)"),
    ],
)  # fmt: skip
def test_words_of_launchers_and_commands(mask: Any, words: str, shown: str) -> None:
    assert mask(words.split("|")) == shown.split("|") == mask(shown.split("|"))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("export A=b; echo done", "export A=(hidden); echo done"),
        ("A=1&&B=2|cat", "A=(hidden)&&B=(hidden)|cat"),
        ("export A='x;y'\"z w\"v\\ u; conda activate c", "export A=(hidden); conda activate c"),
        ("export A=$(cat key; id $(x)) B=`cat key`; true", "export A=(hidden) B=(hidden); true"),
        ("A=(p q) cmd", "A=(hidden) cmd"),
    ],
)
def test_a_line_of_bash_keeps_its_commands(line: str, shown: str) -> None:
    """What follows a variable is still a command of its own, when the values are filled in again."""
    assert masked_setup(line) == shown and masked_setup(shown) == shown
    recipe = {"env": {}, "launch": {"options": [], "ssh_options": [], "setup": shown}}
    filled = completed(recipe, {}, {"A": "1 2", "B": "3"})["launch"]["setup"]
    assert filled == shown.replace("A=(hidden)", "A='1 2'").replace("B=(hidden)", "B=3")


@pytest.mark.parametrize(
    ("scrub", "text", "shown"),
    [
        pytest.param(
            scrubber({"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghi"}), "abcdef, abcdefghi!",
            "(hidden), (hidden)!", id="a value that another begins with leaves no rest",
        ),
        pytest.param(
            scrubber({}, ["x.py", "--password", "hunter2", "--pin=1", "bash -c 'A_KEY=sesame1 y'"]),
            "args: ['hunter2', 1], sesame1", "args: ['(hidden)', 1], (hidden)", id="printed arguments",
        ),
        pytest.param(
            scrubbed, "redis://:hunter2@cache:6379/0", "redis://:(hidden)@cache:6379/0", id="no user's name"
        ),
        pytest.param(
            scrubbed, f"{Path('https://me:hunter2@host/data.csv')}: no such data",
            "https:/me:(hidden)@host/data.csv: no such data", id="a URL as a path: one slash less",
        ),
    ],
)  # fmt: skip
def test_what_a_text_hides(scrub: Callable[[str], str], text: str, shown: str) -> None:
    assert scrub(text) == shown


def test_a_command_keeps_its_secrets_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the run's folder holds them, and a resumed run has them again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["python3", "x.py", "--api_key", "hunter2", "run.secret=hunter2"]
    monkeypatch.setattr("sys.argv", ["muster", "run", "local:1", "--start", "rank", "--", *words])
    inputs = inputs_of({"workload": "command", "command": words, "run": {"start": "rank"}}, "local:1")
    made = agree(inputs, RunFolder(Path("run")), facts_of(inputs), Attempt())
    run = RunFolder(tmp_path / "run")
    run.create()
    freeze(run, inputs, made)
    report(run)
    assert made.orders["local"]["host"]["argv"][-5:] == words
    assert holders(run.path) == {} and "--api_key" in run.report.read_text()
    again = check(frozen_recipe(run), frozen_inventory(run.read_json(run.job)["inventory"], "job.json"))
    assert again.recipe.as_dict()["command"] == words
    forget(frozen_recipe(run).env_kept)
    with pytest.raises(RecipeError, match="arguments that were not written down"):
        check(frozen_recipe(run), frozen_inventory(run.read_json(run.job)["inventory"], "job.json"))


@pytest.mark.parametrize("text", ["env=[hunter2]", "env=FOO=hunter2", "env.FOO={a: hunter2}"])
def test_variables_of_another_shape_are_not_repeated(text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe("demo", [text])
    assert "env" in str(refused.value) and "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "hf_hub_download of https://huggingface.co/a@b", "task-1234567890abcdefghijkl", "MAX_TOKENS=512 KEY",
        "TOKENIZERS_PARALLELISM=(true | false)", "commit 0123456789abcdef0123456789abcdef01234567",
        "ssh://git@github.com:22/x", "sk-learn-intelex-and-more", "loss=0.5: 12 tokens/s", "a://b c:d@e",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert scrubbed(text) == text and scrubber({"HF_TOKEN": "abc"})(text) == text


def test_recipes_of_earlier_versions_are_read() -> None:
    """Their folders hold values: they go on as they are."""
    assert recipe_from({"env": {"A": "b", "N": 1}}).env == {"A": "b", "N": "1"}


def test_no_way_of_setting_a_variable_shows_its_value() -> None:
    """Every option of a verb that takes NAME=VALUE, in each of its spellings, and overrides."""
    import click

    from muster.cli.app import app

    secret, ways, context = "hunter2-of-mine", [], click.Context(app)
    for verb in app.list_commands(context):
        found = app.get_command(context, verb)
        assert found is not None
        for option in found.params:
            for name in option.opts if "NAME[=VALUE]" in str(option.metavar) else ():
                ways += [[name, f"OWN={secret}"], [f"{name}={secret}"] if name.startswith("--") else []]
                ways += [[f"{name}=OWN={secret}" if name.startswith("--") else f"{name}OWN={secret}"]]
    ways = [way for way in ways if way and "OWN" in way[-1]]
    assert len(ways) >= 4
    ways += [[f"env.OWN={secret}"], [f"env={{OWN: {secret}}}"], [f"launch.setup=export OWN={secret}"]]
    for way in ways:
        shown = masked_command(["muster", "run", "local:2", *way, "--", "train.py", "-e", "script"])
        assert secret not in " ".join(shown) and "OWN" in " ".join(shown), way
        assert shown[-4:] == ["--", "train.py", "-e", "script"]
    kept = masked_command(["muster", "run", "-e", f"OWN={secret}", "-e", "epochs=3"], ["OWN"])
    assert kept[3] == f"OWN={secret}"
