"""`train --dry-run`: what would run where, what fits, and nothing that is left to be filled in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli import main
from muster.core.recipes import load_recipe
from tests.support import TINY


@pytest.fixture(autouse=True)
def _closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `plan --quick`: tracing a model takes seconds, and has tests of its own."""
    monkeypatch.setattr("muster.planner.plan.tracer", lambda *_: None)


def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["train", *argv, "--runs", str(tmp_path / "runs"), "--dry-run"])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert not (tmp_path / "runs").exists()
    return int(ended.value.code or 0), shown.out, shown.err


def document(capsys: pytest.CaptureFixture[str], tmp_path: Path, *argv: str) -> dict[str, Any]:
    code, out, err = run(capsys, tmp_path, *argv, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


BATCH = ["batch.micro=2", "batch.accumulation=3", "batch.global=48"]


def test_hosts_are_said_with_their_own_numbers_of_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, tmp_path, "demo", "--hosts", "node1:4,node2:2,node3:2", *TINY, *BATCH)
    assert "node1 (4), node[2-3] (2 each)" in out
    assert "48 samples a step (2 x 3 x 8 ranks)" in out


def test_it_is_short_and_the_whole_order_is_a_word_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["demo", "--hosts", "local:2x1", *TINY]
    code, out, _ = run(capsys, tmp_path, *argv)
    assert code == 0
    assert len(out.splitlines()) <= 18
    for words in ("local[0-1]", "ZeRO-1", "fits", "--verbose"):
        assert words in out
    code, whole, _ = run(capsys, tmp_path, *argv, "--verbose")
    assert code == 0
    assert len(whole.splitlines()) > 100
    for words in ("muster.worker", "NODE_RANK=1", "OMP_NUM_THREADS=1", "train_batch_size"):
        assert words in whole


@pytest.mark.parametrize("hosts", ["local:2x1", "node1,node2"])
def test_every_value_of_the_order_is_filled_in(
    hosts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = document(capsys, tmp_path, "demo", "--hosts", hosts, *TINY)
    words = [word for host in plan["hosts"] for word in host["start"]]
    words += [word for each in plan["launch"] for word in each["command"]]
    assert not [word for word in words if word.startswith(("{", "<"))]
    start = plan["hosts"][1]["start"]
    assert Path(start[0]).is_absolute()
    environment = plan["hosts"][1]["environment"]
    assert int(environment["MASTER_PORT"]) > 0
    names = ("MASTER_ADDR", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")
    address = "127.0.0.1" if hosts.startswith("local") else "node1"
    assert [environment[name] for name in names] == [address, "2", "1", "1"]


def test_ranks_on_the_cpu_see_no_gpu_unless_the_recipe_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", "--hosts", "node1", *TINY]
    names = [f"{maker}_VISIBLE_DEVICES" for maker in ("CUDA", "HIP", "ROCR")]
    for device, more, expected in (
        ("cpu", [], ["", "", ""]),
        ("cpu", ["env.CUDA_VISIBLE_DEVICES='3'"], ["(hidden)", "", ""]),  # a value of the user's
        ("cuda", [], [None, None, None]),
    ):
        plan = document(capsys, tmp_path, *words, f"launch.device={device}", *more)
        assert [plan["hosts"][0]["environment"].get(name) for name in names] == expected


SMALL = ("opt-benchmark", "model.name=opt-8m", "batch.tokens=null")


def test_what_this_machine_cannot_hold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["batch.micro=1000000000", "launch.device=cpu"]
    code, out, err = run(capsys, tmp_path, *SMALL, "--hosts", "local:2x1", *more)
    assert (code, out) == (2, "")
    assert "memory" in err and "would fit" in err


def test_ranks_of_a_host_share_the_most_that_one_can_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["batch.micro=500000", "launch.device=cpu", "engine.name=ddp", "engine.zero=0"]
    assert run(capsys, tmp_path, *SMALL, "--hosts", "node1:1", *more)[0] == 0
    assert run(capsys, tmp_path, *SMALL, "--hosts", "node1:8", *more)[0] == 2


def test_what_was_not_counted_is_not_said_to_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small T5 is not traced before it starts: its memory has no activations."""
    words = ["demo", "--hosts", "local:1", *TINY]
    assert document(capsys, tmp_path, *words)["plan"]["memory"]["basis"] == "not counted"
    [memory] = [line for line in run(capsys, tmp_path, *words)[1].splitlines() if line.startswith("memory ")]
    assert "at least" in memory and "unknown" in memory


def test_a_port_that_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, tmp_path, "demo", "--hosts", "node1,node2", "launch.port=4711", *TINY)
    assert plan["hosts"][0]["environment"]["MASTER_PORT"] == "4711"


def test_a_models_folder_is_looked_for_on_the_machine_that_is_to_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    argv = ["causal-lm", "--hosts", "local:1", f"model.name={model}", "batch.micro=1"]
    code, _, err = run(capsys, tmp_path, *argv)
    assert (code, "no such folder" in err) == (2, True)
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1}')
    assert run(capsys, tmp_path, *argv, "model.init=random")[0] == 0
    code, _, err = run(capsys, tmp_path, *argv, "model.init=pretrained")
    assert (code, "has no weights" in err) == (2, True)
    assert run(capsys, tmp_path, *argv[:1], "--hosts", "node1", *argv[3:], "model.init=pretrained")[0] == 0


def test_a_host_file_that_nobody_named_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hostfile"
    file.write_text("nodeA slots=2\nnodeB slots=2\n")
    for module in ("core.inventory", "inputs.read"):
        monkeypatch.setattr(f"muster.{module}.MOUNTED", file)
    assert f"\nhosts       {file}: " in run(capsys, tmp_path, "digits")[1]
    assert (
        "\nhosts "
        not in run(capsys, tmp_path, "digits", "--hosts", str(file).replace("hostfile", "./hostfile"))[1]
    )


def test_texts_that_will_be_cut_are_said_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the tokenizer that will be trained, or by bytes where none can be had."""
    rows = [{"question": "word " * (200 if n % 2 else 3) + str(n), "answer": "yes"} for n in range(40)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = document(capsys, tmp_path, "seq2seq", "--hosts", "local:2x1", f"data.path={file}")
    (note,) = [each for each in told["plan"]["data"] if "data.max_source=96" in each]
    assert any(f"{count} of 38 inputs" in note for count in (18, 19, 20))
    assert not any("max_target" in each for each in told["plan"]["data"])
    rows = [{"prompt": f"p{n}", "answer": "word " * (400 if n else 3)} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = document(capsys, tmp_path, "sft", "--hosts", "local:2x1", f"data.path={file}")
    assert any("data.sequence=128" in each and "lose the end" in each for each in told["plan"]["data"])


def test_a_demo_of_this_machine_uses_the_gpus_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its precision, device and threads are no settings of a user's model."""
    for name in ("sft", "reward", "dpo", "seq2seq", "text2sql-wikisql", "digits", "vit-cifar10"):
        recipe = load_recipe(name)
        assert (recipe.precision, recipe.launch.device, recipe.launch.threads) == ("auto", "auto", None)
