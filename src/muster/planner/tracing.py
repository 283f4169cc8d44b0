"""Trace what the recipe's real model keeps and computes, in a separate process, and cache it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import muster
from muster.core.errors import JobError, RecipeError
from muster.core.recipe import Recipe, recipe_class
from muster.core.registry import versions_of
from muster.core.trace import Trace, TraceRequest, from_json, to_json
from muster.engines.base import spec_of
from muster.fleet import shell
from muster.inputs.model import decided_config, whole_config
from muster.planner.ways import Tracer
from muster.store.atomic import write_json

NEEDED = ("torch", "transformers")
DECIDING = ("torch", "transformers", "accelerate", "peft", "trl")  # whose versions a trace depends on
EAGER, COMPILED = 10, 30  # seconds that a trace takes, as a user is told
PATIENCE = 600.0  # seconds; OPT-175B takes a tenth of it


def request_of(
    recipe: Recipe,
    config: Mapping[str, Any] | None,
    *,
    precision: str,
    device: str,
    ranks: int,
    samples: tuple[int, int] = (2, 4),
) -> TraceRequest | None:
    """Return what to trace for a recipe; None where nothing is trained, or model or lengths are not known
    here.

    `config`: the whole one (inputs/model.py: whole_config); `precision`, `device`, `ranks`: as decided.
    """
    if not recipe.traced or config is None:
        return None
    lengths = recipe.lengths(config)
    if lengths is None:
        return None
    tokens, target = lengths.tokens, lengths.target
    if recipe.padding_varies and device == "cuda":
        tokens, target = -(-tokens // 8) * 8, -(-target // 8) * 8  # as it is padded there
    train, spec = recipe.train, spec_of(recipe.engine.name)
    compiled = train.compile in (True, "cuda-graphs") and device == "cuda"
    spread = spec.shards_weights(recipe.engine.stage, ranks)
    return TraceRequest(
        workload=recipe.workload.replace("_", "-"),
        config={"model_type": recipe.usual_type(), **decided_config(recipe, config)},
        tokens=tokens if recipe.tokenized else 0,  # else they follow from the configuration
        target=target,
        arithmetic=spec.arithmetic(precision, ranks, whole=recipe.computes_half),
        device="cuda" if device == "cuda" else "cpu",
        checkpointing=train.checkpointing,
        lora=recipe.lora.model_dump(mode="json") if recipe.lora else None,
        label_smoothing=train.label_smoothing,
        fused_loss=train.fused_loss,
        samples=samples,
        compiled=compiled,
        inside=compiled and train.fused_loss is False and not spread,
    )


def trace(
    request: TraceRequest,
    *,
    cache: Path | None = None,
    starting: Callable[[], None] | None = None,
) -> Trace | None:
    """Return the trace of a request; None where torch and Transformers are not installed here.

    `cache`: a folder; None: the user's; `starting`: called where it is not cached, and takes seconds. Raises
    RecipeError for what makes no model, JobError for a model that cannot be traced.
    """
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        return None
    asked = json.dumps(asdict(request), sort_keys=True, default=str)
    key = hashlib.sha256(f"{_makers(request.workload)}{asked}".encode()).hexdigest()[:40]
    file = (cache or cache_folder()) / f"{key}.json"
    traced = _remembered(file)
    if traced is None:
        if starting is not None:
            starting()
        traced = _traced(request)
        with contextlib.suppress(OSError):  # a disk that is full or not ours costs time, and nothing else
            write_json(file, to_json(traced))
    return traced


def cache_folder() -> Path:
    """Return the folder of traces, for all runs (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "muster" / "traces"


def _remembered(file: Path) -> Trace | None:
    """Return a cached trace; None where there is none, or the file is not one."""
    try:
        return from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _traced(request: TraceRequest) -> Trace:
    argv = [sys.executable, "-m", "muster.worker.tracing"]
    code, out, err = shell.run(argv, input=json.dumps(asdict(request)).encode(), timeout=PATIENCE)
    try:
        document = json.loads(out)
        problem = document.get("error")
        if problem is None:
            return from_json(document)
        kind = RecipeError if code == RecipeError.exit_code else JobError
        raise kind(problem["what"], where=problem["where"], hint=problem["hint"])
    except (ValueError, KeyError, TypeError, AttributeError):
        last = (err.decode("utf-8", "replace").strip().splitlines() or ["no reason given"])[-1]
        raise JobError(f"the model cannot be traced: {last}") from None


@cache
def _makers(workload: str) -> str:
    """Return a digest of the libraries and the code: computed once, since a plan asks for many ways' traces.
    """
    versions = [versions_of(DECIDING), list(sys.version_info[:2])]
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    root = Path(muster.__file__).parent
    own = Path(inspect.getfile(recipe_class(workload))).parent
    makers = ("worker/**/*.py", "dialogues/*.py", "core/trace.py", "core/loss_parts.py")
    for file in sorted([*chain.from_iterable(map(root.glob, makers)), *own.glob("**/*.py")]):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def tracer(
    recipe: Recipe, precision: str, device: str, ranks: int, *, say: Callable[[str], None] | None = None
) -> Trace | None:
    """Return the recipe's real model, traced here or cached; None where torch is not installed. `say`: gets
    what takes seconds. Raises JobError for a model that cannot be traced."""
    request = request_of(recipe, whole_config(recipe), precision=precision, device=device, ranks=ranks)

    def starting() -> None:
        if say is not None:
            again = " with gradient checkpointing" if recipe.train.checkpointing else ""
            name = recipe.model.name or "the model"
            seconds = COMPILED if request is not None and request.compiled else EAGER
            message = f"tracing {name} in {precision}{again}, without its weights (once; about {seconds} s)"
            say(message)

    return None if request is None else trace(request, starting=starting)


def once(tracer: Tracer, failures: list[str] | None = None) -> Tracer:
    """Return a tracer that asks for each trace once: numbers of hosts and stages of ZeRO need the same ones.
    It returns None where a model cannot be traced, since closed forms are used then; `failures`: gets the
    reason."""
    traces: dict[tuple[bool | str, ...], Trace | None] = {}

    def remembered(recipe: Recipe, precision: str, device: str, ranks: int) -> Trace | None:
        train = recipe.train
        # A compiled graph has the loss in it only where a rank has whole weights.
        compiled = train.compile in (True, "cuda-graphs")
        spread = compiled and spec_of(recipe.engine.name).shards_weights(recipe.engine.stage, ranks)
        engine = recipe.engine.name
        key = (
            engine,
            train.checkpointing,
            train.compile,
            train.fused_loss,
            precision,
            device,
            ranks > 1,
            spread,
        )
        if key not in traces:
            try:
                traces[key] = tracer(recipe, precision, device, ranks)
            except JobError as error:
                traces[key] = None
                if failures is not None:
                    failures.append(str(error))
        return traces[key]

    return remembered
