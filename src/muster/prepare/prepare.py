"""Provision: the same environment, the recipe's model and data, and warm kernel caches on every host.

Hosts go their ways at the same time. One that fails is named and left behind; the others get ready.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from muster.core.errors import HostError, JobError, MusterError
from muster.core.inventory import Host
from muster.core.job import place
from muster.core.registry import load_plugin
from muster.core.units import format_bytes
from muster.fleet.interrupts import interrupts
from muster.fleet.shell import Shell
from muster.inputs.read import Inputs
from muster.prepare.pinned import Pinned
from muster.prepare.plan import Options, PreparePlan, make_plan, own_pip
from muster.prepare.result import Difference, PreparedHost, Provisioned, differences
from muster.prepare.session import Copied, Crew, PackedFile, Progress, Remote, Steps, Tree, safe_path
from muster.prepare.warm import Warmer, kernel_folders

# ----------------------------------------------------------------------------------------------------
# Provision's hosts: which are still in, what became of each, and the same program on this machine.

HERE = "this-machine"
T = TypeVar("T")


class Hosts:
    """Connections to all hosts of one call. A context manager: when it is left, all have left."""

    def __init__(
        self,
        inputs: Inputs,
        options: Options,
        plan: PreparePlan,
        progress: Progress,
        shell: Shell,
        tick: Callable[[], str | None],
    ) -> None:
        self.inputs, self.options, self.plan = inputs, options, plan
        self.progress, self.shell, self.tick = progress, shell, tick
        self.token = secrets.token_hex(4)
        self.crew = self._connect(inputs.inventory.hosts, inputs.launcher, tick)
        self.reports = {host.label: PreparedHost(host.label) for host in inputs.inventory.hosts}
        self.facts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Hosts:
        self.crew.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crew.__exit__(kind, error, trace)

    def _connect(self, hosts: tuple[Host, ...], launcher: ModuleType, tick: Callable[[], str | None]) -> Crew:
        """Connections by the interpreter that makes the environment: the ranks' may not be there yet."""
        launch = self.inputs.recipe.launch.model_copy(update={"python": self.options.python})
        return Crew(
            place([(host, 1) for host in hosts]),
            launcher,
            launch,
            f"prepare-{self.token}",
            self.shell,
            progress=self.progress,
            patience=self.options.timeout,
            tick=tick,
        )

    def alive(self) -> dict[str, Remote]:
        """The hosts that have not failed."""
        return {h: r for h, r in self.crew.remotes.items() if self.reports[h].failure is None}

    def each(self, work: Callable[[Remote], Steps[T]]) -> dict[str, T]:
        """Do something on every host that has not failed; what it returned, where it did not fail now."""
        good = {}
        for host, result in self.crew.together({h: work(r) for h, r in self.alive().items()}).items():
            if isinstance(result, MusterError):
                self.fail(host, result)
            else:
                good[host] = result
        return good

    def one(self, host: str, steps: Steps[T]) -> T:
        """Do something on one host. Raises MusterError; the host is not failed by it."""
        result = self.crew.together({host: steps})[host]
        if isinstance(result, MusterError):
            raise result
        return result

    def here(self, op: str, **content: Any) -> dict[str, Any]:
        """One request to the same program on this machine: it hashes and downloads as the hosts' do.

        Raises MusterError.
        """

        def tick() -> str | None:
            self.crew.keep()  # the hosts wait meanwhile, and want to hear that we are there
            return self.tick()

        def steps(remote: Remote) -> Steps[dict[str, Any]]:
            yield from remote.ask("hello", **self.greeting(), python=None)
            return (yield from remote.ask(op, **content))

        with self._connect((Host(HERE),), load_plugin("muster.launchers", "local"), tick) as crew:
            result = crew.together({HERE: steps(crew.remotes[HERE])})[HERE]
        if isinstance(result, MusterError):
            raise result
        return result

    def greeting(self) -> dict[str, Any]:
        """What the program is told first."""
        launch = self.inputs.recipe.launch
        return {"cache": self.plan.cache, "env": self.inputs.env, "lease": launch.lease}

    def fail(self, host: str, error: MusterError) -> None:
        """Leave a host behind; its first failure stays."""
        report = self.reports[host]
        if report.failure is None:
            report.failure = {**error.as_dict(), "host": host}
            self.progress(host, f"failed: {error.what}", 0, 0)

    def fail_all(self, error: MusterError) -> None:
        """What fails every host that has not failed."""
        for host in self.alive():
            self.fail(host, error)

    def note_copy(self, host: str, what: str, size: int, copied: Copied) -> None:
        """Write down what a host took; `size` is the whole tree's, in bytes."""
        status = "copied" if copied.files else "present"
        self.reports[host].copied.append({"what": what, "status": status, "size": size, **asdict(copied)})


