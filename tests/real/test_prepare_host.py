"""`muster prepare` on this machine: real environments, interrupted, raced and damaged; a real warm-up job."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.prepare.host import own_uv
from tests.hub import hub
from tests.support import TINY, needs_torch, wait_until
from tests.wheels import by_host, environment, finish, make_wheel, prepare_argv, run_program, start

pytestmark = [pytest.mark.real, pytest.mark.real_start, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two tiny wheels in a folder with a space in its name, and the options that use them."""
    folder = tmp_path_factory.mktemp("wheels of two")
    make_wheel(folder, "tinya", "1.0")
    make_wheel(folder, "tinyb", "2.0", requires=["tinya"])
    (folder / "req.txt").write_text("tinyb==2.0\n")
    return ["--wheels", str(folder), "--requirements", str(folder / "req.txt"), "--no-warm"]


@pytest.fixture(scope="module")
def ready(wheels: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """A home folder that two pretend hosts share, prepared by two commands at once; and what they said."""
    home = tmp_path_factory.mktemp("home of both")
    both = [start(prepare_argv("local:2x1", *wheels), home) for _ in range(2)]
    ends = [finish(process) for process in both]
    assert [code for code, _, _ in ends] == [0, 0], ends
    return home, [document for _, document, _ in ends]


def venv_of(document: dict) -> Path:
    return Path(by_host(document)["local0"]["environment"]["python"]).parents[1]


def left_over(home: Path) -> list[int]:
    """Processes of this machine whose home is that folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"HOME={home}".encode() in (process / "environ").read_bytes():
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(process.name)] if state not in "ZX" else []
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int | None:
    """None: the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_hosts_and_commands_that_share_a_home_build_once(ready: tuple[Path, list[dict]]) -> None:
    """One builds, the others wait and verify; what was installed runs; nothing else is left."""
    home, (document, other) = ready
    environments = [report["environment"] for each in (document, other) for report in each["hosts"]]
    assert sorted(each["status"] for each in environments) == ["built", *["present"] * 3]
    assert len({each["digest"] for each in environments}) == 1
    python = str(venv_of(document) / "bin/python")
    said = subprocess.check_output(
        [python, "-I", "-c", "import tinya, tinyb; print(tinyb.VERSION)"], text=True
    )
    assert said == "2.0\n"
    assert document["use"] == [f"launch.python={python}"]
    assert not left_over(home)
    cache = home / ".cache/muster"
    filled = {path.relative_to(cache).parts[0] for path in cache.rglob("*") if path.is_file()}
    assert filled <= {"venvs", "bin"}  # neither parts nor contents nor folders of jobs


def test_a_second_time_nothing_is_done(ready: tuple[Path, list[dict]], wheels: list[str]) -> None:
    home, (before, _) = ready
    stamp = (venv_of(before) / "muster-complete.json").stat().st_mtime_ns
    code, document, said = finish(start(prepare_argv("local:2x1", *wheels), home))
    assert code == 0, said
    for report in document["hosts"]:
        assert report["environment"]["status"] == "present"
        assert report["copied"] == []
    assert (venv_of(document) / "muster-complete.json").stat().st_mtime_ns == stamp


@pytest.fixture
def slow_source(tmp_path: Path) -> list[str]:
    """A package whose wheel is made on the host, which takes as long as the test wants: until there is a
    file `go`."""
    folder = tmp_path / "slow package"
    folder.mkdir()
    wheel = make_wheel(folder, "slow", "1.0")
    backend = f"""
import pathlib, shutil, time
def build_wheel(folder, settings=None, metadata=None):
    while not pathlib.Path({str(tmp_path / "go")!r}).exists():
        pathlib.Path({str(tmp_path / "building")!r}).touch()
        time.sleep(0.05)
    return pathlib.Path(shutil.copy({str(wheel)!r}, folder)).name
"""
    project = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "slow"
version = "1.0"
"""
    texts = {
        "backend.py": backend,
        "pyproject.toml": project,
        "PKG-INFO": "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n",
    }
    index = tmp_path / "index" / "slow"
    index.mkdir(parents=True)
    with tarfile.open(index / "slow-1.0.tar.gz", "w:gz") as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(f"slow-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    (index / "index.html").write_text('<a href="slow-1.0.tar.gz">slow-1.0.tar.gz</a>')
    (tmp_path / "req.txt").write_text("slow==1.0\n")
    at = index.parent.as_uri()
    return ["--index", at, "--requirements", str(tmp_path / "req.txt"), "--no-warm"]


def test_ended_in_the_middle_and_done_again(slow_source: list[str], tmp_path: Path) -> None:
    """kill -9 of either side, then Ctrl-C, while the environment is half made: what is half is not taken for
    whole, no lock stays, nothing runs on, and at last it is built."""
    home = tmp_path / "home"
    home.mkdir()
    venvs = home / ".cache/muster/venvs"
    for victim in ("controller", "host", "nobody: Ctrl-C"):
        (tmp_path / "building").unlink(missing_ok=True)
        process = start(prepare_argv("local:1", *slow_source), home)
        assert wait_until(lambda: (tmp_path / "building").exists(), 120, every=0.02)
        if victim == "controller":
            process.kill()
            process.communicate()
        elif victim == "host":
            agents = [
                pid for pid in left_over(home) if b"muster-agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            # A child of it has its command line, until it has one of its own.
            (agent,) = [pid for pid in agents if parent_of(pid) not in agents]
            os.kill(agent, signal.SIGKILL)
            code, document, _ = finish(process)
            assert code == 1
            assert "was lost" in document["hosts"][0]["failure"]["what"]
        else:
            process.send_signal(signal.SIGINT)
            code, document, _ = finish(process)
            assert (code, document["error"]["message"]) == (1, "stopped by Ctrl-C")
        assert wait_until(lambda: not left_over(home), 20), left_over(home)
        assert not list(venvs.glob("*/muster-complete.json"))
    (tmp_path / "go").touch()
    code, document, messages = finish(start(prepare_argv("local:1", *slow_source), home))
    assert (code, document["hosts"][0]["environment"]["status"]) == (0, "built"), messages
    assert [path.suffix for path in venvs.iterdir() if not path.is_dir()] == [".lock"]
    assert len([path for path in venvs.iterdir() if path.is_dir()]) == 1


def test_a_host_without_uv_gets_it_or_uses_pip(
    wheels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    source = {path.name: path.read_bytes() for path in Path(wheels[1]).glob("*.whl")}
    order = {
        "environment": {**environment(tmp_path / "venv"), "requirements": "tinyb==2.0\n"},
        "wheels": {name: name for name in source},
    }

    def made(report: dict) -> tuple[str, int]:
        return report["environment"]["status"], len(report["environment"]["about"]["packages"])

    own = own_uv()
    offered = {"machine": platform.machine(), "digest": "uv"}
    assert run_program(tmp_path, "make", **order)["lacks"] == {"wheels": True}
    if own is not None:
        report = run_program(tmp_path, "make", **order, uv=offered)
        assert report["lacks"] == {"wheels": True, "uv": True}
        brought = {**source, "uv": own.read_bytes()}
        report = run_program(tmp_path, "make", brought, **order, uv=offered)
        assert made(report) == ("built", 2)
        assert (tmp_path / "cache dir/bin/uv").exists()
        assert not (tmp_path / "venv/bin/pip").exists()  # uv needs none
        shutil.rmtree(tmp_path / "cache dir")
        shutil.rmtree(tmp_path / "venv")
        shutil.rmtree(tmp_path / "job")
    report = run_program(tmp_path, "make", source, **order)
    assert made(report) == ("built", 3)
    assert (tmp_path / "venv/bin/pip").exists()


def test_a_changed_environment_is_found(
    ready: tuple[Path, list[dict]], wheels: list[str], tmp_path: Path
) -> None:
    """Somebody installs another version by hand: the package is named, with both versions."""
    home = tmp_path / "home"
    shutil.copytree(ready[0], home, symlinks=True)
    metadata = next((home / ".cache/muster").rglob("tinya-1.0.dist-info")) / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 9.9"))
    code, document, _ = finish(start(prepare_argv("local:1", *wheels), home))
    assert code == 1
    assert "tinya was 1.0 and is 9.9" in document["hosts"][0]["failure"]["what"]
    assert str(home) in document["hosts"][0]["failure"]["hint"]


def test_a_wheel_that_is_missing_is_named(tmp_path: Path) -> None:
    """uv's own words, and a remedy; what was half made is not marked as whole."""
    (tmp_path / "req.txt").write_text("tinyc==3.0\n")
    make_wheel(tmp_path / "w", "tinya", "1.0")
    options = ["--wheels", str(tmp_path / "w"), "--requirements", str(tmp_path / "req.txt"), "--no-warm"]
    options += ["--venv", str(tmp_path / "own place")]
    code, document, _ = finish(start(prepare_argv("local:1", *options), tmp_path))
    failure = document["hosts"][0]["failure"]
    assert (code, failure["host"]) == (1, "local")
    assert "tinyc==3.0" in failure["what"]
    assert "pip download" in failure["hint"]
    assert (tmp_path / "own place/bin/python").exists()
    assert not (tmp_path / "own place/muster-complete.json").exists()


@pytest.fixture
def tiny_model() -> Iterator[dict[str, bytes]]:
    yield {
        "config.json": b'{"model_type": "t5"}',
        "model.safetensors": os.urandom(5000),
        "tf_model.h5": b"no",
    }


def test_a_model_is_downloaded_once(tiny_model: dict[str, bytes], tmp_path: Path) -> None:
    """By real huggingface_hub, from a hub on loopback: what another framework needs is left out."""
    pytest.importorskip("huggingface_hub")
    with hub("org/tiny", tiny_model) as running:
        words = ["--no-env", "--no-warm", f"env.HF_ENDPOINT={running.address}"]
        words += [
            "model.name=org/tiny",
            "model.init=pretrained",
            "model.config=null",
            "model.tokenizer=train",
        ]
        for statuses in ({"downloaded", "present"}, {"present"}):
            code, document, messages = finish(start(prepare_argv("local:2x1", *words), tmp_path))
            assert code == 0, (document, messages)
            assert {each["copied"][0]["status"] for each in document["hosts"]} <= statuses
        assert running.fetched == {"config.json": 1, "model.safetensors": 1}
    assert "env.HF_HUB_OFFLINE=1" in document["use"]
    found = next((tmp_path / ".cache/huggingface/hub/models--org--tiny/snapshots").iterdir())
    assert (found / "model.safetensors").read_bytes() == tiny_model["model.safetensors"]


def test_the_warm_job_runs_once_for_a_machine(tmp_path: Path) -> None:
    """One real step by the recipe's own engine; a second time nothing; what it wrote on the host is gone."""
    needs_torch()
    (tmp_path / "disk").mkdir()
    words = ["--no-env", "--kernel-cache", str(tmp_path / "disk"), *TINY, "launch.threads=1"]
    for status in ("warmed", "present"):
        code, document, said = finish(start(prepare_argv("local:2x1", *words), tmp_path))
        assert code == 0, (document, said)
        assert [report["warm"]["status"] for report in document["hosts"]] == [status, "shared"]
    use = dict(line.removeprefix("env.").split("=") for line in document["use"])
    assert Path(use["TORCH_EXTENSIONS_DIR"]).is_dir()
    assert Path(use["TRITON_CACHE_DIR"]).is_relative_to(tmp_path / "disk")
    assert not list((tmp_path / ".cache/muster").glob("warm/*"))
    json.dumps(document)
