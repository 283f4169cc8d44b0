"""The first process of Slurm's controlling side: run by path, standard library alone.

`unshare` starts it as PID 1 of fresh PID, mount and UTS namespaces; the network is the machine's. It says
which process it is, is told what to run, and waits for the end of the process that owns the cluster. When it
ends, by itself or by SIGKILL, the kernel ends every daemon that it started.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from node_init import MS_BIND, mount, watch


def run(config: dict[str, Any]) -> None:
    """Take the name and start the daemons, in their order."""
    socket.sethostname(config["name"])
    mount(config["hosts"], "/etc/hosts", flags=MS_BIND)  # slurmctld looks up its own name
    for daemon in config["daemons"]:
        with Path(daemon["log"]).open("ab") as log:
            process = subprocess.Popen(
                daemon["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        process.returncode = 0  # watch() buries every child: Popen shall not wait for it
        while daemon["makes"] is not None and not Path(daemon["makes"]).exists():
            time.sleep(0.01)  # the owner's patience is the limit


def main() -> int:
    owner = int(sys.argv[1])  # a pidfd: it becomes readable when the owner has ended, however that happened
    os.set_inheritable(owner, False)
    # /proc is the machine's, so this is the PID by which the owner knows us.
    print(json.dumps({"pid": int(str(Path("/proc/self").readlink()))}), flush=True)
    text = sys.stdin.read()
    if not text:
        return 1
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    run(json.loads(text))
    print(json.dumps({"started": True}), flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    watch(owner, reader)
    return 0


if __name__ == "__main__":
    sys.exit(main())
