"""What every launcher shares: the bootstrap that turns a bare interpreter into the agent."""

from __future__ import annotations

from functools import cache
from importlib import resources

# Reads ten digits and that many bytes of source from descriptor 0, byte-exact: what follows is the agent's
# input.
# One line, and no single quotes, so that every remote shell takes it.
BOOTSTRAP = (
    'exec("import os\\ndef r(n):\\n b=b\\"\\"\\n while len(b)<n:\\n  c=os.read(0,n-len(b))\\n'
    "  if not c: raise SystemExit(3)\\n"
    '  b+=c\\n return b\\nsource=r(int(r(10)))");exec(compile(source,"muster-agent","exec"))'
)


@cache
def agent_source() -> bytes:
    """The agent's text with the length that BOOTSTRAP expects before it."""
    source = resources.files("muster.agent").joinpath("agent.py").read_bytes()
    return b"%010d" % len(source) + source


def agent_argv(python: str, job_id: str) -> list[str]:
    """The command that waits for the agent's source. The job's id stands there for people who read `ps`."""
    return [python, "-u", "-c", BOOTSTRAP, "muster-agent", job_id]
