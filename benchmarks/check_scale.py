"""`muster check` against `pdsh ... true` over the same hosts in the same run.

    .venv/bin/python benchmarks/check_scale.py --hosts 1000
    .venv/bin/python benchmarks/check_scale.py --hosts 1000 --dead 50

The hosts are addresses of the loopback range, 127.0.1.1 and so on, and one private sshd answers on all of
them: client and servers share this machine's cores. Half of the dead ones refuse the connection; the others
take it and say nothing. Writes benchmarks/results/check_scale.json.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware import processor

RESULTS = Path(__file__).parent / "results"
CONNECT = 20  # seconds: Muster's default, and given to pdsh's ssh as well


@dataclass(frozen=True)
class Range:
    """The hosts, and how ssh reaches them."""

    hosts: list[str]
    refusing: list[str]
    silent: list[str]
    config: Path

    sshd: int  # its process id

    @property
    def dead(self) -> set[str]:
        return {*self.refusing, *self.silent}


def address(index: int) -> str:
    """127.0.1.1 ... 127.0.1.250, 127.0.2.1 ..."""
    return f"127.0.{1 + index // 250}.{1 + index % 250}"


def free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as holder:
        return int(holder.getsockname()[1])


@contextlib.contextmanager
def sshd(folder: Path, port: int, *, bare: bool) -> Iterator[int]:
    """A private sshd with keys of its own, on every address of this machine. -> its process id."""
    for name in ("host_key", "identity"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_text((folder / "identity.pub").read_text())
    (folder / "sshd_config").write_text(
        f"""\
Port {port}
AddressFamily inet
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized
AllowUsers {getpass.getuser()}@127.*
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 2000
LogLevel ERROR
"""
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where a root sshd locks itself in
    argv = ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
    if bare:
        hide = "for file in ~/.bashrc ~/.profile; do test ! -e $file || mount --bind /dev/null $file; done"
        argv = ["unshare", "--mount", "sh", "-c", f'{hide}; exec "$@"', "sh", *argv]
    daemon = subprocess.Popen(
        argv,
        stderr=(folder / "sshd.log").open("w"),
    )
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if daemon.poll() is not None:
                raise SystemExit("sshd does not start: " + (folder / "sshd.log").read_text())
            time.sleep(0.05)
        yield daemon.pid
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    """Takes connections and says nothing."""
    server = socket.create_server(("0.0.0.0", 0), backlog=1024)
    held = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(server.accept()[0])

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in held:
            connection.close()


def client_config(
    config: Path, folder: Path, ports: tuple[int, int, int], refusing: list[str], silent: list[str]
) -> None:
    """What both ssh clients read. Ports: sshd's, one that is closed, one where nobody speaks."""
    port, closed, mute = ports
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.*]:{port} {key}\n")
    parts = [f"Host {name}\n    Port {closed}\n" for name in refusing]
    parts += [f"Host {name}\n    Port {mute}\n" for name in silent]
    parts.append(
        f"""\
Host *
    Port {port}
    IdentityFile {folder}/identity
    IdentitiesOnly yes
    IdentityAgent none
    PreferredAuthentications publickey
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    BatchMode yes
    ConnectTimeout {CONNECT}
    ControlPath none
    LogLevel ERROR
"""
    )
    config.write_text("".join(parts))


@dataclass(frozen=True)
class Run:
    """What a command took; CPU seconds of its own processes, and of those that sshd has seen the end of."""

    seconds: float
    client_cpu: float
    server_cpu: float
    peak_rss_mib: float
    out: str
    err: str

    def figures(self) -> dict[str, float]:
        return {
            "seconds": round(self.seconds, 2),
            "client_cpu_seconds": round(self.client_cpu, 2),
            "server_cpu_seconds": round(self.server_cpu, 2),
            "peak_rss_mib": round(self.peak_rss_mib, 1),
        }


