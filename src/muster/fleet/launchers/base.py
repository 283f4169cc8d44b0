"""What every launcher shares: how an agent gets onto a host, and which processes a launcher starts.

There are two ways. Where a launcher gives each host a process with its own streams (ssh, this machine), a
bare interpreter reads the agent's source from its standard input. Where one process starts all hosts (pdsh,
mpirun, srun), no host has its own standard input: each agent connects to the controller, proves its identity
with the job's secret, and reads its source from that connection.
"""

from __future__ import annotations

import base64
import inspect
import marshal
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.util import MAGIC_NUMBER
from types import CodeType

from muster.agent import member
from muster.core.errors import RecipeError
from muster.core.job import Placement
from muster.core.launch import Launch

# Nothing in the folder where an agent begins (a login's, or the user's own) takes the place of a module.
_OWN_PATH = "sys.path=[p for p in sys.path if p]"
# Reads ten digits and that many bytes of source from descriptor 0, byte-exact: what follows is the agent's
# input.
# One line, and no single quotes, so that every remote shell takes it.
BOOTSTRAP = (
    f'import os,sys;{_OWN_PATH};exec("'
    'def r(n):\\n b=b\\"\\"\\n while len(b)<n:\\n  c=os.read(0,n-len(b))\\n'
    "  if not c: raise SystemExit(3)\\n"
    '  b+=c\\n return b\\nsource=r(int(r(10)))");exec(compile(source,"muster-agent","exec"))'
)

# Arguments: muster-agent, the job's id, this host's name (or $VARIABLE), ADDRESS,ADDRESS:PORT, seconds, and
# the secret where the environment does not bring it. Python 3.8. `knock` is in front of it.
_DIAL = """
name, home, patience = sys.argv[3:6]
secret = os.environ.pop("MUSTER_SECRET", "") or sys.argv[6]
if name[:1] == "$":
    name = os.environ.get(name[1:]) or socket.gethostname()
payload = {"name": name, "host": socket.gethostname()}
addresses, _, port = home.rpartition(":")
end = time.monotonic() + float(patience)
found = None
while not found:
    why = ""
    for address in addresses.split(","):
        try:  # a controller that starts a thousand is busy
            found = knock(address, int(port), secret, payload, float(patience))[0]
            break
        except Rejected as error:
            raise SystemExit("muster: the controller refused: %s" % error)
        except (OSError, ValueError) as error:
            why += " %s: %s;" % (address, error)
    if not found and time.monotonic() > end:
        raise SystemExit("muster: the controller cannot be reached from here:" + why)
    if not found:
        time.sleep(0.5)
found.settimeout(None)  # from here on the agent waits as long as it wants
found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
os.dup2(found.fileno(), 0)
os.dup2(found.fileno(), 1)
found.close()
"""
SECRET, CODE = "MUSTER_SECRET", "MUSTER_CODE"


@dataclass(frozen=True)
class ControllerAddress:
    """Where agents that connect by themselves reach the controller."""

    addresses: tuple[str, ...]  # of the controller, the likeliest first
    port: int | str  # a dry run has no port
    secret: str

    def __str__(self) -> str:
        return f"{','.join(self.addresses)}:{self.port}"


@dataclass(frozen=True)
class Request:
    """One process that starts the agents of one or more hosts. Pure data: a dry run prints it."""

    hosts: tuple[str, ...]  # labels
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # on top of the controller's own
    dials: bool = False  # the agents dial home; otherwise the process's streams are the one agent's


def interpreter(launch: Launch) -> str:
    """Return what starts the agent. The agent expands a path from the home folder, which is the host's."""
    return "python3" if not launch.python or launch.python.startswith("~") else launch.python


# The modules of the agent's package that are sent, each after those that it imports.
_PARTS = ("proc", "talk", "ending", "files", "gpu", "host", "sampler", "ranks", "agent")
# Makes a package of modules in memory: a bare host may have no disk to write to.
MAKE = """
def make(parts):
    package = sys.modules["muster_agent"] = type(sys)("muster_agent")
    package.__path__ = []
    for name, part in parts:
        module = sys.modules["muster_agent." + name] = type(sys)("muster_agent." + name)
        module.__package__ = "muster_agent"
        setattr(package, name, module)
        code = part if isinstance(part, type(make.__code__)) else compile(part, "muster-" + name, "exec")
        exec(code, module.__dict__)
    return package
"""
# Takes what is compiled where its Python is of this one's version, which spares each host 20 ms.
_LOADER = (
    MAKE
    + """
import marshal, zlib
compiled, texts = r(int(r(10))), r(int(r(10)))
same = getattr(sys.modules["_frozen_importlib_external"], "MAGIC_NUMBER", b"") == {magic!r}
same = same and sys.implementation.name == {name!r}
package = make(marshal.loads(zlib.decompress(compiled if same else texts)))
if __name__ == "__main__":
    package.agent.main()
"""
)


