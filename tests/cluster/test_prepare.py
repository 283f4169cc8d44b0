"""`muster prepare` over ssh on three hosts with disks of their own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.support import TINY, needs_torch
from tests.wheels import by_host, finish, make_wheel, prepare_argv, start

pytestmark = [pytest.mark.cluster, pytest.mark.real_start, pytest.mark.timeout(280)]

NAMES = ["node1", "node2", "node3"]
DATA = b'{"question": "how many", "sql": "SELECT 1"}\n'

# Stands in for huggingface_hub on the hosts: fetches by writing the cache as the real one does.
FAKE_HUB = """
import os, pathlib
def list_repo_files(name):
    return ["config.json"]
def snapshot_download(name, **wanted):
    root = pathlib.Path(os.environ["HF_HOME"], "hub", "models--" + name.replace("/", "--"))
    snapshot = root / "snapshots" / "r1"
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "blobs" / "b1").write_text("{}")
    (root / "refs" / "main").write_text("r1")
    (snapshot / "config.json").symlink_to("../../blobs/b1")
    return str(snapshot)
"""

SUMS = """
import hashlib, json, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = [file for file in root.rglob("*") if file.is_file()]
print(json.dumps({str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}))
"""

PLANT = """
import pathlib, sys, tinya
for file in pathlib.Path(tinya.__file__).parent.glob("tinya-1.0*/METADATA"):
    file.write_text(file.read_text().replace(*sys.argv[1:]))
"""


class Fleet:
    """The cluster with what the tests of this file share: wheels, and a recipe's model and data."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.home = cluster, folder
        make_wheel(folder / "w", "tinya", "1.0")
        make_wheel(folder / "w", "huggingface_hub", "0.1", code=FAKE_HUB, requires=["tinya"])
        (folder / "req.txt").write_text("huggingface_hub==0.1\ntinya==1.0\n")
        # The hosts' own disks hide this machine's files below this folder.
        self.local = cluster.private_dir
        self.model, self.data = self.local / "a model", self.local / "sets/of data"
        self.model.mkdir()
        self.data.mkdir(parents=True)
        (self.model / "config.json").write_text('{"model_type": "t5"}')
        (self.model / "model.safetensors").write_bytes(os.urandom(3_000_000))
        (self.data / "train.jsonl").write_bytes(DATA * 1000 + DATA.replace(b"many", b"few"))
        (self.data / "$(touch x); validation.jsonl").write_bytes(DATA)

    def prepare(self, *words: str, hosts: str = ",".join(NAMES), env: bool = True) -> tuple[int, dict, str]:
        """The verb, to its end."""
        options = [
            "--wheels",
            str(self.home / "w"),
            "--requirements",
            str(self.home / "req.txt"),
            "--no-warm",
        ]
        settings = [
            f"launch.ssh_options=[-F, {self.cluster.ssh_config}]",
            f"launch.workdir={self.local}/cache",
            f"env.HF_HOME={self.local}/hf",
        ]
        return finish(start(prepare_argv(hosts, *(options if env else []), *settings, *words), self.home))

    def sums(self, node: str, path: Path) -> dict[str, str]:
        """The hashes of a folder's files as a host sees them."""
        done = self.cluster.run(node, ["python3", "-c", SUMS, str(path)])
        return dict(json.loads(done.stdout))

    def sums_here(self, path: Path) -> dict[str, str]:
        return {
            str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in path.rglob("*")
            if file.is_file()
        }


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    yield Fleet(cluster, tmp_path_factory.mktemp("prepare"))


@pytest.fixture(scope="module")
def prepared(fleet: Fleet) -> dict:
    """All three hosts, with a local model and data."""
    code, document, said = fleet.prepare(*recipe(fleet))
    assert code == 0, (document, said)
    return document


def recipe(fleet: Fleet) -> list[str]:
    return [f"model.name={fleet.model}", "model.config=null", f"data.path={fleet.data}"]


def test_three_hosts_are_the_same(fleet: Fleet, prepared: dict) -> None:
    """Each built its own environment; they are equal; model and data have arrived at the same paths."""
    hosts = by_host(prepared)
    assert list(hosts) == NAMES
    assert {report["environment"]["status"] for report in hosts.values()} == {"built"}
    assert len({report["environment"]["digest"] for report in hosts.values()}) == 1
    assert prepared["differences"] == []
    for node in NAMES:
        copied = {each["what"]: each["status"] for each in hosts[node]["copied"]}
        assert copied == {str(fleet.model): "copied", str(fleet.data): "copied"}
        for path in (fleet.model, fleet.data):
            assert fleet.sums(node, path) == fleet.sums_here(path) != {}
    (use,) = prepared["use"]
    python = use.removeprefix("launch.python=")
    done = fleet.cluster.run("node2", [python, "-I", "-c", "import tinya; print(tinya.VERSION)"])
    assert done.stdout == "1.0\n"