def children_cpu(pid: int) -> float:
    """CPU seconds of a process's ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def timed(argv: list[str], env: dict[str, str], sshd: int) -> Run:
    """Run a command to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = children_cpu(sshd)
        began = time.monotonic()
        process = subprocess.Popen(argv, stdout=out, stderr=err, env={**os.environ, **env})
        _, _, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        while Path(f"/proc/{sshd}/task/{sshd}/children").read_text().strip():
            time.sleep(0.1)  # the last sessions come to their end
        cpu = children_cpu(sshd) - before
        out.seek(0)
        err.seek(0)
        # wait4's peak is that of the largest of its processes, which is the controller.
        return Run(
            seconds,
            usage.ru_utime + usage.ru_stime,
            cpu,
            usage.ru_maxrss / 1024,
            out.read().decode(),
            err.read().decode(),
        )


def pdsh(hosts: list[str], reach: Range, fanout: int) -> Run:
    """`pdsh ... true` over the hosts."""
    argv = ["pdsh", "-R", "ssh", "-f", str(fanout), "-w", ",".join(hosts), "true"]
    done = timed(argv, {"PDSH_SSH_ARGS_APPEND": f"-F {reach.config}"}, reach.sshd)
    if "exited with exit code" in done.err:
        raise SystemExit(f"pdsh complains: {done.err[:500]}")
    return done


def muster(reach: Range, fanout: int) -> tuple[Run, dict[str, Any]]:
    """`muster check` over all hosts, and what it found."""
    argv = [sys.executable, "-m", "muster", "check", ",".join(reach.hosts), "--json", "--no-group"]
    argv += [f"launch.ssh_options=['-F', '{reach.config}']", f"launch.fanout={fanout}"]
    done = timed(argv, {}, reach.sshd)
    return done, json.loads(done.out)


def version(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    return ((done.stdout or done.stderr).strip().splitlines() or ["unknown"])[0]


def measure(reach: Range, fanout: int) -> dict[str, Any]:
    """All three runs. pdsh sees the living hosts alone, so that its time is that of `true`."""
    living = [host for host in reach.hosts if host not in reach.dead]
    theirs = {count: pdsh(living, reach, count) for count in {32: 0, fanout: 0}}
    ours, found = muster(reach, fanout)
    best = min(theirs.values(), key=lambda run: run.seconds)
    unreachable = {host["host"] for host in found["hosts"] if host["verdict"] == "unreachable"}
    return {
        "hosts": len(reach.hosts),
        "dead": {"refusing": len(reach.refusing), "silent": len(reach.silent)},
        "fanout": fanout,
        "connect_timeout": CONNECT,
        "pdsh": {f"fanout {count}": run.figures() for count, run in theirs.items()},
        "muster": ours.figures(),
        "ratio": round(ours.seconds / best.seconds, 3),
        "cpu_ratio": round((ours.client_cpu + ours.server_cpu) / (best.client_cpu + best.server_cpu), 3),
        "seconds_beyond_pdsh": round(ours.seconds - best.seconds, 2),
        "summary": found["summary"],
        "troubles": [
            f"{each['level']} {each['check']}: {each['problem']} on {each['count']}"
            for each in found["troubles"]
        ],
        "wrongly_judged": sorted(reach.dead ^ unreachable),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--dead", type=int, default=0)
    parser.add_argument("--fanout", type=int, default=64)
    parser.add_argument("--bare", action="store_true", help="logins without this user's shell files (root)")
    asked = parser.parse_args()
    hosts = [address(index) for index in range(asked.hosts)]
    dead = [hosts[index * len(hosts) // asked.dead] for index in range(asked.dead)]
    refusing, silent = dead[::2], dead[1::2]
    with tempfile.TemporaryDirectory() as name, silent_listener() as mute:
        folder, port, closed = Path(name), free_port(), free_port()
        config = folder / "ssh_config"
        with sshd(folder, port, bare=asked.bare) as pid:
            client_config(config, folder, (port, closed, mute), refusing, silent)
            row = measure(Range(hosts, refusing, silent, config, pid), asked.fanout)
    document = {
        "command": f"benchmarks/check_scale.py {' '.join(sys.argv[1:])}".strip(),
        "hardware": f"{os.cpu_count()} cores, {processor()}",
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {
            "python": platform.python_version(),
            "ssh": version("ssh", "-V"),
            "pdsh": version("pdsh", "-V"),
        },
        **row,
    }
    file = RESULTS / "check_scale.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    shell = ", bare logins" if asked.bare else ""
    kept[f"{asked.hosts} hosts, {asked.dead} dead{shell}"] = document
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(kept, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
