"""The control side alone: the wheel in a new environment without torch runs all that needs no model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.real_start, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip install .` with the pinned versions, in a virtual environment of its own. -> its bin folder."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, str(ROOT)], check=True, timeout=240)
    return folder / "bin"


def run(installed: Path, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The installed `muster`, away from the repository."""
    return subprocess.run(
        [str(installed / "muster"), *argv], cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_control_side_without_torch(installed: Path, tmp_path: Path) -> None:
    """Recipes, dry runs, schemas and lists work; training says what is missing, where, and how to get it."""
    probe = subprocess.run(
        [str(installed / "python"), "-c", "import torch"], capture_output=True, check=False
    )
    assert probe.returncode != 0
    assert "muster" in run(installed, tmp_path, "--version").stdout
    plan = json.loads(
        run(installed, tmp_path, "train", "demo", "--hosts", "a:2,b:2", "--dry-run", "--json").stdout
    )
    assert plan["world_size"] == 4
    assert [each["command"][0] for each in plan["launch"]] == ["ssh", "ssh"]
    assert json.loads(run(installed, tmp_path, "schema", "recipe").stdout)["title"] == "Muster recipe"
    assert json.loads(run(installed, tmp_path, "ls", "--json").stdout) == []
    refused = run(installed, tmp_path, "train", "demo", "--hosts", "local:1")
    assert refused.returncode == 2
    assert "pip install torch" in refused.stderr and "passmuster" not in refused.stderr
