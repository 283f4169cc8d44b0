"""Links, namespaces and process tables, by way of iproute2, util-linux and /proc."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("ip", "tc", "unshare", "nsenter", "setsid", "sshd", "ssh", "ssh-keygen")
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")


class ClusterError(RuntimeError):
    """The test cluster could not do what it was asked."""


@dataclass(frozen=True)
class Process:
    """One process, with the numbers by which its own host knows it."""

    pid: int
    ppid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    name: str
    state: str  # one letter, as in ps: R, S, D, T, Z


def tool(name: str) -> str:
    found = shutil.which(name, path=TOOL_PATH)
    if found is None:
        raise ClusterError(f"no {name} on this machine")
    return found


def command(argv: Sequence[str], text: str | None = None) -> str:
    """Run one of the machine's own tools and return its output."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{list(argv)} ended with {done.returncode}: {done.stderr.strip()} {text or ''}")
    return done.stdout


def unavailable() -> str | None:
    """Why there can be no test cluster here, or None where there can."""
    if os.geteuid() != 0:
        return "a test cluster needs root"
    missing = [name for name in TOOLS if shutil.which(name, path=TOOL_PATH) is None]
    if missing:
        return f"a test cluster needs {', '.join(missing)}"
    try:
        os.close(os.pidfd_open(os.getpid()))
        # In a throw-away namespace: whatever this makes is gone with the process.
        batch = "link add b0 type bridge\nlink add v0 type veth peer name v1\nlink set v0 master b0\n"
        command([tool("unshare"), *NAMESPACES, "--fork", "--mount-proc", tool("ip"), "-batch", "-"], batch)
    except (ClusterError, OSError, subprocess.SubprocessError, AttributeError) as error:
        return f"the kernel refuses namespaces: {error}"
    return None


def ip_batch(lines: Iterable[str]) -> None:
    command([tool("ip"), "-batch", "-"], "".join(f"{line}\n" for line in lines))


def link_names() -> set[str]:
    return {link["ifname"] for link in json.loads(command([tool("ip"), "-json", "link", "show"]))}


def addresses() -> set[str]:
    links = json.loads(command([tool("ip"), "-json", "-4", "address", "show"]))
    return {each["local"] for link in links for each in link.get("addr_info", [])}


def delete_links(names: Iterable[str]) -> None:
    """Delete links; one that goes by itself in the meantime (with its namespace) is fine."""
    lines = "".join(f"link delete dev {name}\n" for name in names)
    if lines:
        argv = [tool("ip"), "-force", "-batch", "-"]
        subprocess.run(argv, input=lines, capture_output=True, text=True, timeout=30, check=False)


def unshare_argv(argv: Sequence[str]) -> list[str]:
    """A command as PID 1 of fresh namespaces, which ends when `unshare` does."""
    return [tool("unshare"), *NAMESPACES, "--propagation", "private", "--fork", "--kill-child", "--", *argv]


def enter_argv(init: int, argv: Sequence[str], cwd: Path) -> list[str]:
    """A command inside the namespaces of `init`, leading a session of its own there."""
    return [
        tool("nsenter"),
        f"--target={init}",
        *NAMESPACES,
        f"--wdns={cwd}",
        "--",
        tool("setsid"),
        "--wait",
        *argv,
    ]


def end_entered(process: subprocess.Popen[str]) -> None:
    """End a command started by enter_argv: nsenter stands outside, what it started leads a session inside."""
    with contextlib.suppress(OSError):
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        )
        for child in map(int, children):
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:  # not yet the leader of its group
                os.kill(child, signal.SIGKILL)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)


def process_table(init: int) -> list[Process]:
    """The processes of the host whose first process is `init`, read from that host's own /proc."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for folder in Path(f"/proc/{init}/root/proc").iterdir():
            if folder.name.isdigit():
                process = read_process(folder)
                if process is not None:
                    found.append(process)
    return sorted(found, key=lambda process: process.pid)


def read_process(folder: Path) -> Process | None:
    """One process of a /proc, or None where it ended while we looked."""
    try:
        head, _, tail = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        argv = strings(folder / "cmdline")
        pairs = [each.partition("=") for each in strings(folder / "environ")]
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    environ = {key: value for key, _, value in pairs}
    return Process(int(folder.name), int(fields[1]), tuple(argv), environ, head.partition("(")[2], fields[0])


def strings(path: Path) -> list[str]:
    text = (
        path.read_bytes().decode("utf-8", errors="replace").rstrip("\0")
    )  # forks have more room (tests/warm)
    return text.split("\0") if text else []
