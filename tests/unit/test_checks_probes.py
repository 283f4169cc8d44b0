"""Every family's probe as it runs on hosts: from its text, on old Pythons, without rights, on this
machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.agent import probe as program
from muster.checks.registry import families
from tests.unit.judging import ASK, NA, PASS, UNKNOWN, context, probed, transport

FAMILIES = families()
# An answer of a thousand hosts must fit into memory; bytes.
MOST = 16_000


def old_pythons() -> list[str]:
    """Interpreters older than the control side's own, as far as this machine has them."""
    found = [shutil.which(f"python3.{minor}") for minor in (8, 9, 10)]
    found += [str(path) for path in Path.home().glob(".pyenv/versions/3.[89].*/bin/python3")]
    return [path for path in found if path and "shims" not in path]


def script() -> str:
    """A program that asks every probe in both rounds and prints the answers, as text for any interpreter."""
    sources = {family.name: family.source for family in FAMILIES if family.source}
    asked = [[family.name for family in FAMILIES if family.asks], [f.name for f in FAMILIES if f.meets]]
    own = Path(program.__file__).read_text().replace("from .talk import Channel\n", "")
    return f"""{own}
spaces, first, second = {{}}, {{}}, {{}}
for name, source in {sources!r}.items():
    spaces[name] = {{"text": text, "run": run, "at_end": at_end}}
    exec(source, spaces[name])
for name in {asked[0]!r}:
    first[name] = spaces[name]["probe"]({ASK!r})
for name in {asked[1]!r}:
    second[name] = spaces[name]["probe_peers"](dict({ASK!r}, peers={{"a": first[name]}}))
while _endings:
    _endings.pop()()
print(json.dumps([first, second]))
"""


def run_script(argv: list[str], **env: str) -> list[dict[str, Any]]:
    more: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([*argv, "-I", "-S", "-"], input=script(), env={**os.environ, **env}, **more)
    assert done.returncode == 0, done.stderr[-2000:]
    rounds: list[dict[str, Any]] = json.loads(done.stdout)
    assert set(rounds[0]) == {family.name for family in FAMILIES if family.asks}
    return rounds


def test_the_probes_run_under_old_pythons() -> None:
    pythons = old_pythons()
    if not pythons:
        pytest.skip("no older Python here")
    for python in pythons:
        first, second = run_script([python])
        assert second["firewall"] == {"reached": {}}
        code = "import platform; print(platform.python_version())"
        version = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
        assert first["versions"]["python"] == version


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_an_ordinary_user_gets_answers(tmp_path: Path) -> None:
    """Every probe answers without rights, and says what the user may not do."""
    python = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no interpreter that everybody may use")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python]
    first, _ = run_script(nobody, PATH="/usr/bin:/bin", HOME=str(home), PYTHONPATH="")
    assert first["limits"]["root"] is False and first["limits"]["may_lock"] is False
    kernels = [folder for folder in first["disk"]["folders"] if folder["use"] == "kernels"]
    assert kernels and not any(folder["writable"] for folder in kernels)


def test_a_host_like_this_one_is_healthy() -> None:
    """What this machine says is judged without a warning; other jobs that run here are its own business."""
    own = {family.name: probed(family.name, python=sys.executable) for family in FAMILIES if family.asks}
    assert all(len(json.dumps(answer)) < MOST for answer in own.values())
    reached = {"a": transport(clock_offset=0.01, clock_error=0.02)}
    for family in FAMILIES:
        if family.name == "fabric":
            continue  # its answers are those of ranks
        answers = {"a": own.get(family.name, {})}
        for finding in family.judge(answers, {}, context(transport=reached, slots={"a": 1})):
            if not finding.check.startswith("leftovers."):
                assert finding.level in (PASS, NA, UNKNOWN), finding


def test_probing_a_host_without_gpus_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has GPUs")
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.9\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError(f"starts {given}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for family in FAMILIES:
        if family.asks:
            probed(family.name, python=str(tmp_path / "bin" / "python"))
