"""From what a user typed to a checked bench: suite, recipes, hosts, jobs; nothing is started here."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from muster.benches.folder import BenchFolder
from muster.benches.schedule import Impossible, Schedule, make_schedule, read_task
from muster.benches.suite import Entry, Narrowing, Suite, load_suite, suite_from
from muster.benches.switches import check_switches, switches_of
from muster.core.batch import check_groups, resolve_batch
from muster.core.errors import RecipeError, UsageError
from muster.core.inventory import Host, Inventory, read_inventory, stored_inventory
from muster.core.recipe import Recipe, recipe_from
from muster.core.recipes import dump_yaml, load_recipe, read_yaml, validate
from muster.inputs.entries import command_name, recipes_of
from muster.inputs.following import in_entry, standing_in
from muster.inputs.read import absolute, check
from muster.judging import Topology
from muster.store.secrets import masked_override, masked_program, shared_section
from muster.store.values import recipe_file
from muster.workloads.command.spec import CommandRecipe

AT_ONCE = 64  # jobs at a time unless more are asked for: each has a controller on this machine, of 0.1 GB
_WHOLE = Narrowing()
SPARE = 60.0  # seconds beyond its own timeout after which a job ends by itself, should the bench be gone


@dataclass(frozen=True)
class BenchInputs:
    """A bench, checked as far as this machine can."""

    name: str
    suite: Suite
    inventory: Inventory
    recipes: Mapping[str, Recipe]  # by entry
    overrides: tuple[str, ...] = ()  # for the result, without secrets: the recipes have them in already
    schedule: Schedule = field(default_factory=lambda: Schedule(()))

    @property
    def at_once(self) -> int:
        """Jobs at a time."""
        return self.suite.at_once or AT_ONCE

    @property
    def impossible(self) -> Impossible:
        """Tells why a job cannot be on some hosts."""
        slots = {host.label: host.slots for host in self.inventory.hosts}

        def why(entry: str, hosts: Sequence[str]) -> str | None:
            return _indivisible(entry, self.recipes[entry], [slots[host] for host in hosts])

        return why

    @property
    def topology(self) -> Topology:
        """The hosts that take part, and which of them are behind which switch."""
        return Topology.of(self.inventory.names, switches_of(self.suite))

    def on(self, hosts: Sequence[Host]) -> BenchInputs:
        """Return the same on these hosts, with its jobs."""
        made = replace(self, inventory=replace(self.inventory, hosts=tuple(hosts)))
        return replace(made, schedule=make_schedule(self.suite, made.inventory.names, made.impossible))


def read_bench(
    source: str,
    hosts: str,
    overrides: Sequence[str] = (),
    *,
    recipe: str | Mapping[str, Any] = "",
    at_once: int | None = None,
    narrowing: Narrowing = _WHOLE,
) -> BenchInputs:
    """Read and check everything that can be checked before a host is asked.

    `recipe`: in place of the one that the suite's entries train, its name or itself; `overrides`: key=value
    of every recipe that has the key, or ENTRY:key=value of one. Raises UsageError and its subclasses.
    """
    suite = narrowing.of(load_suite(source))
    if recipe:
        suite = _with_recipe(suite, recipe) if isinstance(recipe, str) else _with_command(suite, recipe)
    if at_once is not None:
        suite = suite.model_copy(update={"at_once": at_once})
    inventory = read_inventory(hosts)
    recipes = recipes_of(suite.jobs, overrides, "entry", ":")
    name = Path(source).name.removesuffix(".yaml")
    checked = {}
    with tempfile.TemporaryDirectory(prefix="muster-") as stand:
        for entry, standing in standing_in(recipes, Path(stand)):
            with in_entry(entry, Path(stand)):
                checked[entry] = _checked(recipes[entry], standing, inventory, suite)
    check_switches(suite, inventory)
    shown = {each for entry in checked.values() for each in entry.env_show}
    masked = tuple(masked_override(str(each), shown) for each in overrides)
    made = BenchInputs(name, suite, inventory, checked, masked).on(inventory.hosts)
    if not made.schedule.tasks and not any(suite.of(each).groups == "adaptive" for each in suite.jobs):
        why = "; ".join(made.schedule.notes)
        raise UsageError("no job of the suite can be made of these hosts", where=inventory.source, hint=why)
    return made


def _indivisible(entry: str, recipe: Recipe, slots: Sequence[int | None]) -> str | None:
    """Return why the ranks make no whole groups, or cannot share the batch, as far as slots are known."""
    batch = recipe.batch
    if not recipe.trains or None in slots:
        return None
    try:
        ranks = sum(count or 0 for count in slots)
        check_groups(recipe.engine.group or 0, ranks)
        if batch.global_:
            resolve_batch(batch.micro, batch.accumulation, batch.global_, world_size=ranks)
    except RecipeError as error:
        return f"{entry}, {len(slots)} hosts: {error.what}; {error.hint}"
    return None


def _checked(recipe: Recipe, standing: Recipe, inventory: Inventory, suite: Suite) -> Recipe:
    """Check a recipe as `muster train` does; with all hosts of its group, and a time limit of its own.
    `standing`: the same with stand-ins for models of other entries."""
    made, recipe = check(_anywhere(standing), inventory), _anywhere(recipe)
    if made.launcher.ONE_MACHINE:
        recipe = _with_equal_threads(recipe, inventory)
    if recipe.launch.port and made.launcher.ONE_MACHINE and suite.at_once != 1:
        raise RecipeError(
            "several jobs on this machine cannot meet at one port",
            where="launch.port",
            hint="leave it out: a free one is found; or --jobs 1",
        )
    return recipe


def _anywhere(recipe: Recipe) -> Recipe:
    """Return a recipe that runs on as many hosts as the suite says, from any folder in which the bench is
    continued."""
    recipe = absolute(_launched(recipe, hosts=None))
    return recipe.started_in(Path.cwd()) if isinstance(recipe, CommandRecipe) else recipe


def _with_equal_threads(recipe: Recipe, inventory: Inventory) -> Recipe:
    """Give a rank as many threads in a job on few pretend hosts as in one on all of them: jobs share the
    machine's cores, and sizes are compared."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = recipe.launch.threads or max(1, cores // sum(host.slots or 1 for host in inventory.hosts))
    return _launched(recipe, threads=threads)