def provision(
    inputs: Inputs,
    options: Options,
    *,
    progress: Progress = lambda host, text, done, total: None,
    shell: Shell | None = None,
) -> Provisioned:
    """Make every host ready -> what became of each. Raises UsageError before anything was begun."""
    plan = make_plan(inputs, options)
    with (
        interrupts() as wish,
        Hosts(inputs, options, plan, progress, shell or Shell(), lambda: wish.stop) as hosts,
    ):
        hosts.each(lambda remote: settle_environment(hosts, remote))
        differences = compare_environments(hosts)
        for path in plan.local:
            copy_local(hosts, path)
        for kind, name in plan.hub:
            copy_hub(hosts, kind, name)
        fresh, use = _kernels(hosts)
        if options.warm and inputs.recipe.trains:  # a step of anything else is nothing that is known
            _warm(hosts, use, fresh)
        for report in hosts.reports.values():
            progress(report.host, report.status, 0, 0)
    requirements = plan.pinned.requirements if plan.pinned else ()
    reports = list(hosts.reports.values())
    return Provisioned(reports, plan.key, requirements, differences, use, list(plan.notes))


def _kernels(hosts: Hosts) -> tuple[set[str], list[str]]:
    """Make folders for kernels -> the hosts that had none, and the overrides by which a run uses it all."""
    good = [r for r in hosts.reports.values() if r.failure is None and r.environment]
    if not good:
        return set(), []
    plan, use = hosts.plan, []
    pythons = {str(r.environment["python"]) for r in good if r.environment}
    if plan.venv:
        shown = pythons.pop() if len(pythons) == 1 else f"{plan.venv}/bin/python"
        use.append(f"launch.python={shown}")
    digest = str((good[0].environment or {})["digest"])
    folders = kernel_folders(hosts.facts, hosts.inputs.env, hosts.options.kernel_cache, digest)
    made = hosts.each(lambda remote: _scratch(remote, folders)) if folders else {}
    use += [f"env.{name}={'/'.join(parts)}" for name, parts in folders.items()]
    if plan.hub:
        use.append("env.HF_HUB_OFFLINE=1")
    return {host for host, new in made.items() if new}, use


def _scratch(remote: Remote, folders: Mapping[str, tuple[str, ...]]) -> Steps[bool]:
    """Make them on a host -> whether any is new."""
    new = False
    for base, *parts in folders.values():
        reply = yield from remote.ask("scratch", base=base, parts=parts)
        new = new or bool(reply["new"])
    return new


def _warm(hosts: Hosts, use: list[str], fresh: set[str]) -> None:
    """One short job on each host alone, before many start. Pretend hosts share one machine's caches."""
    folder = Path(tempfile.mkdtemp(prefix="muster-warm-"))
    names = {host.label: host for host in hosts.inputs.inventory.hosts}
    first = next(iter(hosts.alive()), None)

    def work(remote: Remote) -> Steps[None]:
        report = hosts.reports[remote.host]
        if hosts.inputs.launcher.ONE_MACHINE and remote.host != first:
            report.warm = {"status": "shared", "seconds": 0.0}
            return
        digest = str((report.environment or {})["digest"])
        again = remote.host in fresh
        report.warm = yield from warmer.warm(remote, names[remote.host], digest, again=again)

    try:
        warmer = Warmer(
            hosts.inputs,
            use,
            hosts.plan.cache,
            hosts.options.timeout,
            folder,
            hosts.token,
            hosts.shell,
            hosts.progress,
        )
        hosts.each(work)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------
# Provision's first part: the environment of every host, and the proof that all are the same.

LEAST_PYTHON = (3, 10)  # of the ranks


