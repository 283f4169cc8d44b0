"""Bring the trained model from a first host that does not share the run folder. Whole, or not at all."""

from __future__ import annotations

import shlex
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from types import ModuleType

from muster.core.errors import HostError, JobError
from muster.core.job import Placement
from muster.core.recipe import Launch
from muster.shell import Shell
from muster.store.runfolder import RunFolder

_MARK = b"--- muster: the model follows ---\n"  # what a login script prints comes before it
_SCRIPT = 'echo "--- muster: the model follows ---"; exec tar -C "$1" -cf - model'
_HOURS = 6


def fetch_model(
    launcher: ModuleType, place: Placement, launch: Launch, base: str, run: RunFolder, shell: Shell
) -> None:
    """Copy `base`/model into the run folder, by way of a file: models can be large. Raises HostError."""
    argv = launcher.remote(place, launch, ["sh", "-c", _SCRIPT, "sh", base])
    received, partial = run.path / "model.tar", run.path / "model.fetched"
    hint = f"it is still there: {place.address}:{shlex.quote(base)}/model"
    try:
        code, _, err = shell.run(argv, timeout=_HOURS * 3600, output=received)
        if code != 0:
            words = err.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
            raise HostError(words[-1], host=place.host)
        shutil.rmtree(partial, ignore_errors=True)
        _unpack(received, partial)
        (partial / "model").replace(run.model)
    except (JobError, tarfile.TarError, OSError, ValueError) as error:
        what = getattr(error, "what", None) or str(error)
        raise HostError(f"the model could not be fetched: {what}", host=place.host, hint=hint) from None
    finally:
        received.unlink(missing_ok=True)
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(received: Path, folder: Path) -> None:
    """The files after the mark. Raises ValueError for anything that is not a file or folder inside."""
    with received.open("rb") as file:
        head = file.read(1 << 20)
        start = head.find(_MARK)
        if start < 0:
            raise ValueError("what came is not a model")
        file.seek(start + len(_MARK))
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
                    raise ValueError(f"{member.name!r} does not belong into a model")
                if hasattr(tarfile, "data_filter"):
                    archive.extract(member, folder, filter="data")
                else:
                    archive.extract(member, folder)