def _launched(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with another `launch`."""
    return recipe.model_copy(update={"launch": recipe.launch.model_copy(update=changes)})


def limited(recipe: Recipe, timeout: float) -> Recipe:
    """Return the recipe with a time limit of its own, for the case that no bench is there to end it."""
    return _launched(recipe, timeout=min(recipe.launch.timeout or math.inf, timeout + SPARE))


def _with_recipe(suite: Suite, recipe: str) -> Suite:
    """Return the suite with this recipe for every entry that trains. Raises UsageError where they differ by
    their recipe."""
    training = _training(suite, "--recipe", "changes of all of them: KEY=VALUE, such as model.name=t5-large")
    jobs = [
        each.model_copy(update={"recipe": recipe}) if each.name in training else each for each in suite.jobs
    ]
    return suite.model_copy(update={"jobs": jobs})


def _training(suite: Suite, where: str, hint: str) -> set[str]:
    """Return the entries that train, or run a command. Raises UsageError where they differ by their recipe.
    """
    recipes = {}
    for each in suite.jobs:
        kind = (
            validate(each.recipe, where=each.name)
            if isinstance(each.recipe, dict)
            else load_recipe(each.recipe)
        )
        if kind.trains or kind.foreign:
            recipes[each.name] = str(each.recipe)
    if len(set(recipes.values())) > 1:
        raise UsageError("the entries of this suite differ by their recipe", where=where, hint=hint)
    return set(recipes)


def _with_command(suite: Suite, recipe: Mapping[str, Any]) -> Suite:
    """Return the suite with this command for every entry that trains, on the same groups as often: without
    what belongs to the recipe, which are its settings, its thresholds, and published figures. Entries that
    differ by those alone become one. Raises UsageError where they differ by their recipe."""
    own = _training(suite, "-- COMMAND", "a suite of your own can have `command: [...]` next to any recipe")
    jobs: list[Entry] = []
    for each in suite.jobs:
        if each.name in own:
            apart = {"recipe": recipe, "set": {}, "thresholds": [], "published": [], "after": []}
            name = command_name(recipe["command"])
            each = each.model_copy(update={**apart, "name": name})
            kept = ("groups", "cover", "repeats", "timeout")
            if any(
                all(getattr(each, key) == getattr(job, key) for key in kept) for job in jobs if job.foreign
            ):
                continue
            if any(job.name == name for job in jobs):
                each = each.model_copy(update={"name": f"{name[:38]}-{len(jobs) + 1}"})
        elif set(each.after) & own:
            continue  # it would go on from the model of such a training
        jobs.append(each)
    about = f"{suite.about}; with a command in place of what it trains"
    return suite.model_copy(update={"jobs": jobs, "compare": None, "about": about})


def freeze_bench(folder: BenchFolder, inputs: BenchInputs) -> None:
    """Write suite, recipes and schedule: a bench that continues reads these alone."""
    suite = inputs.suite.model_dump(mode="json", by_alias=True)
    for each in suite["jobs"]:  # the entries' recipes have what is set; here it is only to be read
        shown = inputs.recipes[each["name"]].env_show
        if isinstance(each["recipe"], dict) and "command" in each["recipe"]:
            each["recipe"]["command"] = masked_program(each["recipe"]["command"])
        each["set"] = {name: shared_section(name, value, shown) for name, value in each["set"].items()}
    folder.write(folder.suite, dump_yaml(suite))
    for entry in inputs.suite.jobs:
        recipe = limited(inputs.recipes[entry.name], inputs.suite.of(entry).timeout)
        folder.write(folder.recipe(entry.name), recipe_file(recipe.as_dict()))
    write_schedule(folder, inputs)


def write_schedule(
    folder: BenchFolder, inputs: BenchInputs, dropped: Mapping[str, str] | None = None
) -> None:
    """Write hosts, jobs and notes; `dropped`: hosts that take no part, and why (None: as it was)."""
    if dropped is None:
        dropped = folder.read_schedule().get("dropped", {}) if folder.schedule.exists() else {}
    folder.write_data(
        folder.schedule,
        {
            "suite": inputs.name,
            "mark": folder.mark,
            "started": started_of(folder),
            "overrides": list(inputs.overrides),
            **inputs.inventory.as_dict(),
            "dropped": dict(dropped),
            "notes": list(inputs.schedule.notes),
            "jobs": [asdict(task) for task in inputs.schedule.tasks],
        },
    )


def started_of(folder: BenchFolder) -> float:
    """Return when the bench was begun: Unix time."""
    return float(folder.read_schedule()["started"]) if folder.schedule.exists() else time.time()


def reread(folder: BenchFolder, at_once: int | None = None) -> BenchInputs:
    """Return a bench as it was frozen. Raises RunFolderError and UsageError."""
    data = folder.read_schedule()
    suite = suite_from(read_yaml(folder.suite), where=str(folder.suite))
    if at_once is not None:
        suite = suite.model_copy(update={"at_once": at_once})
    try:
        inventory = stored_inventory(data, str(folder.schedule))
        schedule = Schedule(tuple(read_task(each) for each in data["jobs"]), tuple(data["notes"]))
        name, overrides = str(data["suite"]), tuple(map(str, data["overrides"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"is damaged: {type(error).__name__}: {error}", where=str(folder.schedule)) from None
    recipes = {each.name: recipe_from(read_yaml(folder.recipe(each.name))) for each in suite.jobs}
    return BenchInputs(name, suite, inventory, recipes, overrides, schedule)
