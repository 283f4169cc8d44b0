"""From a Node to a running host, and back to nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.warm import REAL

from .namespaces import TOOL_PATH, ClusterError, ip_batch, tool, unshare_argv
from .registry import ProcessId, end_process, identify
from .sshd import Endpoint, sshd_argv

BOOT_SECONDS = 30.0
INIT = Path(__file__).with_name("node_init.py")


@dataclass(frozen=True)
class Node:
    """One host. `link` is this machine's end of its cable, which hangs on the bridge."""

    name: str
    address: str
    mac: str
    link: str
    folder: Path

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.folder, self.name, self.address)

    def log_tail(self) -> str:
        logs = [self.folder / "boot.log", self.folder / "sshd.log"]
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())


@dataclass(frozen=True)
class Running:
    """A host's first process by this machine's PID, the `unshare` above it, the sshd by the host's own."""

    unshare: subprocess.Popen[str]
    init: ProcessId
    sshd: int = 0


@dataclass(frozen=True)
class Settings:
    """What the hosts of a cluster have in common."""

    base: Path
    private_dir: Path
    private_size: str
    bridge: str


def spawn(node: Node) -> Running:
    """Start the host's first process, which then waits for its link."""
    owner = os.pidfd_open(os.getpid())
    try:
        with (node.folder / "boot.log").open("ab") as log:
            process = subprocess.Popen(
                unshare_argv([REAL, "-I", "-S", str(INIT), str(owner)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                env={"PATH": TOOL_PATH},
                pass_fds=(owner,),
                start_new_session=True,  # a Ctrl-C is for the owner, which then takes the cluster down
            )
    finally:
        os.close(owner)
    try:
        init = identify(int(hear(node, process)["pid"]))
    except BaseException:
        process.kill()  # its child goes with it
        process.wait()
        raise
    if init is None:
        raise ClusterError(f"{node.name} ended as it began: {node.log_tail()}")
    return Running(process, init)


def hear(node: Node, process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that the host's first process says."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], BOOT_SECONDS)
    line = process.stdout.readline() if ready else ""
    if not line:
        raise ClusterError(f"{node.name} did not boot: {node.log_tail()}")
    said: dict[str, Any] = json.loads(line)
    return said


def plug_in(hosts: dict[Node, Running], bridge: str) -> None:
    """Give each host its eth0, the other end of which hangs on the bridge."""
    lines = []
    for node, running in hosts.items():
        peer = f"peer name eth0 address {node.mac} netns {running.init.pid}"
        lines.append(f"link add name {node.link} type veth {peer}")
        lines.append(f"link set dev {node.link} addrgenmode none")
        lines.append(f"link set dev {node.link} master {bridge}")
        lines.append(f"link set dev {node.link} up")
    ip_batch(lines)


def settle(node: Node, running: Running, settings: Settings) -> Running:
    """Tell the host who it is; on return its sshd has been started."""
    binds = [[str(settings.base / "hosts"), "/etc/hosts"]]
    if Path("/etc/ssh/ssh_config").is_file():  # so that a plain `ssh node2` works on node1
        binds.append([str(settings.base / "ssh_config"), "/etc/ssh/ssh_config"])
    bashrc = Path(pwd.getpwuid(0).pw_dir) / ".bashrc"
    if bashrc.is_file():
        binds.append([str(settings.base / "bashrc"), str(bashrc)])
    config = {
        "name": node.name,
        "scratch": str(node.folder / "scratch"),
        "private_dir": str(settings.private_dir),
        "private_size": settings.private_size,
        "binds": binds,
        "ip": tool("ip"),
        "ip_batch": [
            "link set dev lo up",
            "link set dev eth0 addrgenmode none",
            f"address add {node.address}/24 dev eth0",
            "link set dev eth0 up",
        ],
        "sshd": sshd_argv(node.endpoint),
        "sshd_log": str(node.folder / "sshd.log"),
    }
    process = running.unshare
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(config))
        process.stdin.close()
        sshd = int(hear(node, process)["sshd"])
    except BrokenPipeError as error:
        raise ClusterError(f"{node.name} did not boot: {node.log_tail()}") from error
    process.stdout.close()
    return Running(process, running.init, sshd)


def await_sshd(node: Node) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while True:
        try:
            with socket.create_connection((node.address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise ClusterError(f"the sshd of {node.name} does not answer: {node.log_tail()}")
        time.sleep(0.02)


def end(running: Running) -> None:
    """End every process of a host; on return the last one is gone."""
    end_process(running.init)
    running.unshare.wait(10)
    for stream in (running.unshare.stdin, running.unshare.stdout):
        if stream is not None and not stream.closed:
            with contextlib.suppress(BrokenPipeError):  # it ended before it was told who it is
                stream.close()
