"""Run one short job of the recipe on each host alone, so that what is compiled at first use is compiled once.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster.core import families
from muster.core.errors import HostError, JobError
from muster.core.inventory import Host
from muster.core.recipe import Recipe
from muster.core.recipes import dump_yaml, merge, parse_override
from muster.fleet import shell
from muster.fleet.shell import Process
from muster.inputs.model import is_t5, model_config
from muster.inputs.read import Inputs
from muster.prepare.host import Progress
from muster.store.atomic import write_text
from muster.store.runfolder import RunFolder

FOLDERS = {"TORCH_EXTENSIONS_DIR": "torch_extensions", "TRITON_CACHE_DIR": "triton"}
_SLOTS = threading.BoundedSemaphore(16)  # jobs that this machine supervises at the same time
SAMPLES = 256
LAYERS: tuple[tuple[tuple[str, ...], dict[str, int]], ...] = (  # what makes a family's models one layer deep
    (families.t5.MODEL_TYPES, {"num_layers": 1, "num_decoder_layers": 1}),
    (families.gpt2.MODEL_TYPES, {"n_layer": 1}),
    (families.opt.MODEL_TYPES + families.llama.MODEL_TYPES, {"num_hidden_layers": 1}),
    (families.vit.MODEL_TYPES, {"num_hidden_layers": 1}),
)


def kernel_folders(
    facts: Mapping[str, Mapping[str, Any]], env: Mapping[str, str], base: str | None, digest: str
) -> dict[str, tuple[str, ...]]:
    """Return variables with the folders, in parts, for kernels on each host's own disk. What `env` has stays.

    Without `base` there are some only where a home folder is on a network file system, and then in /tmp:
    builds of several hosts in one folder wait for each other's locks, for ever where one was killed.
    """
    if base is None and not any(one["home_is_remote"] for one in facts.values()):
        return {}
    user = next(iter(facts.values()))["uid"]
    above = (base or "/tmp", f"muster-{user}", digest[:16])
    return {name: (*above, folder) for name, folder in FOLDERS.items() if name not in env}


def warm_recipe(inputs: Inputs, use: list[str], cache: str, timeout: float) -> dict[str, Any]:
    """Return the recipe as a job of one rank and one step; a model with one layer of its width has every
    kernel.

    The weights are random: nothing is loaded, and a model that needs many ranks fits into one.
    """
    recipe = inputs.recipe
    data = recipe.as_dict()
    for override in use:
        key, _, value = override.partition("=")
        data = merge(data, parse_override(f"{key}={json.dumps(value)}"), type(recipe))
    samples = max(SAMPLES, 2 * (recipe.batch.micro or 1))
    data["train"] |= {"max_steps": 1, "max_minutes": None, "warmup": 0, "workers": 0}
    data["batch"] = {"micro": recipe.batch.micro, "accumulation": 1, "global": None}
    data["evaluate"] |= {"every": None, "after": False}
    data["checkpoint"] |= {"every": None}
    data["measure"] |= {"window": 1, "warmup": 0, "profile": "none"}
    data["data"]["limit"] = min(samples, recipe.data.limit or samples)
    data = merge(data, {"data": recipe.data.short(samples)}, type(recipe))
    layers = next((fields for kinds, fields in LAYERS if _kind(recipe) in kinds), None)
    if layers:
        data["model"]["init"] = "random"
        data["model"]["config"] = {**(recipe.model.config or {}), **layers}
    data["launch"] |= {"workdir": f"{cache}/warm", "port": None, "address": None, "timeout": timeout}
    data["launch"]["hosts"] = None  # it runs on each of them alone
    if not inputs.launcher.ONE_MACHINE:
        data["launch"]["launcher"] = inputs.launcher_name
    return data


def _kind(recipe: Recipe) -> str:
    """Return Transformers' name for the model's family; empty where it is not known here."""
    if is_t5(recipe):
        return "t5"
    default = None if recipe.model.name else recipe.usual_type()
    return str((model_config(recipe) or {}).get("model_type") or default or "").lower()


class WarmJob:
    """Runs one recipe's short job (`data`) on each host alone. `folder`: one of this machine, which the
    caller removes."""

    def __init__(
        self,
        inputs: Inputs,
        data: dict[str, Any],
        folder: Path,
        progress: Progress,
        stop: Callable[[], str | None],
    ) -> None:
        self.inputs, self.folder, self.progress, self.stop = inputs, folder, progress, stop
        self.data = data
        self.recipe = folder / "recipe.yaml"
        folder.mkdir(parents=True)
        write_text(self.recipe, dump_yaml(self.data), private=True)  # its env may hold secrets

    def mark(self, digest: str, label: str) -> str:
        """Return the name under which a host remembers the job: what decides which kernels there are, and
        their folder. `digest`: of its environment."""
        shown = ("workload", "model", "engine", "precision", "lora", "env")
        content = [digest, label, *(self.data[name] for name in shown), self.data["train"]["compile"]]
        return f"warm-{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]}.json"

    def run(self, host: Host) -> str:
        """Run `muster train` in its own process: many at once do not share one interpreter. Return what it
        left below the cache of the host. Raises HostError, and JobError where all is stopped."""
        name = f"warm-{secrets.token_hex(4)}"
        hosts = "local:1" if self.inputs.launcher.ONE_MACHINE else f"{host.name}:1"
        argv = [sys.executable, "-m", "muster", "train", str(self.recipe), "--hosts", hosts]
        with _SLOTS:
            self.progress(host.label, "one step of training, to warm the kernel caches")
            process = shell.start([*argv, "--output", str(self.folder / name), "--json"])
            try:
                answer = self._answer(process)
            finally:
                if process.poll() is None:  # it stops its ranks by itself
                    os.kill(process.pid, signal.SIGTERM)
                    process.communicate()
        if process.wait() != 0:
            raise _failure(host.label, answer)
        return f"warm/{RunFolder(self.folder / name).elsewhere}"

    def _answer(self, process: Process) -> bytes:
        while True:
            try:
                return process.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                if why := self.stop():
                    raise JobError(why) from None


def _failure(host: str, answer: bytes) -> HostError:
    """Return why the job failed, from the document that it printed."""
    try:
        document = json.loads(answer)
        about = document.get("failure") or document["error"]
        what, hint, failure = str(about["what"] or about["message"]), about.get("hint"), about.get("id")
    except (ValueError, KeyError, TypeError):
        what, hint, failure = "the job printed nothing", None, None
    return HostError(f"one step of training failed: {what}", host=host, hint=hint, failure=failure)
