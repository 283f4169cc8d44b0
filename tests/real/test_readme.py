"""The README's commands, one after the other as they stand there, on a machine without a network."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.worker.data.sqlgen.generate import build
from tests.pages import ROOT, Block, argv_of, blocks, write_files
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

README = ROOT / "README.md"
# `make demo` and `make test` are what runs this; an installation has tests/real/test_wheel.py.
ELSEWHERE = ("make", "pip")
SHORT = ["train.max_steps=60", "launch.threads=1"]  # the page's own 1,200 steps take minutes
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def run_here(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command in a network namespace of its own, which has the loopback device alone; where that may not be
    made, with the hub switched off."""
    may = subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0
    alone = ALONE if may else []
    env = env if may else {**env, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [*alone, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )


def of_the_readers(block: Block) -> list[list[str]]:
    """The words of a block's commands, those of programs apart that set Muster up."""
    commands = [argv_of(command)[1] for command in block.commands]
    return [words for words in commands if words[0] not in ELSEWHERE]


def test_every_command_in_order(tmp_path: Path) -> None:
    needs_torch()
    write_files(README, tmp_path)
    build(tmp_path / "made", seed=3, train=300, validation=40)
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "sql"])
        for line in (tmp_path / "made" / "train.jsonl").read_text().splitlines():
            pair = json.loads(line)
            rows.writerow([pair["question"], pair["sql"]])
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT / "src")}
    env = {name: value for name, value in env.items() if not name.startswith(("HF_", "XDG_"))}
    done: list[str] = []
    for block in blocks(README):
        for words in of_the_readers(block) if block.language == "console" else []:
            assert words[0] == "muster", f"{block.where}: {words}"
            verb, *rest = words[1:]
            more = SHORT if verb == "train" and "--dry-run" not in rest else []
            ended = run_here([sys.executable, "-m", "muster", verb, *rest, *more], tmp_path, env)
            said = f"{block.where}: muster {verb}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
            # Hosts that a dry run cannot reach, or a plan of what does not fit, are answers too.
            assert ended.returncode in ((0, 1) if "--dry-run" in rest or verb == "plan" else (0,)), said
            assert "Traceback" not in ended.stderr and ended.stdout.strip(), said
            done.append(verb)
    assert done == ["train", "ask", "check", "train", "plan", "train"]
    assert len(list((tmp_path / "runs").glob("*/model/model.safetensors"))) == 2
