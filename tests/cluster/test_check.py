"""`muster check` on three hosts, with faults planted: the host and the problem are named, and a
healthy cluster gives no warning."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import refuse
from tests.cluster.namespaces import command, tool
from tests.support import needs_torch

pytestmark = [pytest.mark.cluster, pytest.mark.real_start, pytest.mark.timeout(280)]

HOSTS = "node1,node2,node3"
BAD = "node2"
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


def settings(cluster: Cluster) -> list[str]:
    return [
        f"launch.ssh_options=[-F, {cluster.ssh_config}]",
        f"launch.workdir={cluster.private_dir}/muster",
        f"launch.python={sys.executable}",
        "launch.connect_timeout=10",
    ]


def check(cluster: Cluster, *arguments: str, group: bool = False) -> tuple[int, dict[str, Any]]:
    """The real command line: exit code and document."""
    argv = [sys.executable, "-m", "muster", "check", HOSTS, "--json", *settings(cluster), *arguments]
    done = subprocess.run(
        [*argv, "--group" if group else "--no-group"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def troubles(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(check, level, hosts) of everything that is not well; what could not be found out here is left out."""
    found = [(each["check"], each["level"], each["hosts"]) for each in document["troubles"]]
    return [each for each in found if each[1] != "unknown"]


def on_bad(cluster: Cluster, line: str) -> None:
    """A line of the login shell's file that the bad host alone obeys."""
    with cluster.bashrc.open("a", encoding="utf-8") as file:
        file.write(f'[ "$(uname -n)" != {BAD} ] || {{ {line}; }}\n')


def lower_limit(cluster: Cluster) -> None:
    on_bad(cluster, "ulimit -n 64")


def print_at_login(cluster: Cluster) -> None:
    on_bad(cluster, "echo Welcome to the best host of all")


def shift_clock(cluster: Cluster) -> None:
    if not FAKETIME:
        refuse("libfaketime is not installed")
    on_bad(cluster, f"export LD_PRELOAD={FAKETIME[0]} FAKETIME=+90s FAKETIME_NO_CACHE=1")


def fill_disk(cluster: Cluster) -> None:
    inside(cluster, ["fallocate", "--length", "1000M", f"{cluster.private_dir}/ballast"])


def change_package(cluster: Cluster) -> None:
    """The bad host's interpreter has another version of one package."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = f"{cluster.private_dir}/other/lib/{version}/site-packages"
    base = Path(sys.executable).resolve()
    own = Path(sys.prefix) / "lib" / version / "site-packages"
    script = f"""set -e
mkdir -p {cluster.private_dir}/other/bin {site}
ln -s {base} {cluster.private_dir}/other/bin/python
printf 'home = {base.parent}\\n' > {cluster.private_dir}/other/pyvenv.cfg
cp -r {own}/*.dist-info {site}/
if [ "$(uname -n)" = {BAD} ]; then
  sed -i 's/^Version: .*/Version: 9.9.9/' {site}/accelerate-*.dist-info/METADATA
  mv {site}/accelerate-*.dist-info {site}/accelerate-9.9.9.dist-info
