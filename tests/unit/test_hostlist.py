"""Folded host lists: what people see, and that they are read back as the very same hosts."""

from __future__ import annotations

import os
import shutil
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.hostlist import fold_hosts
from muster.core.inventory import parse_hosts

SAMPLES = [
    ([], ""),
    (["node1"], "node1"),
    (["node01", "node02", "node17"], "node[01-02,17]"),
    (["node17", "node02", "node01", "node02"], "node[01-02,17]"),
    (["node8", "node9", "node10", "node11"], "node[8-11]"),
    (["node08", "node09", "node10", "node11"], "node[08-11]"),
    (["node099", "node100", "node7"], "node7,node[099-100]"),
    (["node7", "node07"], "node07,node7"),
    (["head", "gpu2", "gpu1"], "gpu[1-2],head"),
    (["rack1-node1", "rack1-node2", "rack2-node1"], "rack1-node[1-2],rack2-node1"),
    (["n1.a.example", "n2.a.example", "n2.b.example"], "n[1-2].a.example,n2.b.example"),
    (["10.0.0.1", "10.0.0.2", "10.0.1.1"], "10.0.0.[1-2],10.0.1.1"),
    (["me@10.0.0.1", "me@10.0.0.2"], "me@10.0.0.[1-2]"),
    (["gpu1a", "gpu2a", "gpu2b"], "gpu[1-2]a,gpu2b"),
    (["[fe80::1]", "[fe80::2]"], "[fe80::1],[fe80::2]"),
    (["node10", "node9", "alpha"], "alpha,node[9-10]"),
]


@pytest.mark.parametrize(("names", "folded"), SAMPLES, ids=[folded for _, folded in SAMPLES])
def test_folded_as_people_write_it(names: list[str], folded: str) -> None:
    assert fold_hosts(names) == folded


NAMES = st.one_of(
    st.from_regex(r"(me@)?(node|n-|r1-g)[0-9]{1,11}[ab]?(\.x|\.x2)?", fullmatch=True),
    st.from_regex(r"[a-z0-9_]([a-z0-9_.\-]{0,8}[a-z0-9_])?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.integers(0, 120).map(lambda number: f"n{number}"),
    st.integers(0, 120).map(lambda number: f"n{number:02d}"),
).filter(lambda name: name != "local")


def one_per_label(names: list[str]) -> list[str]:
    return list({name.rpartition("@")[2]: name for name in names}.values())


@settings(max_examples=150)
@given(st.lists(NAMES, min_size=1, max_size=30).map(one_per_label), st.randoms(use_true_random=False))
def test_read_back_as_the_same_hosts_in_any_order(names: list[str], random: object) -> None:
    folded = fold_hosts(names)
    assert sorted(host.name for host in parse_hosts(folded).hosts) == sorted(names)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert fold_hosts(names + names[:1]) == folded


@given(st.lists(st.text(string.printable, max_size=12), max_size=8))
def test_any_text_is_folded_without_an_error(names: list[str]) -> None:
    assert isinstance(fold_hosts(names), str)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs Slurm's scontrol")
def test_slurm_reads_it_the_same_way(tmp_path: Path) -> None:
    names = ["node08", "node09", "node10", "node17", "gpu1", "gpu2", "head", "r1-n1", "r1-n2"]
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", fold_hosts(names)],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.split()) == sorted(names)


@pytest.mark.skipif(shutil.which("pdsh") is None, reason="needs pdsh")
def test_pdsh_reads_it_the_same_way() -> None:
    names = ["node08", "node09", "node10", "node17", "gpu1", "gpu2", "head", "r1-n1.x", "r1-n2.x"]
    argv = ["pdsh", "-R", "exec", "-w", fold_hosts(names), "echo", "%h"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert sorted(line.partition(": ")[2] for line in done.stdout.splitlines()) == sorted(names)
