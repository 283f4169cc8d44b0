"""What `muster gather` leaves behind: an inventory or a hostfile, and how ssh reaches its hosts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.errors import JobError, UsageError
from muster.core.inventory import format_hostfile, inventory_document
from muster.gather.members import Member, as_hosts, known_hosts, ssh_config
from muster.store.atomic import write_json, write_text


@dataclass(frozen=True)
class Gathered:
    """Who is there, and what else happened. `members` are in the order of their host names."""

    wanted: int
    members: tuple[Member, ...]
    unusable: Mapping[str, str]  # host name -> why the head cannot reach it
    turned_away: Mapping[str, int]  # reason -> how many connections
    lost: int = 0  # were in, and left before the end
    unheard: tuple[str, ...] = ()  # are in, and have not said that they heard the end

    @property
    def complete(self) -> bool:
        """Whether all that were wanted are there."""
        return len(self.members) >= self.wanted


def document(gathered: Gathered, config: Path | None) -> dict[str, Any]:
    """The inventory as data; `--hosts` reads its file. `config`: the ssh_config beside it."""
    return {
        **inventory_document(as_hosts(gathered.members), "ssh"),
        "hosts": [member.as_dict() for member in gathered.members],
        "ssh_config": str(config) if config else None,
        "gathered": {
            "wanted": gathered.wanted,
            "complete": gathered.complete,
            "unusable": dict(gathered.unusable),
            "turned_away": dict(gathered.turned_away),
            "lost": gathered.lost,
            "unheard": list(gathered.unheard),
        },
    }


def check_outputs(outputs: Sequence[Path]) -> None:
    """Refuse before anybody waits what could not be written in the end. Raises UsageError."""
    for path in outputs:
        folder = path.absolute().parent
        if path.is_dir():
            raise UsageError(
                "is a folder", where=str(path), hint="--output names a file: hosts.json or hosts"
            )
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError("its folder is not there, or cannot be written", where=str(path))
        if path.suffix in (".ssh_config", ".known_hosts"):
            raise UsageError("is the name of a file that is written beside the output", where=str(path))
        try:
            ssh_config((), str(folder))
        except ValueError as error:
            raise UsageError(str(error), where=str(path)) from None


def config_of(outputs: Sequence[Path]) -> Path | None:
    """The ssh_config that is written beside the first output."""
    return outputs[0].absolute().with_suffix(".ssh_config") if outputs else None


def save(gathered: Gathered, outputs: Sequence[Path]) -> None:
    """Write every output (NAME.json: an inventory; otherwise a hostfile), each whole or not at all, after the
    ssh_config and known_hosts that it relies on. Raises JobError."""
    config = config_of(outputs)
    if config is None:
        return
    known = config.with_suffix(".known_hosts")
    try:
        write_text(known, known_hosts(gathered.members))
        write_text(config, ssh_config(gathered.members, str(known)))
        for path in outputs:
            if path.suffix == ".json":
                write_json(path, document(gathered, config))
            else:
                write_text(path, format_hostfile(as_hosts(gathered.members)))
    except OSError as error:
        raise JobError(f"cannot be written: {error.strerror}", where=str(error.filename or config)) from None
