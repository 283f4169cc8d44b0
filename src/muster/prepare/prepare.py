"""`muster prepare`: the same environment, the recipes' models and data, and warm kernel caches on every host.

Hosts are prepared at the same time. One that fails is named and left out; the others get ready.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.core.errors import HostError, MusterError
from muster.fleet.interrupts import interrupts
from muster.fleet.shell import more_files
from muster.inputs.read import Inputs
from muster.prepare.host import Contents, HostJobs, Progress, own_uv
from muster.prepare.plan import LocalFile, Options, PreparePlan, make_plan
from muster.prepare.result import Difference, PreparedHost, Provisioned, differences
from muster.prepare.warm import WarmJob, kernel_folders, warm_recipe

AT_ONCE = 64  # hosts that are made ready at the same time
_LOOK = 0.2  # seconds between two looks whether all is to stop


class _Preparation:
    """The progress of each host, and how to do something on all of them."""

    def __init__(
        self,
        recipes: Sequence[Inputs],
        options: Options,
        plan: PreparePlan,
        contents: Contents,
        progress: Progress,
        stop: Callable[[], str | None],
    ) -> None:
        self.inputs, self.options, self.plan, self.contents = recipes[0], options, plan, contents
        self.progress, self.stop = progress, stop
        self.envs = [each.env for each in recipes]
        self.files = plan.files()
        self.uv = own_uv() if plan.pinned else None
        self.hosts = {host.label: host for host in self.inputs.inventory.hosts}
        self.reports = {label: PreparedHost(label) for label in self.hosts}
        self.facts: dict[str, dict[str, Any]] = {}  # what each host has, where its `make` has not failed
        self.brought: dict[str, list[str]] = {}  # contents that a host's agent keeps from now on
        self.jobs = {
            label: HostJobs(host, self.inputs, plan, options, progress, stop)
            for label, host in self.hosts.items()
        }

    def each(self, work: Callable[[str], None]) -> None:
        """Do something for every host that has not failed, for many at once. Raises KeyboardInterrupt where
        all shall stop, once all have."""
        labels = [label for label, report in self.reports.items() if report.failure is None]
        with ThreadPoolExecutor(min(AT_ONCE, self.inputs.recipe.launch.fanout), "muster-prepare") as pool:
            pending = {pool.submit(self._guarded, work, label) for label in labels}
            while pending:  # the main thread has to wake for signals
                done, pending = wait(pending, timeout=_LOOK)
                for each in done:
                    each.result()
        if why := self.stop():
            raise KeyboardInterrupt(why)

    def _guarded(self, work: Callable[[str], None], label: str) -> None:
        if self.stop():
            return
        try:
            work(label)
        except MusterError as error:
            if not self.stop():
                self.fail(label, error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if os.environ.get("MUSTER_DEBUG"):
                raise
            what = f"its answer cannot be used: {type(error).__name__}: {error}"
            self.fail(label, HostError(what, host=label, hint="MUSTER_DEBUG=1 shows where"))

    def fail(self, label: str, error: MusterError) -> None:
        """Leave a host out."""
        self.reports[label].failure = {**error.as_dict(), "host": label}
        self.progress(label, f"failed: {error.what}")

    # ---- the environment, the files, the hub

    def make(self, label: str) -> None:
        """Make the environment and the files of a host: a second job brings what the first one lacks."""
        began = time.monotonic()
        order = self._order()
        answer = self.jobs[label].run("make", **order)
        if answer["lacks"]:
            paths, order = self._lacking(answer["lacks"], order)
            tree = self.contents.tree(paths)
            self.brought[label] = [each.digest for each in tree.files]
            try:
                answer = self.jobs[label].run("make", tree, **order)
            except HostError:
                self._refuse_changed(label, paths)
                raise
        if answer["lacks"]:
            raise HostError("something changed there meanwhile", host=label, hint="run prepare again")
        self.facts[label] = answer
        report, about = self.reports[label], answer["environment"]
        report.environment = {
            **{name: about[name] for name in ("status", "python", "digest", "seconds", "about")},
            "packages": len(about["about"]["packages"]),
        }
        report.copied = self._copied(answer["copied"], time.monotonic() - began)
        fetched = [*answer["fetched"]]
        for env, things in self._hub()[1:]:
            fetched += self.jobs[label].run("fetch", env=env, python=about["python"], hub=things)["fetched"]
        names = (f"{kind} {name}" for _, things in self._hub() for kind, name in things)
        report.copied += [{"what": what, **each} for what, each in zip(names, fetched, strict=True)]

    def _hub(self) -> list[tuple[Mapping[str, str], list[tuple[str, str]]]]:
        """Return what comes from the hub, by the variables with which it is fetched, such as a token: those
        of the first recipe first."""
        envs = [self.inputs.env, *(env for env in self.plan.hub_env if env != self.inputs.env)]
        read = [*zip(self.plan.hub, self.plan.hub_env, strict=True)]
        different = [env for index, env in enumerate(envs) if env not in envs[:index]]
        return [(env, [thing for thing, of in read if of == env]) for env in different]

    def _order(self) -> dict[str, Any]:
        plan, environment = self.plan, None
        if plan.pinned is not None:
            environment = {
                "path": plan.venv,
                "key": plan.key,
                "requirements": "".join(f"{line}\n" for line in plan.pinned.requirements),
                "constraints": plan.pinned.constraints,
                "index": self.options.index,
            }
        uv = None
        if self.uv is not None:
            uv = {"machine": platform.machine(), "digest": self.contents.of(self.uv).digest}
        return {
            "environment": environment,
            "uv": uv,
            "wheels": {path.name: digest for path, digest, _ in plan.wheels},
            "files": [[str(each.path), each.size, each.changed, None] for each in self.files],
            "hub": self._hub()[0][1],
            "brought": False,
        }

    def _lacking(self, lacks: Mapping[str, Any], order: dict[str, Any]) -> tuple[list[Path], dict[str, Any]]:
        """Return the files to send to a host, and its next order."""
        paths = [self.files[index].path for index in lacks.get("files", ())]
        files = [list(each) for each in order["files"]]
        for index in (*lacks.get("files", ()), *lacks.get("hashes", ())):
            files[index][3] = self.contents.of(self.files[index].path).digest
        if lacks.get("uv") and self.uv is not None:
            paths.append(self.uv)
        if lacks.get("wheels"):
            paths += [path for path, _, _ in self.plan.wheels]
        return paths, {**order, "files": files, "brought": True}

    def _refuse_changed(self, label: str, paths: Sequence[Path]) -> None:
        """Raise HostError for a file that was written or removed here since the begin."""
        copied = set(paths)
        for each in (file for file in self.files if file.path in copied):
            with suppress(OSError):
                about = each.path.stat()
                if (about.st_size, about.st_mtime_ns) == (each.size, each.changed):
                    continue
            raise HostError(
                f"{each.path} was changed while it was copied",
                host=label,
                hint="run prepare again, once nothing writes to it",
            )

    def _copied(self, brought: Sequence[int], seconds: float) -> list[dict[str, Any]]:
        """Return, per path of a recipe, what a host got of it."""
        taken: dict[str, list[LocalFile]] = {what: [] for what in self.plan.local}
        for index in brought:
            taken[self.files[index].what].append(self.files[index])
        return [
            {
                "what": what,
                "status": "copied" if files else "present",
                "size": sum(each.size for each in self.files if each.what == what),
                "files": len(files),
                "bytes": sum(each.size for each in files),
                "seconds": seconds if files else 0.0,
            }
            for what, files in taken.items()
        ]

    def compare(self) -> list[Difference]:
        """Prove that the environments are the same; hosts outside the majority fail."""
        about = {label: r.environment["about"] for label, r in self.reports.items() if r.environment}
        unlike = differences(about)
        for host in dict.fromkeys(host for each in unlike for host in each.blamed):
            own = [each for each in unlike if host in each.blamed]
            more = f", and {len(own) - 1} more differences" if len(own) > 1 else ""
            hint = "install one set everywhere: remove the environment there, then run prepare again"
            self.fail(host, HostError(f"its environment differs: {own[0]}{more}", host=host, hint=hint))
        if len({one["python"] for one in about.values()}) > 1 and not any(e.name == "python" for e in unlike):
            for label, one in about.items():
                self.reports[label].notes.append(f"Python {one['python']}; the hosts' third number differs")
        for report in self.reports.values():
            if report.environment:
                del report.environment["about"]
        return unlike

    # ---- kernels

    def settings(self) -> tuple[dict[str, tuple[str, ...]], list[str]]:
        """Return folders for kernels by their variables, and the overrides by which a run uses all of it."""
        good = [r.environment for r in self.reports.values() if r.failure is None and r.environment]
        if not good:
            return {}, []
        use = []
        if self.plan.venv:
            pythons = {str(each["python"]) for each in good}
            python = pythons.pop() if len(pythons) == 1 else f"{self.plan.venv}/bin/python"
            use.append(f"launch.python={python}")
        digest = str(good[0]["digest"])
        set_already = {name: value for env in self.envs for name, value in env.items()}
        folders = kernel_folders(self.facts, set_already, self.options.kernel_cache, digest)
        use += [f"env.{name}={'/'.join(parts)}" for name, parts in folders.items()]
        if self.plan.hub:
            use.append("env.HF_HUB_OFFLINE=1")
        return folders, use

    def finish(self, folders: Mapping[str, tuple[str, ...]], use: list[str]) -> None:
        """Make folders for kernels, run one short job of each recipe on each host alone, and tidy up."""
        first = next((label for label, report in self.reports.items() if report.failure is None), None)
        warmers = [
            WarmJob(
                inputs,
                warm_recipe(inputs, use, self.plan.cache, self.options.timeout),
                self.contents.folder / f"warm{number}",
                self.progress,
                self.stop,
            )
            for number, inputs in enumerate(self.plan.warm)
        ]

        def work(label: str) -> None:
            jobs, report = self.jobs[label], self.reports[label]
            if digests := self.brought.get(label):  # first: they are forgotten even if a warm-up fails
                jobs.run("note", mark=None, remove=[], forget=digests)
            fresh = bool(folders) and jobs.run("scratch", folders=list(folders.values()))["new"]
            if warmers and self.inputs.launcher.ONE_MACHINE and label != first:  # one machine's caches
                report.warm = {"status": "shared", "seconds": 0.0}
                warm = []
            else:
                warm = warmers
            digest = str((report.environment or {})["digest"])
            for each in warm:
                mark = each.mark(digest, label)
                if mark in self.facts[label]["marks"] and not fresh:
                    report.warm = report.warm or {"status": "present", "seconds": 0.0}
                    continue
                began = time.monotonic()
                remove = each.run(self.hosts[label])
                jobs.run("note", mark=mark, remove=[remove], forget=[])
                before = (report.warm or {}).get("seconds", 0.0)
                report.warm = {"status": "warmed", "seconds": before + time.monotonic() - began}

        self.each(work)


def provision(
    recipes: Sequence[Inputs],
    options: Options,
    *,
    later: Path | None = None,
    progress: Progress = lambda host, text: None,
) -> Provisioned:
    """Prepare every host for one or more recipes. Return what became of each. `later`: see make_plan. Raises
    UsageError before anything was begun."""
    plan = make_plan(recipes, options, later)
    more_files(8 * AT_ONCE)
    with interrupts() as wish, Contents() as contents:
        made = _Preparation(recipes, options, plan, contents, progress, lambda: wish.stop)
        made.each(made.make)
        unlike = made.compare()
        folders, use = made.settings()
        made.finish(folders, use)
        for report in made.reports.values():
            if report.failure is None:
                progress(report.host, report.status)
    requirements = plan.pinned.requirements if plan.pinned else ()
    return Provisioned(list(made.reports.values()), plan.key, requirements, unlike, use, list(plan.notes))
