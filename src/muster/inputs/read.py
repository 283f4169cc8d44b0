"""From what a user typed to a checked recipe, hosts and environment; nothing is started here."""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from muster.core import families
from muster.core.errors import DataError, ReaderMissingError, RecipeError
from muster.core.inventory import MOUNTED, Inventory, read_inventory
from muster.core.job import Decision
from muster.core.recipe import EVERYWHERE, Recipe
from muster.core.recipes import (
    anchored,
    inherited,
    leaves_of,
    load_recipe,
    parse_override,
    validate,
    workloads,
)
from muster.core.registry import held_module, load_plugin
from muster.core.workload import Survey
from muster.engines.base import merged, overruled, spec_of
from muster.fleet.launchers.base import Request
from muster.inputs.model import check_model, model_config
from muster.inputs.peaks import read_peaks
from muster.store.runfolder import DEFAULT_ROOT, LAST, PipelineFolder, RunFolder, find_any, folder_at
from muster.store.secrets import completed
from muster.store.values import kept

OVERRULED = "overruled"  # of those that say what an engine's own file makes of no effect
INHERITED = "inherited"  # the field of decisions that say what comes from which recipe
LAUNCHERS = "muster.launchers"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Inputs:
    """A recipe and its hosts, checked as far as this machine can."""

    recipe: Recipe
    inventory: Inventory
    launcher: ModuleType
    launcher_name: str
    env: dict[str, str]  # the ranks' variables with their values
    noted: tuple[Decision, ...] = ()  # what was read unasked: files and what they set, inherited settings
    checked: Survey | None = None  # what `check_data` read
    surveyed: Survey | None = None  # what a plan counted


def read_inputs(
    source: str | Mapping[str, Any], hosts: str, overrides: list[str], *, waits: bool = False
) -> Inputs:
    """Read and check everything that can be checked before a host is asked. `waits`: see read_inventory.

    Raises RecipeError, InventoryError, DataError.
    """
    recipe = read_recipe(source, overrides)
    if recipe.measure.peaks:
        read_peaks(recipe.measure.peaks)
    inventory = read_inventory(hosts, waits=waits)
    inputs = check(recipe, inventory)
    return replace(inputs, noted=(*inherited_decisions(source, overrides, recipe), *inputs.noted))


def inherited_decisions(
    source: str | Mapping[str, Any], overrides: Sequence[str], recipe: Recipe
) -> list[Decision]:
    """Return which settings of inherited recipes stay in effect under the user's own, those of a
    configuration for the engine included, and which overrides that leaves without effect. `recipe`: what all
    make."""
    name, settings = inherited(source, overrides)
    replaced = spec_of(recipe.engine.name).given(recipe).replaced
    kept = {key: value for key, value in settings.items() if key not in replaced}
    words = (f"{key}={each if isinstance(each, str) else json.dumps(each)}" for key, each in kept.items())
    stays = [Decision(INHERITED, name, " ".join(words))] if kept else []
    changes = {key for each in overrides for key in leaves_of(parse_override(each))}
    return [*stays, *(Decision(OVERRULED, "", each) for each in overruled(recipe, changes))]


def inputs_of(data: Mapping[str, Any], hosts: str) -> Inputs:
    """Return the inputs of a recipe from the command line. Raises RecipeError, InventoryError."""
    recipe = absolute(validate(data, where="the command line"))
    return check(recipe, read_inventory(hosts, waits=True))


def read_recipe(source: str | Mapping[str, Any], overrides: Sequence[str]) -> Recipe:
    """Return a recipe with its changes and whole paths. Raises RecipeError."""
    return absolute(load_recipe(source, overrides))


