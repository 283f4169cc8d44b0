"""The store at which ranks meet."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster.core.errors import WorkerError
from muster.failures.table import id_of

ARRIVAL = timedelta(minutes=5)  # for a connection to be made; who is connected waits for as long as it takes


def open_store(address: str, port: int, patience: timedelta = ARRIVAL) -> Any:
    """Reach the store. The rank whose agent held the port (MUSTER_RENDEZVOUS) serves it as long as it lives.

    Raises WorkerError with the system's own reason.
    """
    held = os.environ.get("MUSTER_RENDEZVOUS")
    try:
        return dist.TCPStore(
            address,
            port,
            None,
            held is not None,
            timeout=patience,
            wait_for_workers=False,
            master_listen_fd=None if held is None else int(held),
        )
    except Exception as error:
        reason = _reason(address, port) or first_line(error)
        raise WorkerError(
            f"the rendezvous at {address}:{port} cannot be reached: {reason}",
            hint="a firewall, a wrong route, or an address that only the first host knows "
            "(launch.address=ADDRESS, launch.port=PORT)",
            failure=id_of(reason, "log", "error"),
        ) from None


def reach_store() -> Any:
    """Open the store of this rank's job, to be kept until its end. PyTorch's env:// finds it from then on:
    it opens none of its own where that variable promises one."""
    store = open_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
    return store


def _reason(address: str, port: int) -> str | None:
    try:
        socket.create_connection((address, port), 3).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def first_line(error: BaseException) -> str:
    """Cut an error to its first line, without the C++ stack that torch adds."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:400]}" if lines else type(error).__name__
