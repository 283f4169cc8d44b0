"""The README and docs/: every command is run, or says what it needs; no page is lost; lines and links hold.

`tests/pages.py` has the marks of fenced blocks. A command that cannot be run here is parsed by the real
command line, and is tried as a dry run where its verb has one.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import statistics
import struct
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from muster.cli import app as cli
from muster.core.batch import Batch
from muster.core.inventory import Host, inventory_document, read_inventory
from muster.core.recipe import Recipe
from muster.core.recipes import load_recipe
from muster.engines.base import merged
from muster.engines.deepspeed.config import deepspeed_config, fill_auto
from muster.workloads.causal_lm.spec import CausalLmRecipe
from muster.workloads.image_classification.spec import ImageRecipe
from muster.workloads.reward.spec import RewardRecipe
from muster.workloads.sft.spec import SftRecipe
from muster.workloads.text2sql.spec import TextToSqlData, TextToSqlRecipe
from tests.images import png, write_folder
from tests.pages import (
    NEEDS,
    PAGES,
    PROGRAMS,
    ROOT,
    Block,
    argv_of,
    blocks,
    offer,
    paragraphs,
    prose,
    write_files,
)
from tests.unit.test_peaks import checked, matmul

BLOCKS = [block for page in PAGES for block in blocks(page)]
CONSOLE = [block for block in BLOCKS if block.language == "console"]
VERBS: dict[str, Any] = {name: cli.app.get_command(None, name) for name in cli.VERBS}
# What the pages write for a name of the reader's own.
STANDS_FOR = {
    "HOSTS": "node1:8,node2:8", "RECIPE": "digits", "SUITE": "acceptance", "RUN": "last", "DIR": "logs",
    "N": "3",
}  # fmt: skip
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data of every kind that the pages read."""
    pairs = [json.dumps({"question": f"How many are {n}?", "sql": f"SELECT {n}"}) for n in range(100)]
    files = {f"wikisql/{part}.jsonl": "\n".join(pairs).encode() for part in ("train", "validation")}
    files |= {f"wikitext/{part}.txt": b"Some text to read.\n" * 400 for part in ("train", "validation")}
    for part in ("train", "test"):
        for label in range(10):
            files |= {f"cifar10/{part}/{label}/{n}.png": png(COLOURS[n], 32, 32) for n in range(3)}
    return write_folder(tmp_path_factory.mktemp("data"), files)


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder such as the pages assume: hosts, a recipe and data; no home but this."""
    rows = [f"How many are {n}?,SELECT {n}" for n in range(100)]
    files = {
        "hostfile": "node1 slots=8\nnode2 slots=8\n",
        "hosts.txt": "node1:8\nnode2:8\n",
        "nodes/4nodes.txt": "hostname-001\nhostname-002\nhostname-003\nhostname-004\n",
        "my.yaml": "inherit: digits\nmodel: {config: {hidden_size: 64}}\n",
        "my-gpt2.yaml": "inherit: causal-lm\n",
        "train.py": "print(1)\n",
        "fit.json": json.dumps(inventory_document([Host("node1", 8), Host("node2", 8)], "ssh")),
        "peaks.json": json.dumps(checked(matmul("node1", 700e12))),
        "pairs.csv": "\n".join(["question,sql", *rows]),
        "pairs.jsonl": "\n".join(
            json.dumps({"prompt": f"{n}?", "chosen": "y", "rejected": "n"}) for n in range(9)
        ),
        "chats.jsonl": "\n".join(json.dumps({"prompt": f"{n}?", "answer": "yes"}) for n in range(9)),
    }
    write_folder(tmp_path, {name: text.encode() for name, text in files.items()})
    (tmp_path / "data").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package that a page shows, if it shows one."""
    if (folder / "pyproject.toml").exists():
        offer(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", str(folder))  # hosts are asked for the package


def parsed(words: list[str], *, whole: bool = True) -> Any:
    """A verb's context, its words read by the real command line. `whole`: no argument may be missing."""
    assert words[0] in VERBS, f"muster has no verb {words[0]}"
    try:
        return VERBS[words[0]].make_context(words[0], list(words[1:]))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if whole or type(error).__name__ != "MissingParameter":
            pytest.fail(f"muster {' '.join(words)}: {error.format_message()}")


def tried(context: Any, words: list[str]) -> list[str] | None:
    """The words by which a command that needs more than this machine can be tried; None: there is no way."""
    verb, given = words[0], context.params
    if "--dry-run" in words and verb != "prepare":
        return words
    if verb in ("train", "bench") and not {"--continue", "model.name=last"} & set(words):  # need a run
        return [*words, "--dry-run"]
    if verb == "plan" and given.get("on"):
        return words
    return None


def called(words: list[str], block: Block, capsys: pytest.CaptureFixture[str]) -> int:
    """Run it in this process; plans without tracing the model, which takes seconds. -> its exit code."""
    words = [*words, "--quick"] if words[0] == "plan" else words
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    out, err = capsys.readouterr()
    assert ended.value.code != 2, f"{block.where}: muster {' '.join(words)}\n{err}"
    assert out or err
    return int(str(ended.value.code or 0))


@pytest.mark.parametrize("block", CONSOLE, ids=attrgetter("where"))
def test_commands(
    block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is run, or parsed and tried."""
    assert block.commands and block.needs <= NEEDS, f"{block.where}: needs {block.needs - NEEDS}"
    write_files(block.page, folder)
    installed(folder, monkeypatch)
    for command in block.commands:
        variables, words = argv_of(command)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if words[0] != "muster":
            other_program(words, block)
            continue
        words = [STANDS_FOR.get(word, word) for word in words[1:]]
        context = parsed(words)
        if words[0] == "check" and (output := context.params.get("output")):
            (folder / output).write_text("node1:8\nnode2:8\n")  # for the commands behind it
        if not block.needs:
            assert called(words, block, capsys) == 0, f"{block.where}: {command}"
        elif trial := tried(context, words):
            assert called(trial, block, capsys) in (0, 1), f"{block.where}: {command}"
        else:
            arguments_hold(context)


def arguments_hold(context: Any) -> None:
    """Hosts, a recipe and its overrides can be read."""
    given = context.params
    if given.get("recipe"):
        load_recipe(given["recipe"], list(given.get("overrides") or ()))
    if given.get("hosts") and not Path(given["hosts"]).suffix:
        read_inventory(given["hosts"], waits=True)


def other_program(words: list[str], block: Block) -> None:
    """What is there to be looked at of a command that is not muster's."""
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words[1:]), block.where
    elif words[0].startswith("python") and words[1].endswith(".py") and "/" in words[1]:
        assert (ROOT / words[1]).is_file(), f"{block.where}: {words[1]}"
    else:
        assert block.needs, f"{block.where}: {words[0]} is not muster's: say what it needs"


def test_commands_stand_in_their_blocks() -> None:
    """So that no command escapes for want of a mark."""
    for block in BLOCKS:
        if block.language in ("", "text"):
            first = {(line.split() or [""])[0] for line in block.text.splitlines()}
            assert not first & {"$", *PROGRAMS}, f"{block.where}: commands: ```console"
        else:
            assert block.language in ("console", "python", "yaml", "json", "toml", "csv"), block.where
    for page in PAGES:
        for number, line in prose(page):
            word = (line.removeprefix("    ").split() or [""])[0] if line.startswith("    ") else ""
            assert word not in ("$", *PROGRAMS), f"{page.name}:{number}: commands: ```console"


def test_the_picture_of_a_page(tmp_path: Path) -> None:
    """dev/report_picture.py gets one from a browser."""
    sys.path.insert(0, str(ROOT / "dev"))
    try:
        from report_picture import BROWSERS, PICTURE, photograph
    finally:
        sys.path.pop(0)
    assert PICTURE.read_bytes()[:4] == b"\x89PNG" and PICTURE.stat().st_size < 400_000
    if not any(shutil.which(name) for name in BROWSERS):
        pytest.skip("no browser")
    (tmp_path / "page.html").write_text("<h1>A page</h1>")
    photograph(tmp_path / "page.html", tmp_path / "page.png", 300, 200)
    assert (tmp_path / "page.png").read_bytes()[16:24] == struct.pack(">II", 300, 200)


def test_most_commands_are_run_or_tried(folder: Path) -> None:
    """What is only parsed is the smaller part."""
    run = parse = 0
    for block in CONSOLE:
        write_files(block.page, folder)
        for command in block.commands:
            words = [STANDS_FOR.get(word, word) for word in argv_of(command)[1]]
            if words[0] == "muster":
                done = not block.needs or tried(parsed(words[1:]), words[1:])
                run, parse = run + bool(done), parse + (not done)
    assert run > parse > 0


def test_commands_within_sentences() -> None:
    """`muster VERB ...` in the text names a verb and options that are there."""
    for page in PAGES:
        text = "\n".join(line for _, line in prose(page))
        for command in re.findall(r"`muster ([^`]+)`", text):
            _, words = argv_of(command.replace("\n", " "))
            words = [STANDS_FOR.get(word, word) for word in words if word != "..."]
            if not words or words[0] == "VERB" or words[0].startswith("-"):
                continue
            if words[-1].startswith("--"):  # an option that is named without its value
                known = [
                    name for each in VERBS[words[0]].params for name in (*each.opts, *each.secondary_opts)
                ]
                assert words[-1] in known, f"{page.name}: muster {command}"
            else:
                parsed(words, whole=False)


def test_commands_of_help_texts_and_shipped_files() -> None:
    """The examples of --help, and the comments of recipes and suites."""
    texts = [verb.epilog for verb in VERBS.values()]
    files = [*(ROOT / "src/muster/recipes").glob("*.yaml"), *(ROOT / "src/muster/suites").glob("*.yaml")]
    texts += [file.read_text(encoding="utf-8") for file in files]
    commands = [each for text in texts for each in re.findall(r"^[ #]+muster (.+)$", text, re.MULTILINE)]
    assert len(commands) > len(cli.VERBS)
    for command in commands:
        parsed(argv_of(re.sub(r" \(.*\)$", "", command))[1])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=attrgetter("where"))