def test_a_second_time_nothing_is_done(fleet: Fleet, prepared: dict) -> None:
    code, document, said = fleet.prepare(*recipe(fleet))
    assert code == 0, said
    for report in document["hosts"]:
        assert report["environment"]["status"] == "present"
        assert [(each["status"], each["bytes"]) for each in report["copied"]] == [("present", 0)] * 2


def test_a_differing_package_is_found_and_named(fleet: Fleet, prepared: dict) -> None:
    """Planted on node2: found as a change of what was built, and against the majority of the hosts."""
    python = prepared["use"][0].removeprefix("launch.python=")
    fleet.cluster.run("node2", [python, "-c", PLANT, "Version: 1.0", "Version: 9.9"])
    try:
        code, document, _ = fleet.prepare()
        hosts = by_host(document)
        assert (code, [hosts[name]["status"] for name in NAMES]) == (1, ["prepared", "failed", "prepared"])
        assert "tinya was 1.0 and is 9.9" in hosts["node2"]["failure"]["what"]
        code, document, _ = fleet.prepare(f"launch.python={python}", "--no-env", "--no-warm", env=False)
        assert code == 1
        (found,) = document["differences"]
        assert (found["name"], found["majority"]) == ("tinya", "1.0")
        assert found["values"] == {"1.0": ["node1", "node3"], "9.9": ["node2"]}
        failure = by_host(document)["node2"]["failure"]
        assert "tinya: 1.0 on node[1,3]; 9.9 on node2" in failure["what"]
    finally:
        fleet.cluster.run("node2", [python, "-c", PLANT, "Version: 9.9", "Version: 1.0"])


def test_one_host_does_not_hold_up_the_others(whole: Cluster, fleet: Fleet, prepared: dict) -> None:
    """node3 is dead, and node2 has another file in the data's place: both are named, node1 gets ready."""
    target = fleet.data / "train.jsonl"
    whole.run("node2", ["sh", "-c", 'echo mine > "$1"', "sh", str(target)])
    whole.kill("node3")
    try:
        code, document, _ = fleet.prepare(*recipe(fleet), "launch.connect_timeout=4")
    finally:
        whole.run("node2", ["rm", str(target)])
    hosts = by_host(document)
    assert code == 1
    assert hosts["node1"]["status"] == "prepared"
    assert f"{target} differs" in hosts["node2"]["failure"]["what"]
    assert "cannot be reached" in hosts["node3"]["failure"]["what"]


def test_each_host_fetches_a_model_of_the_hub(fleet: Fleet, prepared: dict) -> None:
    """By its environment's own libraries; the second time nothing."""
    words = ["model.name=org/far", "model.init=pretrained", "model.config=null", "model.tokenizer=train"]
    for status in ("downloaded", "present"):
        code, document, messages = fleet.prepare(*words)
        assert code == 0, (document, messages)
        copied = [by_host(document)[node]["copied"][-1] for node in NAMES]
        assert [(each["what"], each["status"]) for each in copied] == [("model org/far", status)] * 3
    for node in NAMES:
        sums = fleet.sums(node, fleet.local / "hf/hub/models--org--far")
        assert set(sums) == {"blobs/b1", "refs/main", "snapshots/r1/config.json"}


def test_each_host_warms_its_own_kernels(fleet: Fleet) -> None:
    """One real step on each of two hosts, alone; what it wrote there is gone; the second time nothing."""
    needs_torch()
    words = ["--no-env", "--kernel-cache", str(fleet.local), *TINY, "launch.threads=1"]
    words += ["engine.name=ddp", "engine.zero=0"]
    for status in ("warmed", "present"):
        code, document, said = fleet.prepare(*words, hosts="node1:8,node2:8", env=False)
        assert code == 0, (document, said)
        assert [report["warm"]["status"] for report in document["hosts"]] == [status, status]
    for node in ("node1", "node2"):
        left = fleet.cluster.run(node, ["ls", f"{fleet.local}/cache/warm"]).stdout
        assert left == ""
        mode = fleet.cluster.run(node, ["stat", "-c", "%a", f"{fleet.local}/muster-0"]).stdout
        assert mode == "700\n"