def check(recipe: Recipe, inventory: Inventory) -> Inputs:
    """Check the launcher, the environment, and whether recipe and data make sense here."""
    recipe = with_values(recipe)
    if inventory.launcher == "local" and recipe.launch.ssh_options and not inventory.pretend:
        inventory = replace(inventory, launcher="ssh")  # localhost, such as a container behind a port
    name = recipe.launch.launcher if recipe.launch.launcher != "auto" else inventory.launcher
    if inventory.pretend and name != "local":
        raise RecipeError(
            f"is {name}, but the hosts are pretend hosts on this machine", where="launch.launcher"
        )
    launcher = held_module(
        LAUNCHERS, name, load_plugin(LAUNCHERS, name), {"requests": list[Request], "remote": list[str]}
    )
    here = launcher.ONE_MACHINE and not recipe.launch.python
    if here and recipe.workload.replace("_", "-") not in (names := workloads()):
        hint = f"known here: {', '.join(sorted(names))}"
        raise RecipeError(f"no workload is named {recipe.workload!r}", where="workload", hint=hint)
    check_idle(recipe)
    check_model(recipe)
    engine = spec_of(recipe.engine.name)
    recipe = merged(engine.checked(recipe))
    if recipe.measure.attention and recipe.train.compile in (True, "cuda-graphs"):
        raise RecipeError(
            "torch.compile leaves no attention function to measure",
            where="measure.attention",
            hint="train.compile=false, or measure.attention=false",
        )
    if recipe.batch.split == "measured" and not engine.plain:
        raise RecipeError(
            f"each rank's speed is measured with the whole model, and {recipe.engine.name} spreads it",
            where="batch.split",
            hint="engine.name=ddp; or the shares themselves, such as batch.split=[11,5]",
        )
    checked = check_data(recipe, here=launcher.ONE_MACHINE)
    env, files = environment(recipe)
    if inventory.source == str(MOUNTED):
        files = (Decision("hosts", inventory.source, "where DeepSpeed looks for a host file"), *files)
    return Inputs(recipe, inventory, launcher, name, env, files, checked)


def with_values(recipe: Recipe) -> Recipe:
    """Return the recipe with the values that a shared file does not contain. Raises RecipeError for an
    unknown one."""
    data = recipe.as_dict()
    made = completed(data, kept(recipe.env_kept), os.environ)
    return recipe if made == data else validate(made, where="recipe")


def absolute(recipe: Recipe) -> Recipe:
    """Return the recipe with paths that do not depend on the current folder, and a data source. Raises
    RecipeError where its model is that of a run without one."""
    before = recipe.as_dict()
    made = anchored(before, Path.cwd())
    name, init = made["model"]["name"], recipe.model.init
    made["model"] = {**made["model"], "name": name and _trained(name, init)}
    for section, key in recipe.other_models:
        if value := made[section][key]:
            made[section] = {**made[section], key: _trained(_here(value), "pretrained", f"{section}.{key}")}
    if recipe.data.source is None and recipe.data.embedded:
        made["data"] = {**made["data"], recipe.data.embedded: {}}
    sections = {name: part for name, part in made.items() if part != before[name]}  # the others were checked
    return recipe.model_copy(
        update={name: type(getattr(recipe, name)).model_validate(part) for name, part in sections.items()}
    )


def _here(name: str) -> str:
    """Return a folder by its whole path; any other name as it is."""
    return os.path.abspath(name) if os.path.isdir(name) else name  # noqa: PTH100, PTH112 - never raise


def _trained(name: str, init: str, where: str = "model.name") -> str:
    """Return a model's name, or the folder of a run's trained model where it names a run: `last`, an id, or a
    folder; of a pipeline that of its last step. `where`: the recipe's key.

    A known size stays that size, whatever runs are called.
    """
    if families.size(name):
        return name
    run_folder = _run_of(name)
    if run_folder is None:
        return name
    run = run_folder.trained
    if not (run.model / "config.json").is_file():
        raise RecipeError(
            f"the run {run.id} has no trained model",
            where=where,
            hint="it did not finish, or checkpoint.model=false; `muster ls` lists others",
        )
    if init == "random":
        raise RecipeError(
            f"names the model of the run {run.id}, and model.init=random would draw other weights",
            where=where,
            hint="model.init=pretrained",
        )
    return str(run.model)


def _run_of(name: str) -> RunFolder | PipelineFolder | None:
    """Return the run or pipeline of this name, id or folder; None: it names none. Raises where there is no
    last one."""
    places = [Path(os.path.expanduser(name)), DEFAULT_ROOT / name]  # noqa: PTH111 - never raises
    folder = next((there for each in places if (there := folder_at(each))), None)
    return find_any(name) if folder is None and name in LAST else folder


