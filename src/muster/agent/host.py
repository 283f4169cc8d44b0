"""Facts about a host for the plan: its hardware, its interpreter and packages, its addresses and ports."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

from .files import free_bytes
from .gpu import gpu_facts
from .proc import meminfo, memory_limit, read_text
from .talk import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "datasets",
    "peft",
    "trl",
    "pydantic",
    "tokenizers",
    "numpy",
)
SETUP_SECONDS = 60.0  # that launch.setup may take
# Shells that nobody logs in to often lack `module` and `conda activate`, though the host has them.
SETUP = r"""
setup=$MUSTER_SETUP; unset MUSTER_SETUP; out=$1; set --
type module >/dev/null 2>&1 || for f in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh \
    /etc/profile.d/z00_lmod.sh /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    if [ -r "$f" ]; then . "$f"; break; fi
done
if [ "$(type -t conda)" != function ]; then
    f=${CONDA_EXE:-$(command -v conda)}; f=${f%/*/*}/etc/profile.d/conda.sh
    if [ -r "$f" ]; then . "$f"; fi
fi
set -e
if [ -f "$setup" ]; then . "$setup"; else eval "$setup"; fi
env -0 >&"$out"
"""
# Packages' versions as the ranks will see them, by the names of the folders that tell them: the library's own
# way, of which the import alone takes longer, is for what an older installer left. Not of the folder where it
# begins.
VERSIONS = r"""
import os, sys
sys.path = [p for p in sys.path if p]
plain = lambda name: name.lower().replace("-", "_").replace(".", "_")
found, old = {}, []
for folder in sys.path:
    for entry in os.listdir(folder) if os.path.isdir(folder) else []:
        if entry.endswith(".dist-info"):
            name, _, version = entry[:-10].rpartition("-")
            found.setdefault(plain(name), version)
        elif ".egg" in entry:
            old.append(plain(entry))
print("python", sys.version.split()[0], sep="	")
for name in sys.argv[1:]:
    version = found.get(plain(name), "")
    if not version and any(entry.startswith(plain(name)) for entry in old):
        from importlib import metadata
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    print(name, version, sep="	")
"""


def system() -> str:
    """Return the text of `platform.platform()`, which would start a process for it."""
    about = os.uname()
    try:
        library = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    except (ValueError, OSError):
        library = ""
    return "-".join([about.sysname, about.release, about.machine] + (["with", library] if library else []))


def processor(path: str = "/proc/cpuinfo") -> Optional[str]:
    """Return the processor's model; None where the kernel does not report it."""
    try:
        with open(path, errors="replace") as file:
            named = (line.split(":", 1)[1] for line in file if line.startswith("model name") and ":" in line)
            return " ".join(next(named, "").split()) or None
    except OSError:
        return None


def reached_at() -> Optional[str]:
    """Return this host's own address of the connection by which it was reached: the one it opened, or ssh's.

    In this order: Slurm gives a job the environment of where it was submitted, SSH_CONNECTION included.
    """
    try:
        with socket.socket(fileno=os.dup(0)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                address = str(connection.getsockname()[0])
                return address[7:] if address.startswith("::ffff:") else address
    except OSError:
        pass
    ssh = os.environ.get("SSH_CONNECTION", "").split()
    return ssh[2] if len(ssh) == 4 else None


def source_address(peer: str, port: int) -> Optional[str]:
    """Return the address from which this host reaches `peer`. Sends nothing: a datagram socket is only
    connected."""
    for info in _resolve(peer, port):
        probe = socket.socket(info[0], socket.SOCK_DGRAM)
        try:
            probe.connect(info[4])
            return str(probe.getsockname()[0])
        except OSError:
            continue
        finally:
            probe.close()
    return None


def _resolve(name: str, port: int) -> List[Any]:
    try:
        return socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    except OSError:
        return []


def check_address(name: str, port: int) -> None:
    """Raise Problem for a rendezvous that this host cannot resolve: its ranks would ask again for minutes."""
    for wait in (1.0, 0.0):  # a name server may have missed one question
        if _resolve(name, port):
            return
        time.sleep(wait)
    raise Problem(
        "launch.address: this host cannot look up %r" % name,
        "a name or an address of the first host that every host knows",
    )


def interface_of(address: str) -> Optional[str]:
    """Return the network interface that has an IPv4 address (SIOCGIFADDR), or None."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                packed = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(packed[20:24]) == address:
                return name
    return None


def network_speeds(address: Optional[str]) -> Dict[str, Any]:
    """Return the Mbit/s that the kernel states for the card with this address, and for the fastest InfiniBand
    (or RoCE) port that is up; None where it states none, as for most virtual cards."""
    name = interface_of(address) if address else None
    speed = first_number(read_text("/sys/class/net/%s/speed" % name)) if name else None
    fastest = None  # type: Optional[float]
    root = "/sys/class/infiniband"
    for device in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        ports = os.path.join(root, device, "ports")
        for port in sorted(os.listdir(ports)) if os.path.isdir(ports) else []:
            state = read_text(os.path.join(ports, port, "state")) or ""
            rate = first_number(read_text(os.path.join(ports, port, "rate")))  # "200 Gb/sec (4X HDR)"
            if "ACTIVE" in state and rate and rate > 0:
                fastest = max(fastest or 0.0, 1000.0 * rate)
    return {
        "interface": name,
        "megabits": speed if speed and speed > 0 else None,
        "infiniband_megabits": fastest,
    }


def first_number(text: Optional[str]) -> Optional[float]:
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def bound(family: int, port: int) -> socket.socket:
    """Return a listening socket on every address of a family. Raises OSError."""
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", port))
        holder.listen(1)
    except OSError:
        holder.close()
        raise
    return holder


def environment_after(setup: str) -> Dict[str, str]:
    """Return the environment after a line of bash, or a file of it, has run here. Raises Problem with its
    output."""
    path = os.path.expanduser(setup)
    if os.path.isfile(path):
        setup = os.path.abspath(path)
    elif path.startswith(("/", ".")) and not path.split()[1:]:
        raise Problem("launch.setup: no such file: %s" % path, "a file that this host has, or a line of bash")
    # Files, since whatever the line leaves in the background may hold a pipe open for ever.
    import tempfile

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as variables:
        try:
            shell = subprocess.Popen(
                ["bash", "-c", SETUP, "bash", str(variables.fileno())],
                env=dict(os.environ, MUSTER_SETUP=setup),  # every user reads the words of a process
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[variables.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise Problem("launch.setup: bash cannot be started: %s" % error.strerror)
        try:
            shell.wait(SETUP_SECONDS)
            what = "failed with exit code %d" % shell.returncode if shell.returncode else ""
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
            what = "did not end within %g s" % SETUP_SECONDS
        output.seek(0)
        lines = [
            line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()
        ]
        variables.seek(0)
        pairs = [pair.partition("=") for pair in os.fsdecode(variables.read()).split("\0") if pair]
    if what or not pairs:
        what = what or "left the shell"
        words = "; ".join(lines[-5:])[-1000:] or "it printed nothing"
        raise Problem("launch.setup %s: %s" % (what, words), "bash runs it on every host, before the ranks")
    own = {name: value for name, _, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
    return dict({name: os.environ[name] for name in ("PWD", "SHLVL") if name in os.environ}, **own)


def facts(device: Optional[str]) -> Dict[str, Any]:
    """Return what the plan and the checks need to know of this host. Raises Problem where a GPU does not
    answer."""
    memory = meminfo()
    address = reached_at()
    return {
        "hostname": socket.gethostname(),
        "machine": (read_text("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        "system": system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "shm": free_bytes("/dev/shm"),
        "processor": processor(),
        "memory_total": memory.get("MemTotal"),
        "memory_limit": memory_limit(),
        "gpus": [] if device == "cpu" else gpu_facts(),
        "agent_python": sys.version.split()[0],
        "address": address,
        "network": network_speeds(address),
    }


def find_python(spec: Dict[str, Any], usual: Optional[str]) -> str:
    """Return the interpreter for the ranks: the one that is asked for, else launch.setup's, else the
    controller's own path if it exists here, else ours. `usual`: python3 as it was before launch.setup. Raises
    Problem."""
    asked = spec.get("python")
    if asked:
        path = shutil.which(os.path.expanduser(asked))
        if not path:
            raise Problem("no interpreter %s" % asked, "set launch.python to one that every host has")
        return str(path)
    candidate = shutil.which("python3")
    if candidate and candidate != usual:  # launch.setup has changed which it is
        return candidate
    own = spec.get("controller_python") or ""
    return own if own and os.access(own, os.X_OK) else sys.executable


def _asked(
    python: str, program: str, *argv: str, cwd: Optional[str] = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program by a Python. Return what it printed. Raises Problem where it takes longer than 30 s."""
    try:
        return subprocess.run(
            [python, "-c", program, *argv],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=30,
        )
    except subprocess.TimeoutExpired:
        raise Problem("%s did not end within 30 s" % python, "its disk may not answer") from None


def versions(python: str, more: Sequence[str] = ()) -> Dict[str, Optional[str]]:
    """Return the packages' versions as the ranks will see them, without importing any."""
    done = _asked(python, VERSIONS, *PACKAGES, *more)
    if done.returncode != 0:
        raise Problem("%s does not run: %s" % (python, done.stderr.decode("utf-8", "replace")[-200:].strip()))
    pairs = [line.split("\t") for line in done.stdout.decode().splitlines() if line.count("\t") == 1]
    return {name: version or None for name, version in pairs}


# Exits with 3 where the Python that runs it has no module of this name; imports none.
_LOOK = """import sys
path = None
names = sys.argv[1].split(".")
for i in range(len(names)):
    name = ".".join(names[: i + 1])
    specs = (f.find_spec(name, path) for f in sys.meta_path if hasattr(f, "find_spec"))
    spec = next((s for s in specs if s), None)
    if spec is None:
        sys.exit(3)
    path = spec.submodule_search_locations
    if path is None and i + 1 < len(names):
        sys.exit(3)
"""


def check_command(spec: Dict[str, Any], python: Optional[str] = None) -> None:
    """Check that a command's folder, program, script and module exist here. `python`: the interpreter that
    runs a module where there is no program. Raises Problem."""
    folder, program, script = (spec.get(name) for name in ("cwd", "program", "script"))
    hint = "`--sync DIR` brings a folder to every host; `--workdir DIR` names one that each of them has"
    if folder and not os.path.isdir(folder):
        raise Problem("there is no folder %s" % folder, hint)
    if program:
        path = os.path.join(folder or "/", program) if "/" in program else program
        if not shutil.which(path):
            raise Problem(
                "no program %s" % program,
                "it is looked for in PATH, or by its path; it must be executable",
            )
    if script and not os.path.isfile(os.path.join(folder or "/", script)):
        place = "" if os.path.isabs(script) else " in %s" % folder
        raise Problem("there is no script %s%s" % (script, place), hint)
    module, python = spec.get("module"), program or python
    if module and python and _asked(python, _LOOK, module, cwd=folder or None).returncode == 3:
        what = "%s has no module %s" % (shutil.which(python) or python, module)
        raise Problem(what, "pip install it there; or " + hint)


def hold_port(wanted: int) -> socket.socket:
    """Return an open port for the rendezvous, which no other job can take from now on: the first rank gets it
    open. Raises Problem."""
    for family in (socket.AF_INET6, socket.AF_INET):  # a kernel may be without IPv6
        try:
            return bound(family, wanted)
        except OSError as error:
            last = error
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                break
    raise Problem(
        "port %d cannot be used: %s" % (wanted, last.strerror),
        "leave launch.port out: a free one is found",
        failure="port_in_use" if last.errno == errno.EADDRINUSE else None,
    )