def texts_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return modules of the agent's package, as `make` takes them on a host."""
    folder = resources.files("muster.agent")
    return [(name, folder.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in names]


def compiled(texts: Sequence[tuple[str, str]]) -> list[tuple[str, CodeType]]:
    """Return the same, compiled, for a Python of this one's version."""
    return [
        (name, compile(text, f"muster-{name}", "exec", dont_inherit=True, optimize=2)) for name, text in texts
    ]


@cache
def agent_source() -> bytes:
    """Return the agent's package, each part behind its length, as BOOTSTRAP expects it."""
    texts = texts_of(_PARTS)
    loader = _LOADER.format(magic=MAGIC_NUMBER, name=sys.implementation.name).encode()
    # Version 2 of marshal's format is read by every Python 3.
    parts = (
        loader,
        zlib.compress(marshal.dumps(compiled(texts)), 9),
        zlib.compress(marshal.dumps(texts, 2), 9),
    )
    return b"".join(b"%010d" % len(part) + part for part in parts)


def agent_argv(python: str, job_id: str) -> list[str]:
    """Return the command that waits for the agent's source, which needs the standard library alone. The job's
    id is in it for people who read `ps`."""
    return [python, "-S", "-u", "-c", BOOTSTRAP, "muster-agent", job_id]


@cache
def _dialling_code() -> str:
    """Return the code that connects to the controller, and then reads the agent's source."""
    parts = (
        member.Rejected,
        member.proof,
        member.read_line,
        member.claim,
        member.read_answer,
        member.knock,
        member.printable,
    )
    return "\n".join(
        [
            "from __future__ import annotations",
            "import hashlib, hmac, json, os, socket, sys, time",
            f"MAX_LINE, CONNECT = {member.MAX_LINE}, {member.CONNECT}",
            *(inspect.getsource(part) for part in parts),
            _DIAL + BOOTSTRAP,
        ]
    )


def dialling_argv(
    python: str, job_id: str, name: str, home: ControllerAddress, launch: Launch, *, with_secret: bool
) -> list[str]:
    """Return the command that connects to the controller and then waits for the agent's source.

    `name`: the host's label, or `$VARIABLE` of the host's environment. `with_secret`: the command contains
    code and secret (others on the host can read it in `ps`, so it admits each host once); otherwise the
    environment has both, as `dialling_env` returns them, and the command stays short.
    """
    if with_secret:
        code = base64.b64encode(zlib.compress(_dialling_code().encode(), 9)).decode()
        start = f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{code}")))'
    else:
        start = f'import os;exec(os.environ.pop("{CODE}"))'
    start = f"import sys;{_OWN_PATH};{start}"
    words = [name, str(home), f"{launch.connect_timeout:g}", *([home.secret] if with_secret else [])]
    return [python, "-S", "-u", "-c", start, "muster-agent", job_id, *words]


def dialling_env(home: ControllerAddress) -> dict[str, str]:
    """Return the environment of `dialling_argv`, where the command does not contain the secret."""
    return {SECRET: home.secret, CODE: _dialling_code()}


def ssh_arguments(launch: Launch) -> list[str]:
    """Return the options of every ssh connection. BatchMode never prompts; host keys are checked as the
    user's configuration says."""
    interval = max(1, int(launch.lease // 3))
    return [
        "-o", "BatchMode=yes",
        "-o", f"ConnectTimeout={max(1, int(launch.connect_timeout))}",
        "-o", f"ServerAliveInterval={interval}",
        "-o", "ServerAliveCountMax=3",
        "-o", "ControlPath=none",
        "-o", "ClearAllForwardings=yes",
        *launch.ssh_options,
    ]  # fmt: skip


def ssh_words(launch: Launch, program: str) -> str:
    """Return the options as one text, for a program that splits it at spaces. Raises RecipeError where one
    has spaces."""
    arguments = ssh_arguments(launch)
    spaced = [word for word in arguments if len(word.split()) != 1]
    if spaced:
        raise RecipeError(
            f"{program} cannot pass {spaced[0]!r} on to ssh: it splits at spaces",
            where="launch.ssh_options",
            hint="put the option into ~/.ssh/config, or launch.launcher=ssh",
        )
    return " ".join(arguments)


def ssh_argv(place: Placement, launch: Launch, argv: list[str]) -> list[str]:
    """Return the ssh command that runs `argv` on the host."""
    return ["ssh", "-T", *ssh_arguments(launch), place.address, shlex.join(argv)]
