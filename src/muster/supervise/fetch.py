"""Bring the trained model from the first host, where it does not share the run folder. Whole, or not at
all."""

from __future__ import annotations

import shlex
import shutil
import tarfile
from io import BytesIO
from types import ModuleType

from muster.core.errors import HostError
from muster.core.job import Placement
from muster.core.recipe import Launch
from muster.shell import Shell
from muster.store.runfolder import RunFolder


def fetch_model(
    launcher: ModuleType, place: Placement, launch: Launch, base: str, run: RunFolder, shell: Shell
) -> None:
    """Copy `base`/model into the run folder. Raises HostError."""
    argv = launcher.remote(place, launch, ["tar", "-C", base, "-cf", "-", "model"])
    try:
        code, out, err = shell.run(argv, timeout=3600)
    except Exception as error:
        raise HostError(f"the model could not be fetched: {error}", host=place.host) from None
    if code != 0:
        words = err.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise HostError(
            f"the model could not be fetched: {words[-1]}",
            host=place.host,
            hint=f"it is still there: {place.address}:{shlex.quote(base)}/model",
        )
    partial = run.path / "model.fetched"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with tarfile.open(fileobj=BytesIO(out)) as archive:
            archive.extractall(partial, filter="data")
    except (tarfile.TarError, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise HostError(f"the model came damaged: {error}", host=place.host) from None
    (partial / "model").replace(run.model)
    shutil.rmtree(partial, ignore_errors=True)
