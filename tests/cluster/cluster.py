"""Cluster: a few hosts on this machine, each with its own name, network, process table, local disk and sshd.

    with Cluster(size=3) as cluster:
        subprocess.run(cluster.ssh_argv("node2", ["hostname"]))

The hosts share the machine's file system except for private_dir, /run, /dev/shm, /etc/hosts and root's
~/.bashrc. They reach each other by name, and this machine by address; nothing beyond. They end with the
process that owns the cluster, however it ends.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from . import boot, registry
from .boot import Node, Running, Settings
from .namespaces import (
    ClusterError,
    Process,
    command,
    delete_links,
    end_entered,
    enter_argv,
    ip_batch,
    process_table,
    tool,
    unavailable,
)
from .sshd import write_configuration

__all__ = ["Cluster", "ClusterError", "Node", "Process", "unavailable"]

# States of a bridge port. "Listening" passes no frame either way, and stays, for the bridge runs no spanning
# tree; the kernel makes a disabled or blocking port forward again at once.
DEAF, FORWARDING = "1", "3"
NOBODY = "02:4d:55:ff:ff:ff"  # no host has this MAC


class Cluster:
    """`size` hosts named node1, node2, ...

    Files (keys, logs, ssh_config) go to `base`; without one, to a folder that is removed with the cluster.
    """

    def __init__(self, size: int = 3, base: Path | None = None, private_size: str = "1g") -> None:
        if not 1 <= size <= 200:
            raise ValueError(f"a test cluster has 1 to 200 hosts, not {size}")
        self.size = size
        self._temporary = Path(tempfile.mkdtemp(prefix="muster-test-cluster-")) if base is None else None
        self.base = (self._temporary or Path(str(base))).resolve()
        self.private_dir = self.base / "local"
        self.ssh_config = self.base / "ssh_config"
        # Stands in for root's own ~/.bashrc, which bash reads at every ssh command: what that one does, such
        # as holding a lock in the shared home, would be cut short by kill(). Empty; a test may write into it.
        self.bashrc = self.base / "bashrc"
        self.hosts: list[Node] = []
        # Called with each host that has booted, the revived ones too: for daemons that a host is to have.
        self.on_boot: list[Callable[[Node], None]] = []
        self._private_size = private_size
        self._owner = os.getpid()
        self._entry: registry.Entry | None = None
        self._running: dict[str, Running] = {}

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Boot every host; on return each answers on its ssh port."""
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.private_dir.mkdir(parents=True, exist_ok=True)
        self._entry = registry.claim(self._temporary)
        number, bridge = self._entry.number, self._entry.bridge
        for index in range(1, self.size + 1):
            name, address = f"node{index}", f"10.77.{number}.{10 + index}"
            mac = f"02:4d:55:{number:02x}:00:{index:02x}"
            self.hosts.append(Node(name, address, mac, f"{bridge}n{index}", self.base / name))
        for node in self.hosts:
            (node.folder / "scratch").mkdir(parents=True)
        write_configuration(self.base, [node.endpoint for node in self.hosts])
        lines = [f"{node.address} {node.name}\n" for node in self.hosts]
        self.bashrc.write_text("", encoding="utf-8")
        (self.base / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines), encoding="ascii")
        ip_batch(
            [
                f"link add name {bridge} type bridge",
                f"link set dev {bridge} addrgenmode none",
                f"address add 10.77.{number}.1/24 dev {bridge}",
                f"link set dev {bridge} up",
            ]
        )
        self._boot(self.hosts)

    def close(self) -> None:
        """End every process and remove every link of the cluster. Harmless again, or in a forked child."""
        if os.getpid() != self._owner:
            return
        for name in list(self._running):
            self._end(name)
        entry = self._entry
        if entry is not None:
            delete_links([node.link for node in self.hosts] + [entry.bridge])
            registry.release(entry)
            self._entry = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        atexit.unregister(self.close)

    @property
    def number(self) -> int:
        """The N of this cluster's 10.77.N.0/24: no other cluster on this machine has it."""
        if self._entry is None:
            raise ClusterError("the cluster is not running")
        return self._entry.number

    @property
    def address(self) -> str:
        """This machine's address in the cluster's network."""
        return f"10.77.{self.number}.1"

    # What one does with a host.

    def node(self, name: str | Node) -> Node:
        for node in self.hosts:
            if name in (node, node.name):
                return node
        raise ClusterError(f"no {name} in this cluster of {[node.name for node in self.hosts]}")

    def ssh_argv(self, node: str | Node, argv: Sequence[str]) -> list[str]:
        """The ssh command that runs exactly `argv` on a host."""
        return [tool("ssh"), "-F", str(self.ssh_config), self.node(node).name, shlex.join(argv)]

    def run(
        self,
        node: str | Node,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        input: str | None = None,
        cwd: Path = Path("/"),
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a host's namespaces, past ssh. On a timeout its session is ended there too."""
        entered = enter_argv(self.init_pid(node), argv, cwd)
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            entered,
            stdin=subprocess.DEVNULL if input is None else pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=None if env is None else dict(env),
        )
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            end_entered(process)
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def processes(self, node: str | Node) -> list[Process]:
        """The process table of a host, its init and sshd included; empty for a dead host."""
        running = self._running.get(self.node(node).name)
        return [] if running is None else process_table(running.init.pid)

    def signal(self, node: str | Node, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process by the PID that its host knows it by."""
        done = self.run(node, [tool("kill"), f"-{int(number)}", str(pid)])
        if done.returncode != 0:
            raise ClusterError(f"{self.node(node).name}: {done.stderr.strip()}")

    def init_pid(self, node: str | Node) -> int:
        """This machine's PID of a host's first process: /proc/<it>/ns are the host's namespaces."""
        return self._alive(self.node(node)).init.pid

    def is_alive(self, node: str | Node) -> bool:
        running = self._running.get(self.node(node).name)
        return running is not None and registry.is_alive(running.init)

    def cut(self, node: str | Node) -> None:
        """Drop every frame to and from a host. Nobody is told: no RST, no FIN, and the carrier stays on."""
        self._alive(self.node(node))
        self._set_port(self.node(node), DEAF)

    def mend(self, node: str | Node) -> None:
        """Undo cut()."""
        self._alive(self.node(node))
        self._set_port(self.node(node), FORWARDING)

    def part(self, one: str | Node, other: str | Node) -> None:
        """Lead every packet between two hosts to nobody; all else goes on. heal() undoes it."""
        for here, there in ((one, other), (other, one)):
            wrong = ["lladdr", NOBODY, "nud", "permanent", "dev", "eth0"]
            self._inside(here, [tool("ip"), "neigh", "replace", self.node(there).address, *wrong])

    def shape(self, node: str | Node, rate: str = "50mbit", burst: str = "256kb") -> None:
        """Limit a host's link, in both directions each. `burst`: what goes at full speed after a pause."""
        limit = ["root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
        command([tool("tc"), "qdisc", "replace", "dev", self.node(node).link, *limit])
        self._inside(node, [tool("tc"), "qdisc", "replace", "dev", "eth0", *limit])

    def unshape(self, node: str | Node) -> None:
        """Undo shape(); without one it does nothing."""
        if " tbf " in command([tool("tc"), "qdisc", "show", "dev", self.node(node).link]):
            command([tool("tc"), "qdisc", "delete", "dev", self.node(node).link, "root"])
            self._inside(node, [tool("tc"), "qdisc", "delete", "dev", "eth0", "root"])

    def kill(self, node: str | Node) -> None:
        """A host dies as if its plug were pulled: every process at once, and not a packet to say so."""
        node = self.node(node)
        self._alive(node)
        self._set_port(node, DEAF)
        self._end(node.name)
        # Connections that nobody closed would keep the dead host's address on the link for a while.
        delete_links([node.link])

    def revive(self, node: str | Node) -> None:
        """Boot a killed host again, with the keys, name, address and MAC it had, and an empty local disk."""
        node = self.node(node)
        if self.is_alive(node):
            raise ClusterError(f"{node.name} is alive")
        self._boot([node])

    def drop_ssh(self, node: str | Node) -> None:
        """Kill a host's ssh sessions (the listener stays), so that their connections end."""
        listener = self._alive(self.node(node)).sshd
        sessions = [
            each for each in self.processes(node) if each.name.startswith("sshd") and each.pid != listener
        ]
        if sessions:  # one that ended in the meantime is fine, so the exit status does not matter
            self.run(node, [tool("kill"), "-KILL", *(str(each.pid) for each in sessions)])

    def heal(self) -> None:
        """Every host alive, every cable whole, no link shaped or parted: for tests that share a cluster."""
        for node in self.hosts:
            if self.is_alive(node):
                self.mend(node)
                self.unshape(node)
                self._inside(node, [tool("ip"), "neigh", "flush", "nud", "permanent", "dev", "eth0"])
        dead = [node for node in self.hosts if not self.is_alive(node)]
        if dead:
            self._boot(dead)

    # How it comes about.

    def _alive(self, node: Node) -> Running:
        if not self.is_alive(node):
            raise ClusterError(f"{node.name} is dead")
        return self._running[node.name]

    def _inside(self, node: str | Node, argv: Sequence[str]) -> None:
        done = self.run(node, argv)
        if done.returncode != 0:
            raise ClusterError(f"{self.node(node).name}: {list(argv)}: {done.stderr.strip()}")

    def _set_port(self, node: Node, state: str) -> None:
        ip_batch([f"link set dev {node.link} type bridge_slave state {state}"])
        now = Path(f"/sys/class/net/{node.link}/brport/state").read_text(encoding="ascii").strip()
        if now != state:
            raise ClusterError(f"the bridge port {node.link} is in state {now}, not {state}")

    def _boot(self, nodes: Sequence[Node]) -> None:
        entry = self._entry
        if entry is None:
            raise ClusterError("the cluster is not running")
        settings = Settings(self.base, self.private_dir, self._private_size, entry.bridge)
        for node in nodes:
            if node.name in self._running:  # it died without kill()
                self._end(node.name)
                delete_links([node.link])
            self._running[node.name] = boot.spawn(node)
        entry.inits = [running.init for running in self._running.values()]
        entry.write()
        boot.plug_in({node: self._running[node.name] for node in nodes}, entry.bridge)
        for node in nodes:
            self._running[node.name] = boot.settle(node, self._running[node.name], settings)
        for node in nodes:
            boot.await_sshd(node)
        for node in nodes:
            for hook in self.on_boot:
                hook(node)

    def _end(self, name: str) -> None:
        boot.end(self._running[name])
        del self._running[name]