def settle_environment(hosts: Hosts, remote: Remote) -> Steps[None]:
    report, plan, launch = hosts.reports[remote.host], hosts.plan, hosts.inputs.recipe.launch
    facts = yield from remote.ask("hello", **hosts.greeting(), python=hosts.options.python)
    hosts.facts[remote.host] = facts
    if plan.pinned is None:
        pythons = [launch.python] if launch.python else [sys.executable, facts["python"]]
        found = yield from remote.ask("packages", pythons=pythons)
    else:
        _check_python(facts["version"], remote.host)
        found = yield from _build(hosts, remote, facts, plan.pinned)
    about = found["about"]
    _check_python(about["python"], remote.host)
    report.environment = {
        "status": found["status"],
        "python": found["python"],
        "digest": found["digest"],
        "packages": len(about["packages"]),
        "seconds": found.get("seconds", 0),
        "about": about,
    }
    changed = found.get("changed") or {}
    if changed:
        name, (was, now) = next(iter(changed.items()))
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise HostError(
            f"the environment was changed since it was built: {name} was {was or 'absent'} "
            f"and is {now or 'absent'}{more}",
            host=remote.host,
            hint=f"remove {found['path']} there, then run prepare again",
        )


def _build(hosts: Hosts, remote: Remote, facts: Mapping[str, Any], pinned: Pinned) -> Steps[dict[str, Any]]:
    """Carry the wheels, then build the environment or find it whole."""
    plan = hosts.plan
    wheels = plan.wheels
    if facts["lacks"] == "ensurepip" and not any("/pip-" in wheel.path for wheel in wheels):
        wheels += own_pip()
    if wheels:
        tree = Tree(("wheels", ""), f"wheels-{plan.key}-{len(wheels)}", wheels)
        copied = yield from remote.send(tree, "wheels")
        hosts.note_copy(remote.host, "wheels", tree.size, copied)
    return (
        yield from remote.ask(
            "environment",
            path=plan.venv,
            key=plan.key,
            requirements="".join(f"{line}\n" for line in pinned.requirements),
            constraints=pinned.constraints,
            wheels=[wheel.path for wheel in wheels],
            offline=bool(plan.wheels),
            index=hosts.options.index,
            **{name: facts[name] for name in ("python", "version", "lacks")},
        )
    )


def compare_environments(hosts: Hosts) -> list[Difference]:
    """Prove that the environments are the same; hosts outside the majority fail."""
    about = {h: r.environment["about"] for h, r in hosts.reports.items() if r.environment}
    found = differences(about)
    blamed = dict.fromkeys(host for each in found for host in each.blamed)
    for host in blamed:
        own = [each for each in found if host in each.blamed]
        more = f", and {len(own) - 1} more differences" if len(own) > 1 else ""
        hint = "install one set everywhere: remove the environment there, then run prepare again"
        hosts.fail(host, HostError(f"its environment differs: {own[0]}{more}", host=host, hint=hint))
    patches = {str(one["python"]) for one in about.values()}
    if len(patches) > 1 and not any(each.name == "python" for each in found):
        for host, one in about.items():
            hosts.reports[host].notes.append(f"Python {one['python']}; the hosts' third number differs")
    for report in hosts.reports.values():
        if report.environment:
            del report.environment["about"]
    return found


