"""Which of the hosts cannot be reached, where one process was to reach them all and did not say."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from types import ModuleType

from muster.core.job import Placement
from muster.core.launch import Launch
from muster.shell import Process, Shell

_AT_MOST = 64  # hosts that are asked


def silent_hosts(
    places: Sequence[Placement], launcher: ModuleType, launch: Launch, shell: Shell
) -> dict[str, str]:
    """Label -> what was said of it, of each host on which `true` does not run."""
    asked = [(place, shell.start(launcher.remote(place, launch, ["true"]))) for place in places[:_AT_MOST]]
    limit = time.monotonic() + launch.connect_timeout + 2
    found = {}
    for place, process in asked:
        words = _failure(process, max(0.1, limit - time.monotonic()))
        if words is not None:
            found[place.host] = words
    return found


def _failure(process: Process, seconds: float) -> str | None:
    assert process.stdin and process.stdout and process.stderr
    process.stdin.close()
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "does not answer"
    finally:
        process.stdout.close()
    lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    process.stderr.close()
    return None if code == 0 else (lines[-1] if lines else f"exit code {code}")