fi
"""
    for node in cluster.hosts:
        done = cluster.run(node, ["sh", "-c", script])
        assert done.returncode == 0, done.stderr


def block_port(cluster: Cluster) -> None:
    """Nothing from outside reaches a port above 20000: this kernel has policy routing, and no packet
    filter."""
    before = ["ip", "rule", "add", "pref", "100", "lookup", "local"]
    block = [
        "ip",
        "rule",
        "add",
        "pref",
        "10",
        "iif",
        "eth0",
        "ipproto",
        "tcp",
        "dport",
        "20000-65534",
        "blackhole",
    ]
    for argv in (before, block, ["ip", "rule", "del", "pref", "0"]):
        inside(cluster, argv)


def lower_mtu(cluster: Cluster) -> None:
    inside(cluster, ["ip", "link", "set", "dev", "eth0", "mtu", "1400"])


def shrink_shm(cluster: Cluster) -> None:
    inside(cluster, ["mount", "-o", "remount,size=8M", "/dev/shm"])


def stop_sshd(cluster: Cluster) -> None:
    """The listener is gone: connections are refused."""
    listeners = [each for each in cluster.processes(BAD) if each.name.startswith("sshd")]
    cluster.signal(BAD, min(each.pid for each in listeners), signal.SIGKILL)


def kill_host(cluster: Cluster) -> None:
    cluster.kill(BAD)


def inside(cluster: Cluster, argv: list[str]) -> None:
    done = cluster.run(BAD, [tool(argv[0]), *argv[1:]])
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Fault:
    plant: Callable[[Cluster], None]
    check: str
    level: str
    says: str  # within the problem, the evidence or the remedy


# What one host can have at once: each is named apart, so that none hides another.
TOGETHER = [
    Fault(lower_limit, "limits.open_files", "fail", "64"),
    Fault(print_at_login, "login.noise", "warn", "Welcome to the best host"),
    Fault(shift_clock, "clock.skew", "fail", "s"),
    Fault(fill_disk, "disk.space", "fail", "muster"),
    Fault(change_package, "versions.accelerate", "fail", "9.9.9"),
    Fault(lower_mtu, "network.mtu", "warn", "1400"),
    Fault(shrink_shm, "memory.shm", "warn", "8"),
]
APART = [
    Fault(block_port, "firewall.ports", "fail", ""),
    Fault(print_at_login, "login.noise", "warn", "Welcome to the best host"),
    Fault(stop_sshd, "host.reached", "fail", "refused"),
    Fault(kill_host, "host.reached", "fail", ""),
]


@pytest.mark.alone  # a busy machine is a warning on every host
@pytest.mark.parametrize(
    "faults", [TOGETHER, *([fault] for fault in APART)], ids=lambda faults: faults[0].plant.__name__
)
def test_planted_faults_are_named(faults: list[Fault], whole: Cluster) -> None:
    """The host, the problems, what was seen, and remedies; and nothing about the others."""
    python = [f"launch.python={whole.private_dir}/other/bin/python"] if faults is TOGETHER else []
    try:
        for fault in faults:
            fault.plant(whole)
        code, document = check(whole, *python)
    finally:
        restore(whole)
    for fault in faults:
        found = [each for each in document["troubles"] if each["check"] == fault.check]
        assert [(each["level"], each["hosts"]) for each in found] == [(fault.level, BAD)], troubles(document)
        assert fault.says in json.dumps(found)
        assert found[0]["remedy"]
    assert {hosts for _, _, hosts in troubles(document)} == {BAD}
    levels = {fault.level for fault in faults}
    wanted = "unfit" if "fail" in levels else "warning"
    if faults[0].check == "host.reached":
        wanted = "unreachable"
    verdicts = {host["host"]: host["verdict"] for host in document["hosts"]}
    assert verdicts == {"node1": "fit", BAD: wanted, "node3": "fit"}
    assert code == ("fail" in levels)


def restore(cluster: Cluster) -> None:
    """As the host was: a new boot undoes what was done inside it."""
    cluster.bashrc.write_text("", encoding="utf-8")
    if cluster.is_alive(BAD):
        cluster.kill(BAD)
    cluster.heal()


def test_a_changed_host_key_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Somebody else answers at that address, or the host was set up anew: ssh refuses, and we say at which
    stage."""
    command([tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")])
    public = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known = (cluster.base / "known_hosts").read_text().splitlines()
    changed = [f"{line.split()[0]} {public}" if line.startswith(BAD) else line for line in known]
    (tmp_path / "known_hosts").write_text("\n".join(changed) + "\n")
    config = tmp_path / "ssh_config"
    config.write_text(
        cluster.ssh_config.read_text().replace(
            str(cluster.base / "known_hosts"), str(tmp_path / "known_hosts")
        )
    )
    code, document = check(cluster, f"launch.ssh_options=[-F, {config}]")
    assert code == 1
    (host,) = [each for each in document["hosts"] if each["host"] == BAD]
    assert (host["verdict"], host["stage"]) == ("unreachable", "host key")
    assert "ssh-keygen" in json.dumps(document["troubles"])


@pytest.mark.alone
def test_a_healthy_cluster_gives_no_warning(whole: Cluster) -> None:
    """Nor does a group of ranks find anything."""
    needs_torch()
    code, document = check(whole, group=True)
    assert (code, troubles(document)) == (0, []), document["troubles"]
    assert document["summary"]["fit"] == 3
    levels = {each["check"]: each["level"] for each in document["hosts"][0]["checks"]}
    assert {level for name, level in levels.items() if name.startswith("gpu.")} == {"not applicable"}
    assert levels["fabric.values"] == "pass"


@pytest.mark.alone
def test_a_slow_link_is_named(whole: Cluster) -> None:
    """A tenth of the others' rate, seen by ranks that send to each other."""
    needs_torch()
    for node in whole.hosts:
        whole.shape(node, "20mbit" if node.name == BAD else "200mbit")
    code, document = check(whole, group=True)
    named = [each for each in document["troubles"] if each["check"].startswith("fabric.")]
    assert named and {each["hosts"] for each in named} == {BAD}, troubles(document)
    assert code == (1 if any(each["level"] == "fail" for each in named) else 0)


def test_the_fit_hosts_are_an_inventory(whole: Cluster, tmp_path: Path) -> None:
    """`--output` writes those that can be used; `--hosts` reads it."""
    whole.kill("node3")
    output = tmp_path / "fit.json"
    code, document = check(whole, "--output", str(output))
    assert code == 1 and document["summary"]["unreachable"] == 1
    argv = [sys.executable, "-m", "muster", "train", "demo", "--hosts", str(output), "--dry-run", "--json"]
    plan = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert [host["host"] for host in plan["hosts"]] == ["node1", "node2"]


def test_nothing_is_left_on_the_hosts(cluster: Cluster) -> None:
    check(cluster)
    for node in cluster.hosts:
        assert not [each for each in cluster.processes(node) if "muster-probe" in each.argv]
        listed = cluster.run(node, ["find", str(cluster.private_dir), "-name", "*.muster*"]).stdout
        assert not listed.strip()