def _check_python(version: str, host: str) -> None:
    """Raises HostError where ranks cannot run."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        raise HostError(
            f"has Python {version}, and ranks need {least} or later",
            host=host,
            hint="--python of a later one",
        )


# ----------------------------------------------------------------------------------------------------
# Provision's second part: what the recipe reads, fetched or taken from here, and copied to every host.


def copy_local(hosts: Hosts, path: str) -> None:
    """A folder or file that the recipe names, to the same path on every host that lacks it."""
    if not hosts.alive():
        return
    root = ("path", path)
    marker = _marker(*root)
    try:
        found = hosts.here("scan", root=root, marker=f"own-{marker}")
    except MusterError as error:
        hosts.fail_all(error)
        return
    tree = Tree(root, marker, _entries(found["files"], Path(path), host=HERE))
    _spread(hosts, tree, path)


def _spread(hosts: Hosts, tree: Tree, what: str, *, but: str | None = None) -> None:
    def work(remote: Remote) -> Steps[None]:
        if remote.host != but:
            copied = yield from remote.send(tree, what)
            hosts.note_copy(remote.host, what, tree.size, copied)

    hosts.each(work)


def copy_hub(hosts: Hosts, kind: str, name: str) -> None:
    """Download once, by this machine or by the first host that can, and copy to the others."""
    if not hosts.alive():
        return
    request = {"kind": kind, "name": name, "marker": _marker("hub", kind, name)}
    try:
        source, found = _download(hosts, request)
        _pass_on(hosts, request, source, found)
    except MusterError as error:
        hosts.fail_all(error)


def _pass_on(hosts: Hosts, request: Mapping[str, Any], source: str, found: Mapping[str, Any]) -> None:
    """From who has it to the others. Raises MusterError."""
    root = (str(found["root"][0]), str(found["root"][1]))
    entries = _entries(found["files"], Path(found["path"]), host=source)
    tree = Tree(root, request["marker"], entries)
    what = f"{request['kind']} {request['name']}"
    if source == HERE:
        _spread(hosts, tree, what)
        return
    status = {"what": what, "status": found["status"], "size": tree.size}
    hosts.reports[source].copied.append(status)
    lacking = hosts.each(lambda remote: _lacks(remote, tree, but=source))
    if not any(lacking.values()):
        _spread(hosts, tree, what, but=source)
        return
    with waypoint(tree, what) as folder:
        fetched = hosts.one(source, hosts.crew.remotes[source].fetch(tree, folder))
        _spread(hosts, fetched, what, but=source)


@contextmanager
def waypoint(tree: Tree, what: str) -> Iterator[Path]:
    """A folder on this machine for a tree that goes from one host to others; it is gone at the end.

    Beside the cache, for /tmp is often small, or memory. Raises JobError where the tree has no room.
    """
    cache = Path("~/.cache/muster").expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if tree.size > free:
            needs = f"needs {format_bytes(tree.size)} here on its way, and {format_bytes(free)} are free"
            hint = "free some space, or run prepare on a machine that has it"
            raise JobError(f"{what} {needs}", where=str(cache), hint=hint)
        folder = tempfile.mkdtemp(prefix="waypoint-", dir=cache)
    except OSError as error:
        raise JobError(f"cannot be written: {error.strerror}", where=str(cache)) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lacks(remote: Remote, tree: Tree, *, but: str) -> Steps[bool]:
    """Whether a host has to be sent anything: it may share the disk of the one that downloaded."""
    if remote.host == but:
        return False
    files = [entry.as_dict() for entry in tree.entries]
    reply = yield from remote.ask("compare", root=tree.root, marker=tree.marker, files=files, look=True)
    return bool(reply["lacks"])


def _download(hosts: Hosts, request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Who has it, or can get it; and its files. Raises the first refusal where nobody can."""
    cached = hosts.each(lambda remote: remote.ask("cached", **request))
    for host, reply in cached.items():
        if reply["root"]:
            return host, {**reply, "status": "present"}
    refusals: list[MusterError] = []
    if not hosts.inputs.launcher.ONE_MACHINE:
        try:
            return HERE, hosts.here("download", python=sys.executable, **request)
        except MusterError as error:
            refusals.append(error)
    for host, remote in hosts.alive().items():
        environment = hosts.reports[host].environment or {}
        try:
            result = hosts.one(host, remote.ask("download", python=environment["python"], **request))
            return host, {**result, "status": "downloaded"}
        except MusterError as error:
            refusals.append(error)
    if not refusals:
        raise HostError("no host is left that could download")
    what, last = f"{request['kind']} {request['name']}", refusals[-1].what
    raise HostError(
        f"{what} cannot be downloaded, neither here nor by a host: {last}",
        hint="without network access, download it elsewhere and give its folder in the recipe",
    )


def _marker(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _entries(files: list[dict[str, Any]], root: Path, *, host: str) -> tuple[PackedFile, ...]:
    """A scan's answer, checked: it may be another machine's."""
    entries = []
    for each in files:
        path = str(each["path"])
        if path:
            safe_path(path, host=host)
        source = root / path if path else root
        if "link" in each:
            entries.append(PackedFile(path, link=str(each["link"])))
        else:
            pointer = path.startswith("refs/")
            entries.append(
                PackedFile(path, int(each["size"]), str(each["sha256"]), source=source, replace=pointer)
            )
    return tuple(entries)