def check_data(recipe: Recipe, *, here: bool) -> Survey | None:
    """Read the data where this machine has it, and return what was read. `here`: it must have it. Raises
    DataError."""
    path = Path(recipe.data.path) if recipe.data.path else None
    if path is not None and not path.exists():
        if here:
            raise DataError("no such data", where=str(path), hint="data.path=FILE or FOLDER")
        path = None  # on the hosts, whose ranks will say so if it is not
    with suppress(ReaderMissingError):  # ranks have the reader, and say what is wrong
        return recipe.check_data(path, model_config(recipe) or {})
    return None


PASSED = ("NCCL_", "UCX_", "GLOO_", "MV2_")  # as Slurm and DeepSpeed's launcher pass them on


def environment(recipe: Recipe) -> tuple[dict[str, str], tuple[Decision, ...]]:
    """Return the ranks' variables, and what sets which: this shell's that configure communication libraries,
    `.deepspeed_env` of the home folder and of this folder, then the recipe's."""
    env = {name: value for name, value in sorted(os.environ.items()) if name.startswith(PASSED)}
    source: dict[str, Path | str] = dict.fromkeys(env, "this shell, and passed on")
    for folder in dict.fromkeys((Path.home(), Path.cwd())):
        file = folder / ".deepspeed_env"
        if file.is_file():
            if folder == Path.cwd():
                _check_owner(file)
            variables = read_env_file(file)
            env |= variables
            source |= dict.fromkeys(variables, file)
    for name in recipe.env:
        if not _NAME.fullmatch(name):
            raise RecipeError(f"{name!r} is not the name of an environment variable", where="env")
    given = {name: value for name, value in recipe.env.items() if value is not None}
    names: dict[Path | str, list[str]] = {}
    for name, place in source.items():
        if name not in given:
            names.setdefault(place, []).append(name)
    decisions = (Decision("env", ", ".join(each), f"set by {place}") for place, each in names.items())
    return env | given, tuple(decisions)


def _check_owner(file: Path) -> None:
    """Raise RecipeError where another user could set variables for this user's ranks."""
    about = file.stat()
    owner = about.st_uid
    if about.st_mode & stat.S_IWOTH:
        raise RecipeError(
            "can be written by every user, and would set variables of your ranks",
            where=str(file),
            hint=f"check what it sets, then: chmod o-w {file.name}",
        )
    if owner not in (os.getuid(), 0):  # root can do anything as it is
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"user {owner}"
        raise RecipeError(
            f"belongs to another user ({name}), and would set variables of your ranks",
            where=str(file),
            hint=f"start muster in another folder, or make it your own: cp {file.name} mine && mv -f mine "
            f"{file.name}",
        )


def read_env_file(path: Path) -> dict[str, str]:
    """Read NAME=VALUE lines, as of `--env-file` or `.deepspeed_env`; `export` before one and quotes around a
    value mean what they do in a shell. Comments (#) and blank lines are left out. Raises RecipeError."""
    env = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", where=str(path)) from None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise RecipeError(
                "is not NAME=VALUE",  # the line itself may be secret
                where=f"{path}:{number}",
                hint="one variable per line",
            )
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        env[name.strip()] = value[1:-1] if quoted else value
    return env


# ----------------------------------------------------------------------------------------------------
# Fields of a recipe that mean nothing to its workload. Pure.

_HINTS = {
    "precision": "every precision that a device supports is measured",
    "measure": "only measure.hardware_seconds means something here",
}


def check_idle(recipe: Recipe) -> None:
    """Check that what is not trained has no model, engine or batch. Raises RecipeError for a field that would
    be ignored."""
    if recipe.trains:
        return
    own = type(recipe).own_sections()
    counts = " and ".join(f"{name}.*" for name in (*own, "launch"))
    changed: dict[str, Any] = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for section, value in changed.items():
        left = {k: v for k, v in value.items() if k != "hardware_seconds"} if section == "measure" else value
        if section in ("workload", *EVERYWHERE, *own) or not left:
            continue
        where = section
        while isinstance(left, dict) and left:
            key, left = next(iter(left.items()))
            where = f"{where}.{key}"
        raise RecipeError(
            f"means nothing to {recipe.workload}, which trains nothing",
            where=where,
            hint=_HINTS.get(section, f"leave it out; {counts} are what counts"),
        )
