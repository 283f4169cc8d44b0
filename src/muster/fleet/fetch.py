"""Fetch what hosts wrote that do not share the run folder: model and profiles to the controller, a checkpoint
from one host to another. Each arrives whole, or not at all."""

from __future__ import annotations

import shlex
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from muster.core.errors import HostError, JobError
from muster.core.job import Facts, Job, Placement
from muster.fleet import shell
from muster.fleet.shell import Process
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.sealed import Files, compare

_MARK = b"--- muster: the model follows ---\n"  # what a login script prints comes before it
_SCRIPT = 'echo "--- muster: the model follows ---"; exec tar -C "$1" -cf - "$2"'
_UNPACK = 'rm -rf "$1/$2.part" && mkdir -p "$1/$2.part" && tar -C "$1/$2.part" -xf - && rm -rf "$1/$2" && \
mv "$1/$2.part/$2" "$1/$2" && rmdir "$1/$2.part"'
_TAR_ENDS = ("tar: Exiting with failure status", "tar: Error is not recoverable")
_HOURS = 6
ATTEMPTS = 3
Remote = Callable[[Placement, list[str]], list[str]]  # the command that runs one on a host
PAUSE = 3.0  # seconds between them


def fetch_model(
    remote: Remote, place: Placement, base: str, run: RunFolder, files: Files | None = None
) -> None:
    """Copy `base`/model into the run folder, through a temporary file, since models can be large. It is tried
    ATTEMPTS times: a training costs too much to depend on one connection. `files`: what has to arrive, with
    hashes. Raises HostError."""
    hint = f"it is still there: {place.address}:{shlex.quote(base)}/model"
    for left in reversed(range(ATTEMPTS)):
        try:
            _fetch(remote, place, base, "model", run)
            if files and (wrong := compare(str(run.model), files)[0]):
                shutil.rmtree(run.model)
                raise ValueError(wrong)
        except (JobError, tarfile.TarError, OSError, ValueError) as error:
            if not left:
                what = getattr(error, "what", None) or str(error)
                words = f"the model could not be fetched: {what}"
                raise HostError(words, host=place.host, hint=hint) from None
            time.sleep(PAUSE)
        else:
            return


def fetch_profiles(
    remote: Remote, job: Job, facts: Facts, run: RunFolder, profiled: list[events.Profiled]
) -> None:
    """Copy profiles into the run folder. The events' paths become those in it; where a host cannot be asked,
    they name the place on that host."""
    for place in job.placements:
        of_host = [i for i, event in enumerate(profiled) if event.host == place.host]
        if not of_host or facts[place.host]["shared"]:
            continue
        there = f"{place.address}:"
        try:
            _fetch(remote, place, facts[place.host]["base"], "profile", run)
            there = ""
        except (JobError, tarfile.TarError, OSError, ValueError):
            pass  # the run is what it is without it; the note says where it lies
        for i in of_host:
            path = PurePosixPath(profiled[i].path)
            where = there + str(path) if there else str(run.profile / path.name)
            profiled[i] = profiled[i].model_copy(update={"path": where})


def copy_between(
    remote: Remote, source: tuple[Placement, str], target: tuple[Placement, str], name: str
) -> None:
    """Copy a folder `name` out of one host's folder into another's, through this machine, which keeps
    nothing.

    `source` and `target`: the host, and the folder there. Raises HostError.
    """
    (giver, there), (taker, here) = source, target
    sending = shell.start(remote(giver, ["sh", "-c", _SCRIPT, "sh", there, name]))
    with _ended(sending):
        taking = shell.start(remote(taker, ["sh", "-c", _UNPACK, "sh", here, name]))
        with _ended(taking):
            assert sending.stdout is not None and taking.stdin is not None
            assert sending.stderr is not None and taking.stderr is not None
            head = b""
            while _MARK not in head and len(head) < 1 << 20 and (more := sending.stdout.read1(1 << 16)):  # type: ignore[attr-defined]
                head += more
            try:
                taking.stdin.write(head.partition(_MARK)[2])
                shutil.copyfileobj(sending.stdout, taking.stdin, 1 << 20)
                taking.stdin.close()
                ends = (giver, sending), (taker, taking)  # whose words come of what it got
            except BrokenPipeError:
                ends = (taker, taking), (giver, sending)  # it says why, while the giver still waits for it
            for place, process in ends:
                assert process.stderr is not None
                why = _reason(process.stderr.read())
                if process.wait() != 0:
                    raise HostError(f"{name} cannot be copied: {why}", host=place.host)


@contextmanager
def _ended(process: Process) -> Iterator[None]:
    """End the process when the block is left, however it is left."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _fetch(remote: Remote, place: Placement, base: str, name: str, run: RunFolder) -> None:
    """Copy `base`/`name` to the run folder's `name`; a folder's files go beside those that are there already.
    """
    argv = remote(place, ["sh", "-c", _SCRIPT, "sh", base, name])
    received, partial = run.path / f"{name}.tar", run.path / f"{name}.fetched"
    try:
        code, _, err = shell.run(argv, timeout=_HOURS * 3600, output=received)
        if code != 0:
            raise HostError(_reason(err), host=place.host)
        shutil.rmtree(partial, ignore_errors=True)
        _unpack(received, partial)
        if (run.path / name).is_dir() and name != "model":
            for file in (partial / name).iterdir():
                file.replace(run.path / name / file.name)
        else:
            _put(partial / name, run.path / name)
    finally:
        received.unlink(missing_ok=True)
        shutil.rmtree(partial, ignore_errors=True)


def _reason(output: bytes) -> str:
    """Return the last line of a host's output that gives a reason: GNU tar ends by reporting that it exits.
    """
    lines = output.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
    return next((line for line in reversed(lines) if not line.startswith(_TAR_ENDS)), lines[-1])


def _put(made: Path, place: Path) -> None:
    """Move a folder into its place, whole. That of an earlier attempt is moved aside first: a folder with
    files cannot be replaced. Raises ValueError where nothing was made."""
    if not made.is_dir():
        raise ValueError(f"what came has no {made.name}")
    aside = place.with_name(f"{place.name}.before")
    shutil.rmtree(aside, ignore_errors=True)  # left by a controller that ended in between
    if place.exists():
        place.replace(aside)
    made.replace(place)
    shutil.rmtree(aside, ignore_errors=True)


def _unpack(received: Path, folder: Path) -> None:
    """Unpack the files behind the mark. Raises ValueError for anything inside that is not a file or folder.
    """
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
