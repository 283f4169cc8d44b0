"""`measure.peaks`: what a check or a fabric run measured, as the peaks of a job's devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.core.errors import RecipeError
from muster.core.hardware.peaks import MeasuredPeaks, PeakFigure, peaks_in
from muster.core.hostlist import fold_hosts
from muster.core.job import Decision, Facts, Placement

_MAKE = "muster check HOSTS --json > peaks.json, then measure.peaks=peaks.json"
_WHERE = "measure.peaks"


def read_document(file: str) -> dict[str, Any]:
    """Return the file's JSON object. Raises RecipeError."""
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no such file: {file}", where=_WHERE, hint=_MAKE) from None
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}", where=_WHERE) from None
    except (ValueError, RecursionError):
        raise RecipeError(f"{file} is invalid JSON", where=_WHERE, hint=_MAKE) from None
    if not isinstance(data, dict):
        raise RecipeError(f"{file} is not a JSON object", where=_WHERE, hint=_MAKE)
    return data


def read_peaks(file: str) -> MeasuredPeaks:
    """Return the measured figures of a file. Raises RecipeError."""
    try:
        return peaks_in(read_document(file))
    except ValueError as error:
        raise RecipeError(f"{file} {error}", where=_WHERE, hint=_MAKE) from None


def peaks_of(
    file: str | None, places: Sequence[Placement], facts: Facts, threads: Sequence[int] | None
) -> tuple[MeasuredPeaks | None, tuple[Decision, ...]]:
    """Return the figures of these hosts' devices, and a decision where hosts have none. `threads`: of a rank
    on each host's CPUs; None: the ranks have GPUs.

    Raises RecipeError where no host has one, and where one was measured with other devices, or on CPUs with
    another number of threads, than its ranks have now.
    """
    if file is None:
        return None, ()
    measured = read_peaks(file)
    figures: list[PeakFigure] = []
    for index, place in enumerate(places):
        own = [each for each in measured.figures if each.host == place.host]
        names = [gpu["name"] for gpu in facts[place.host].get("gpus") or () if gpu.get("name")]
        wanted = threads[index] if threads else None
        fitting = [each for each in own if _fits(each, names, wanted)]
        if own and not fitting:
            here = f"{_threads(wanted)} a rank" if wanted else ", ".join(dict.fromkeys(names)) or "a GPU"
            raise RecipeError(
                f"{file} has no figure for {here}, but for {' and '.join(dict.fromkeys(map(_words, own)))}",
                where=_WHERE,
                host=place.host,
                hint="check the host again as the run will use it, or measure.peaks=null",
            )
        figures += fitting
    if not figures:
        raise RecipeError(
            f"{file} has figures of {fold_hosts(measured.hosts)}, and of no host of this run",
            where=_WHERE,
            hint=_MAKE,
        )
    peaks = MeasuredPeaks(measured.source, tuple(figures))
    missing = [place.host for place in places if place.host not in peaks.hosts]
    if not missing:
        return peaks, ()
    field = f"peak of {fold_hosts(missing)}"
    return peaks, (Decision(field, "as its maker states it", f"{file} has no figure for it"),)


def _fits(figure: PeakFigure, names: Sequence[str], threads: int | None) -> bool:
    """Return whether a figure is of these devices. `threads`: of a rank on CPUs; None: on GPUs. A part of a
    GPU has a longer name than the GPU."""
    if threads is not None or figure.threads is not None:
        return figure.threads == threads
    return not names or any(figure.device.startswith(name) for name in names)


def _words(figure: PeakFigure) -> str:
    return figure.device if figure.threads is None else _threads(figure.threads)


def _threads(count: int) -> str:
    return f"{count} CPU thread{'' if count == 1 else 's'}"