def test_yaml(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a recipe can be read as one."""
    write_files(block.page, folder)
    installed(folder, monkeypatch)
    if re.search(r"^(inherit|workload):", block.text, re.MULTILINE) and "expect:" not in block.text:
        path = folder / "recipe-of-a-page.yaml"
        path.write_text(block.text)
        load_recipe(str(path), [])
    else:
        assert block.file or block.text.startswith("checkpoint:"), f"{block.where}: which file is it?"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=attrgetter("where"))
def test_python(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run; what needs more is compiled, and what it imports of Muster is there."""
    code = compile(block.text, block.where, "exec")
    if block.file:
        return  # the page's commands use it
    if not block.needs:
        write_files(block.page, folder)
        monkeypatch.syspath_prepend(str(folder))
        exec(code, {"__name__": "example"})
        return
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("muster"):
            module = importlib.import_module(str(node.module))
            for each in node.names:
                if not hasattr(module, each.name):
                    importlib.import_module(f"{node.module}.{each.name}")


def test_the_architecture_page_names_what_is_there() -> None:
    """Its tree has every room and no other, with the floors of pyproject.toml; its files exist."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "muster"
    tree = re.findall(r"^  ([a-z]+)/ +([0-9]+|-) ", text, re.MULTILINE)
    data = {"profiles", "recipes", "pipelines", "suites", "__pycache__"}
    assert sorted(name for name, _ in tree) == sorted(
        each.name for each in source.iterdir() if each.is_dir() and each.name not in data
    )
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    rooms = [[name.strip().removeprefix("muster.") for name in layer.split("|")] for layer in layers]
    floors = [sorted(names) for names in rooms if names != ["api"]]
    told: dict[str, list[str]] = {}
    for name, floor in tree:
        if floor != "-":
            told.setdefault(floor, []).append(name)
    assert [sorted(told[floor]) for floor in sorted(told, key=int, reverse=True)] == floors
    files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text)
    assert (
        files
        and [name for name in files if not (source / name).exists() and not (ROOT / name).exists()] == []
    )


def test_the_lines_that_load_a_model_are_those_that_a_run_prints() -> None:
    """Tests with real ranks run these (tests/support.py: the lines of a finished run)."""
    page = ROOT / "docs" / "using-the-model.md"
    shown = [ast.dump(ast.parse(block.text)) for block in blocks(page) if block.language == "python"]
    question = "How many singers are there?"
    kinds: tuple[tuple[type[Recipe], str, int], ...] = (
        (TextToSqlRecipe, TextToSqlData.model_fields["prefix"].default + question, 96),
        (CausalLmRecipe, "def main(", 64),
        (SftRecipe, question, 64),
        (RewardRecipe, "How are you? => Well.", 0),
        (ImageRecipe, "", 0),
    )
    for text, (kind, asked, new) in zip(shown, kinds, strict=True):
        lines = kind.loading_chat or kind.loading
        made = lines.format(model='"RUN/model"', question=json.dumps(asked), new=new, recipe=kind())
        assert text == ast.dump(ast.parse(made))


def test_each_auto_becomes_what_the_page_says(folder: Path) -> None:
    """docs/deepspeed-json.md: its file, and its table."""
    write_files(ROOT / "docs" / "deepspeed-json.md", folder)
    words = ["engine.name=deepspeed", "engine.config=ds.json", "train.max_steps=700", "train.warmup=0.1"]
    recipe = load_recipe("causal-lm", [*words, "train.beta2=0.9", "train.clip=0.3", "train.epsilon=1e-7"])
    recipe = merged(recipe)
    made = fill_auto(deepspeed_config(recipe, Batch(2, 8, 64), "fp16"), recipe, 128)
    assert made["optimizer"]["params"] == {"lr": 6e-4, "betas": [0.9, 0.9], "eps": 1e-7, "weight_decay": 0.1}
    schedule = {"warmup_min_lr": 0, "warmup_max_lr": 6e-4, "warmup_num_steps": 100, "total_num_steps": 700}
    assert made["scheduler"]["params"] == {**schedule, "warmup_type": "linear"}
    assert made["zero_optimization"]["reduce_bucket_size"] == 200_000_000  # the file's
    assert (made["gradient_clipping"], made["fp16"]["enabled"], made["bf16"]["enabled"]) == (0.3, True, False)
    assert (made["train_micro_batch_size_per_gpu"], made["gradient_accumulation_steps"]) == (2, 8)
    third = json.loads((folder / "ds.json").read_text())
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    third["zero_optimization"] = {"stage": 3, **dict.fromkeys(sizes, "auto")}
    (folder / "ds.json").write_text(json.dumps(third))
    zero = fill_auto(deepspeed_config(recipe, Batch(2, 8, 64), "fp16"), recipe, 128)["zero_optimization"]
    assert [zero[size] for size in sizes] == [128 * 128, int(0.9 * 128 * 128), 1280]
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True


def test_the_check_of_ones_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/own-check.md, installed as a package: it is listed, asked and judged, and its profile counts."""
    write_files(ROOT / "docs" / "own-check.md", folder)
    installed(folder, monkeypatch)

    def check(*words: str) -> str:
        with pytest.raises(SystemExit):
            cli.main(["check", *words])
        return capsys.readouterr().out

    assert "scratch.room" in check("--list")

    def found(*words: str) -> dict[str, Any]:
        (host,) = json.loads(check("local:1", "--no-group", "--json", *words))["hosts"]
        (one,) = [each for each in host["checks"] if each["check"] == "scratch.room"]
        return dict(one)

    by_profile = found("--profile", "our-nodes.yaml")
    assert by_profile["level"] == "pass" and "GB free at /" in by_profile["evidence"]
    assert found()["problem"] == "the scratch disk is not mounted"


def test_the_index_lists_every_page_once() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", index, re.MULTILINE) == ["Start", "How-to", "Reference", "Design"]
    listed = re.findall(r"^- \[[^\]]+\]\(([a-z0-9-]+\.md)\)", index, re.MULTILINE)
    pages = sorted(page.name for page in PAGES if page.parent.name == "docs" and page.name != "index.md")
    assert sorted(listed) == pages
    assert "docs/index.md" in PAGES[0].read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them in links."""
    heads = [line.lstrip("#").strip() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for number, line in prose(page):
        assert not line.startswith(("<<<<<<<", ">>>>>>>", "=======")), f"{page.name}:{number}: half a merge"
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if target.startswith(("http://", "https://")):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page.name}:{number}: {target}"
            assert not anchor or anchor in anchors(file), f"{page.name}:{number}: {target}"


def test_the_readme_has_every_verb() -> None:
    table = [line for _, line in prose(PAGES[0]) if line.startswith("| `muster ")]
    assert {verb for line in table for verb in re.findall(r"`muster ([a-z]+)", line)} == set(cli.VERBS)
    assert max(map(len, table)) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_and_paragraphs_are_short(page: Path) -> None:
    """Tables and output cannot be broken into lines; commands can."""
    long = [number for number, line in prose(page) if len(line) > 120 and not line.startswith("|")]
    assert not long, f"{page.name}: lines over 120 characters: {long}"
    for block in blocks(page):
        wide = [line for line in block.text.splitlines() if len(line) > 120]
        assert not wide or block.language in ("", "text"), f"{block.where}: {wide}"
    heavy = [(number, len(text.split())) for number, text in paragraphs(page) if len(text.split()) > 80]
    assert not heavy, f"{page.name}: paragraphs over 80 words (line, words): {heavy}"


def test_benchmarks_take_help_for_a_question() -> None:
    """And for no value of theirs."""
    for path in (ROOT / "benchmarks").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "sys.argv" not in text or "parse_args" in text, path.name
    script = ROOT / "benchmarks" / "demo_seeds.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage:"), done.stderr


def measured(name: str) -> Any:
    """What a benchmark has written."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_figures_are_those_of_the_benchmarks() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for row in measured("demo_seeds")["rows"]:
        share = f"{row['execution_match']:.1%} | {row['exact_match']:.1%}".replace("%", " %")
        assert f"| {row['seed']} | {share} | {row['seconds']} s | {row['samples_per_second']} |" in results
    for name, work in measured("overhead")["workloads"].items():
        for ratio in ("muster_to_bare", "muster_to_trainer"):
            low, middle, high = (work[ratio][key] for key in ("lower_quartile", "median", "upper_quartile"))
            assert f"{middle:.2f} ({low:.2f} to {high:.2f})" in results, name
    tracing = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    for row in measured("tracing")["rows"]:
        assert f"{statistics.median(row['seconds']):.1f} s" in tracing, row["model"]


def test_nothing_is_installed_from_an_index_that_lacks_it() -> None:
    """No index has Muster: pages, hints and help name the checkout, the wheel, or the packages themselves."""
    files = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.json")]
    assert not [path for path in files if re.search(r"pip install '?passmuster", path.read_text("utf-8"))]
