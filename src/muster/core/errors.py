"""Every error that a user can cause, in one tree.

MusterError                exit code
├── UsageError             2   bad input: nothing was started
│   ├── InventoryError         a host list
│   ├── RecipeError            a recipe or an override
│   ├── DataError              a data file (with its line)
│   ├── BrokenPluginError      a third party's plug-in that cannot be used
│   └── RunFolderError         a run folder that is missing, taken or unfinished
└── JobError               1   something failed after the start
    ├── HostError              a host: unreachable, lost, unfit
    └── WorkerError            a rank
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class MusterError(Exception):
    """What failed, where, on which host, and a hint. `str()` is the one line that a user reads.

    `failure`: its id in the table of failures; None: it is not in the table.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        host: str | None = None,
        hint: str | None = None,
        failure: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.host = host
        self.hint = hint
        self.failure = failure

    def __str__(self) -> str:
        prefix = ": ".join(part for part in (self.host, self.where) if part)
        return f"{prefix}: {self.what}" if prefix else self.what

    def as_dict(self) -> dict[str, str | None]:
        """Return the same facts as data, for `--json` and for results."""
        return {
            "what": self.what, "where": self.where, "host": self.host, "hint": self.hint, "id": self.failure,
        }  # fmt: skip


class UsageError(MusterError):
    """Bad input; nothing was started and nothing was changed."""

    exit_code = 2


class InventoryError(UsageError):
    """A host list that cannot be used."""


class RecipeError(UsageError):
    """A recipe, an override or a combination of settings that cannot be used."""


class BrokenPluginError(UsageError):
    """A third party's plug-in that is installed and cannot be loaded, fails, or does not keep its contract.

    `package`: the distribution that offers it; `place`: its FILE or FILE:LINE. None: not known.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        package: str | None = None,
        place: str | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.package = package
        self.place = place


class DataError(UsageError):
    """A data file that cannot be used; `where` names the file and the line."""


class ReaderMissingError(DataError):
    """A data file that this machine cannot read for lack of a package. Hosts have the package, so ranks can
    read it."""


class RunFolderError(UsageError):
    """A run folder that is missing, taken, or not in the state that a verb needs."""


class JobError(MusterError):
    """Something failed after the job was started."""


class HostError(JobError):
    """A host that cannot be reached, was lost, or is unfit."""


class WorkerError(JobError):
    """A rank that failed."""


class PluginWarning(UserWarning):
    """A third party's plug-in that is left out, and why."""


@contextmanager
def refused(
    kind: type[MusterError], to_be: str, where: Path | str, hint: str | None = None
) -> Iterator[None]:
    """Turn an OSError inside into one of Muster's errors: this cannot be read, written, made (`to_be`)."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        failure = "disk_full" if getattr(error, "errno", None) in NO_ROOM else None
        raise kind(f"cannot be {to_be}: {why}", where=str(where), hint=hint, failure=failure) from None
