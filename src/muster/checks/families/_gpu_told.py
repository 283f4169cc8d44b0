"""What the judges of GPUs share: texts about a GPU, and the finding where it reports no figure. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.checks.base import Finding
from muster.checks.families._judging import About

Judge = Callable[[About, Mapping[str, Any]], Finding]

RESET = "sudo nvidia-smi --gpu-reset -i GPU when no job runs, or sudo reboot; leave the host out until then"


def those(answer: Mapping[str, Any], words: Callable[[Mapping[str, Any]], str | None]) -> str:
    """What `words` says about GPUs, each with its place on the bus."""
    said = ((gpu["bus"], words(gpu)) for gpu in answer["gpus"])
    return ", ".join(f"{bus}: {text}" for bus, text in said if text)


def untold(about: About, answer: Mapping[str, Any], *keys: str) -> Finding | None:
    """Unknown where a GPU does not respond, or does not report what others of its model on the host do; else
    None. What no GPU of a model tells is what the model does not have."""
    told = {(gpu.get("name"), key) for gpu in answer["gpus"] for key in keys if gpu.get(key) is not None}

    def silent(gpu: Mapping[str, Any]) -> str | None:
        missing = [key for key in keys if gpu.get(key) is None]
        if missing and gpu.get("broken"):
            return str(gpu["broken"])
        return "not reported" if any((gpu.get("name"), key) in told for key in missing) else None

    found = those(answer, silent)
    return about.unknown("some GPUs do not report this", found, "nvidia-smi -q -i GPU") if found else None
