"""From what a user typed to a checked recipe, hosts and environment; nothing is started here."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from muster.core.batch import Batch
from muster.core.data import ImageData, TextData, TextToSqlData
from muster.core.errors import DataError, RecipeError
from muster.core.idle import check_idle
from muster.core.inventory import MOUNTED, Inventory, read_inventory
from muster.core.job import Decision
from muster.core.offload import check_offload
from muster.core.recipe import Recipe
from muster.core.recipes import anchored, load_recipe, validate, workloads
from muster.core.registry import load_plugin
from muster.core.secrets import completed
from muster.core.zero import deepspeed_config, given_stage, open_stages
from muster.planner.model import check_model
from muster.stages.image_inputs import check_images
from muster.stages.peaks import read_peaks
from muster.stages.text_inputs import check_sequence, check_text
from muster.store.records import find_data, held_out_questions, read_pairs
from muster.store.values import kept

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Inputs:
    """A recipe and its hosts, checked as far as this machine can."""

    recipe: Recipe
    inventory: Inventory
    launcher: ModuleType
    launcher_name: str
    env: dict[str, str]  # the ranks' variables with their values
    env_files: tuple[Decision, ...] = ()  # files that were read unasked, and what they set


def read_inputs(source: str, hosts: str, overrides: list[str], *, waits: bool = False) -> Inputs:
    """Read and check everything that can be checked before a host is asked. `waits`: see read_inventory.

    Raises RecipeError, InventoryError, DataError.
    """
    recipe = absolute(load_recipe(source, overrides))
    if recipe.measure.peaks:
        read_peaks(recipe.measure.peaks)
    inventory = read_inventory(hosts, waits=waits)
    return check(recipe, inventory)


def check(recipe: Recipe, inventory: Inventory) -> Inputs:
    """The launcher, the environment, and whether recipe and data make sense here."""
    recipe = with_values(recipe)
    own = recipe.launch.ssh_options
    if inventory.ssh_config and not any(word.startswith("-F") for word in own):
        options = {"ssh_options": ["-F", inventory.ssh_config, *own]}
        recipe = recipe.model_copy(update={"launch": recipe.launch.model_copy(update=options)})
    if inventory.launcher == "local" and own and not inventory.pretend:
        inventory = replace(inventory, launcher="ssh")  # localhost, such as a container behind a port
    name = recipe.launch.launcher if recipe.launch.launcher != "auto" else inventory.launcher
    if inventory.pretend and name != "local":
        raise RecipeError(
            f"is {name}, but the hosts are pretend hosts on this machine", where="launch.launcher"
        )
    launcher = load_plugin("muster.launchers", name)
    here = launcher.ONE_MACHINE and not recipe.launch.python
    if here and recipe.workload.replace("_", "-") not in (known := workloads()):
        hint = f"known here: {', '.join(sorted(known))}"
        raise RecipeError(f"no workload is named {recipe.workload!r}", where="workload", hint=hint)
    check_idle(recipe)
    check_model(recipe)
    if recipe.engine.config:
        if recipe.engine.name != "deepspeed":
            raise RecipeError(
                f"is DeepSpeed's, and the engine is {recipe.engine.name}",
                where="engine.config",
                hint="engine.name=deepspeed",
            )
        if recipe.engine.zero == "auto":
            raise RecipeError(
                f"is auto, but {recipe.engine.config} gives a stage",
                where="engine.zero",
                hint="leave engine.zero out, or engine.config",
            )
        recipe = recipe.choosing(zero=given_stage(recipe) or 0)
    elif recipe.engine.name == "deepspeed":
        deepspeed_config(recipe.choosing(zero=open_stages(recipe)[-1]), Batch(1, 1, 1), "fp32")
        stage = given_stage(recipe)
        recipe = recipe if stage is None else recipe.choosing(zero=stage)
    elif recipe.engine.zero:
        raise RecipeError(
            f"ZeRO-{recipe.engine.zero} is DeepSpeed's, and the engine is {recipe.engine.name}",
            where="engine.zero",
            hint="engine.name=deepspeed",
        )
    check_offload(recipe)
    if recipe.measure.attention and recipe.train.compile:
        raise RecipeError(
            "torch.compile leaves no attention function to measure",
            where="measure.attention",
            hint="train.compile=false, or measure.attention=false",
        )
    if recipe.batch.split == "measured" and recipe.engine.name != "ddp":
        raise RecipeError(
            f"each rank's speed is measured with the whole model, and {recipe.engine.name} spreads it",
            where="batch.split",
            hint="engine.name=ddp; or the shares themselves, such as batch.split=[11,5]",
        )
    check_data(recipe, here=launcher.ONE_MACHINE)
    env, files = environment(recipe)
    if inventory.source == str(MOUNTED):
        files = (Decision("hosts", inventory.source, "where DeepSpeed looks for a host file"), *files)
    return Inputs(recipe, inventory, launcher, name, env, files)


def with_values(recipe: Recipe) -> Recipe:
    """The recipe with the values that a shared file does not hold. Raises RecipeError for an unknown one."""
    data = recipe.as_dict()
    made = completed(data, kept(recipe.env_kept), os.environ)
    return recipe if made == data else validate(made, where="recipe")


def absolute(recipe: Recipe) -> Recipe:
    """The recipe with paths that do not depend on where it was started, and a data source."""
    data = anchored(recipe.as_dict(), Path.cwd())
    if recipe.data.source is None and recipe.data.embedded:
        data["data"][recipe.data.embedded] = {}
    return validate(data, where="recipe")


def check_data(recipe: Recipe, *, here: bool) -> None:
    """Read the data where this machine has it. `here`: it must have it. Raises DataError."""
    if isinstance(recipe.data, TextData):
        check_sequence(recipe, recipe.data)
    if not recipe.data.path:
        return
    path = Path(recipe.data.path)
    if not path.exists():
        if here:
            raise DataError("no such data", where=str(path), hint="data.path=FILE or FOLDER")
        return  # on the hosts, whose ranks will say so if it is not
    if isinstance(recipe.data, TextData):
        check_text(recipe, recipe.data)
    if isinstance(recipe.data, ImageData):
        check_images(recipe, recipe.data)
    if isinstance(recipe.data, TextToSqlData):
        _check_pairs(recipe, recipe.data)


def _check_pairs(recipe: Recipe, data: TextToSqlData) -> None:
    """Read the files as the ranks will. Raises DataError."""
    files = find_data(Path(str(data.path)))
    questions = {row.question for row in read_pairs(files.train, data, limit=data.limit)}
    if files.validation:
        for _ in read_pairs(files.validation, data):
            pass
    else:
        held_out_questions(questions, data, recipe.train.seed)


def environment(recipe: Recipe) -> tuple[dict[str, str], tuple[Decision, ...]]:
    """The ranks' variables: `.deepspeed_env` of the home folder, of this folder, and the recipe's on top; and
    which file sets which."""
    env: dict[str, str] = {}
    source: dict[str, Path] = {}
    for folder in dict.fromkeys((Path.home(), Path.cwd())):
        file = folder / ".deepspeed_env"
        if file.is_file():
            if folder == Path.cwd():
                _check_owner(file)
            found = read_deepspeed_env(file)
            env |= found
            source |= dict.fromkeys(found, file)
    for name in recipe.env:
        if not _NAME.fullmatch(name):
            raise RecipeError(f"{name!r} is not the name of an environment variable", where="env")
    given = {name: value for name, value in recipe.env.items() if value is not None}
    files: dict[Path, list[str]] = {}
    for name, file in source.items():
        if name not in given:
            files.setdefault(file, []).append(name)
    told = tuple(Decision("env", ", ".join(names), f"set by {file}") for file, names in files.items())
    return env | given, told


def _check_owner(file: Path) -> None:
    """Raises RecipeError where another user could set variables for this user's ranks."""
    owner = file.stat().st_uid
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


def read_deepspeed_env(path: Path) -> dict[str, str]:
    """NAME=VALUE lines, as DeepSpeed's launcher reads them; `#` comments and blank lines are left out."""
    env = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", where=str(path)) from None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise RecipeError(
                "is not NAME=VALUE",  # the line itself may be secret
                where=f"{path}:{number}",
                hint="one variable per line, without `export`",
            )
        env[name.strip()] = value.strip().strip('"')
    return env
