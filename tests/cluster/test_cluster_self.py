"""The test cluster is what it claims to be."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import namespaces
from .cluster import Cluster, ClusterError
from .helpers import PATIENCE, inhabitants, ssh, wait_for
from .registry import is_alive

pytestmark = pytest.mark.cluster


class Session:
    """An ssh connection that echoes lines."""

    def __init__(self, cluster: Cluster, node: str, *argv: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            cluster.ssh_argv(node, argv or ["cat"]), stdin=pipe, stdout=pipe, bufsize=0
        )

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)

    def hears(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def listen(self) -> bytes:
        assert self.process.stdout is not None and self.hears(PATIENCE)
        return self.process.stdout.readline()

    def hangs(self) -> bool:
        """Neither a word nor an end."""
        return not self.hears(1.0) and self.process.poll() is None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def sleepers(cluster: Cluster, node: str, seconds: str) -> list[int]:
    return [each.pid for each in cluster.processes(node) if each.argv == ("sleep", seconds)]


def test_each_host_has_its_name(cluster: Cluster) -> None:
    assert [node.name for node in cluster.hosts] == ["node1", "node2", "node3"]
    for node in cluster.hosts:
        assert ssh(cluster, node.name, "hostname") == f"{node.name}\n"
        assert cluster.run(node, ["hostname"]).stdout == f"{node.name}\n"


def test_an_argument_arrives_as_it_was(cluster: Cluster) -> None:
    words = ["a b", "$HOME", "it's", "*", ""]
    assert ssh(cluster, "node1", "printf", "%s\\n", *words).split("\n")[:-1] == words
    assert cluster.run("node1", ["cat"], input="to and fro").stdout == "to and fro"


def test_root_s_bashrc_is_the_cluster_s(cluster: Cluster) -> None:
    if not Path("~root/.bashrc").expanduser().is_file():
        pytest.skip("root has no ~/.bashrc")
    cluster.bashrc.write_text("echo noise\n")
    try:
        assert ssh(cluster, "node1", "hostname") == "noise\nnode1\n"
    finally:
        cluster.bashrc.write_text("")
    assert ssh(cluster, "node1", "hostname") == "node1\n"


def test_hosts_reach_each_other_by_name(cluster: Cluster) -> None:
    talk = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 10).recv(4).decode())"
    for source in cluster.hosts:
        assert cluster.run(source, [sys.executable, "-c", talk, "127.0.0.1"]).stdout == "SSH-\n"
        for target in cluster.hosts:
            done = cluster.run(source, [sys.executable, "-c", talk, target.name])
            assert done.stdout == "SSH-\n", (source.name, target.name, done)
    assert ssh(cluster, "node1", "ssh", "node2", "ssh", "node3", "hostname") == "node3\n"


def test_host_keys_are_checked(cluster: Cluster) -> None:
    none = ["-o", "UserKnownHostsFile=/dev/null"]
    argv = cluster.ssh_argv("node1", ["true"])
    done = subprocess.run([argv[0], *none, *argv[1:]], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 255 and "Host key verification failed" in done.stderr


def test_a_network_of_its_own_in_sys_and_proc(cluster: Cluster) -> None:
    for node in cluster.hosts:
        assert set(cluster.run(node, ["ls", "/sys/class/net"]).stdout.split()) == {"lo", "eth0"}
        assert cluster.run(node, ["cat", "/sys/class/net/eth0/address"]).stdout.strip() == node.mac
        assert [each.pid for each in cluster.processes(node) if each.ppid == 0] == [1]


def test_local_disks_are_local(cluster: Cluster) -> None:
    before = set(cluster.private_dir.iterdir())  # other tests may have left theirs on this machine
    for node in cluster.hosts:
        ssh(cluster, node.name, "touch", str(cluster.private_dir / f"of-{node.name}"))
    for node in cluster.hosts:
        listed = ssh(cluster, node.name, "ls", str(cluster.private_dir)).split()
        assert [name for name in listed if name.startswith("of-")] == [f"of-{node.name}"]
    assert set(cluster.private_dir.iterdir()) == before


def test_processes_are_of_one_host(cluster: Cluster) -> None:
    with Session(cluster, "node2", "env", "MUSTER_MARK=a=b", "sleep", "4242"):
        wait_for("the sleep", lambda: len(sleepers(cluster, "node2", "4242")) == 1)
        (pid,) = sleepers(cluster, "node2", "4242")
        (process,) = [each for each in cluster.processes("node2") if each.pid == pid]
        assert process.environ["MUSTER_MARK"] == "a=b" and process.name == "sleep" and process.ppid > 1
        assert not sleepers(cluster, "node1", "4242") and not sleepers(cluster, "node3", "4242")
        cluster.signal("node2", pid, signal.SIGKILL)
        wait_for("its end", lambda: not sleepers(cluster, "node2", "4242"))


def test_a_run_that_times_out_ends_on_the_host(cluster: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("node1", ["sh", "-c", "sleep 4343; true"], timeout=1)
    wait_for("its end", lambda: not sleepers(cluster, "node1", "4343"))


def test_cut_is_silent_and_mend_restores(whole: Cluster) -> None:
    with Session(whole, "node2") as session:
        session.say(b"before\n")
        assert session.listen() == b"before\n"
        whole.cut("node2")
        session.say(b"during\n")
        assert session.hangs()
        assert whole.run("node2", ["cat", "/sys/class/net/eth0/carrier"]).stdout == "1\n"
        assert ssh(whole, "node1", "hostname") == "node1\n"
        whole.mend("node2")
        assert session.listen() == b"during\n"
    assert ssh(whole, "node2", "hostname") == "node2\n"


def test_hosts_that_are_parted_reach_all_others(whole: Cluster) -> None:
    def reaches(one: str, other: str) -> bool:
        target = f"/dev/tcp/{whole.node(other).address}/22"
        return whole.run(one, ["timeout", "1", "bash", "-c", f"<{target}"]).returncode == 0

    whole.part("node1", "node2")
    assert not reaches("node1", "node2") and not reaches("node2", "node1")
    assert reaches("node1", "node3") and reaches("node3", "node2")
    assert ssh(whole, "node2", "hostname") == "node2\n"
    whole.heal()
    assert reaches("node1", "node2") and reaches("node2", "node1")


def test_a_cut_outlasts_the_boot_of_another_host(whole: Cluster) -> None:
    with Session(whole, "node1") as session:
        session.say(b"before\n")
        assert session.listen() == b"before\n"
        whole.cut("node1")
        whole.kill("node2")
        session.say(b"during\n")
        whole.revive("node2")
        assert session.hangs()
        whole.heal()
        assert session.listen() == b"during\n"


def test_kill_is_silent_and_revive_boots_the_same_host(whole: Cluster) -> None:
    ssh(whole, "node3", "touch", str(whole.private_dir / "gone"))
    node = whole.node("node3")
    key = keyscan(node.address)
    with Session(whole, "node3") as session:
        session.say(b"alive\n")
        assert session.listen() == b"alive\n"
        old = inhabitants(whole, "node3")
        whole.kill("node3")
        assert len(old) >= 4 and not any(map(is_alive, old))  # init, sshd, its session, cat
        assert whole.processes("node3") == [] and not whole.is_alive("node3")
        session.say(b"anyone?\n")
        assert session.hangs()
    with pytest.raises(ClusterError, match="node3 is dead"):
        whole.run("node3", ["true"])
    whole.revive("node3")
    assert keyscan(node.address) == key != ""
    assert ssh(whole, "node3", "hostname") == "node3\n"
    assert ssh(whole, "node3", "ls", str(whole.private_dir)) == ""
    with pytest.raises(ClusterError, match="node3 is alive"):
        whole.revive("node3")


def keyscan(address: str) -> str:
    argv = ["ssh-keyscan", "-t", "ed25519", address]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def test_heal_revives_a_host_that_died_by_itself(whole: Cluster) -> None:
    os.kill(whole.init_pid("node1"), signal.SIGKILL)
    wait_for("its end", lambda: not whole.is_alive("node1"))
    whole.heal()
    assert ssh(whole, "node1", "hostname") == "node1\n"


def test_shape_limits_both_directions(whole: Cluster) -> None:
    def limits() -> list[list[int]]:
        show = [namespaces.tool("tc"), "-json", "qdisc", "show", "dev"]
        outputs = [
            namespaces.command([*show, whole.node("node1").link]),
            whole.run("node1", [*show, "eth0"]).stdout,
        ]
        return [
            [each["options"]["rate"] for each in json.loads(text) if each["kind"] == "tbf"]
            for text in outputs
        ]

    whole.unshape("node1")
    assert limits() == [[], []]
    for rate, bytes_per_second in (("50mbit", 6_250_000), ("1gbit", 125_000_000)):
        whole.shape("node1", rate=rate)
        assert limits() == [[bytes_per_second], [bytes_per_second]]
    whole.unshape("node1")
    assert limits() == [[], []]


def test_drop_ssh_ends_connections_and_not_the_listener(cluster: Cluster) -> None:
    with Session(cluster, "node1", "sleep", "4444") as here, Session(cluster, "node2") as there:
        wait_for("the sleep", lambda: len(sleepers(cluster, "node1", "4444")) == 1)
        there.say(b"one\n")
        assert there.listen() == b"one\n"
        cluster.drop_ssh("node1")
        assert here.process.wait(PATIENCE) == 255
        there.say(b"two\n")
        assert there.listen() == b"two\n"
    assert ssh(cluster, "node1", "hostname") == "node1\n"
    for pid in sleepers(cluster, "node1", "4444"):  # sshd's death alone does not end what it ran
        cluster.signal("node1", pid, signal.SIGKILL)
    wait_for("its end", lambda: not sleepers(cluster, "node1", "4444"))


RANK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([2.0 ** dist.get_rank()] * 1000)
dist.all_reduce(total)
print(total.unique().tolist(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_three_ranks_reduce_over_the_network(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": cluster.hosts[0].address, "MASTER_PORT": "29511"}
    common |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank, node in enumerate(cluster.hosts):
        variables = [f"{key}={value}" for key, value in {**common, "RANK": str(rank)}.items()]
        argv = cluster.ssh_argv(node, ["timeout", "100", "env", *variables, sys.executable, str(script)])
        ranks.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert all(output.splitlines()[-1:] == ["[7.0]"] for output in outputs), outputs
