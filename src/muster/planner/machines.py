"""What a plan's time rests on: hosts by their own facts or as a user describes them, what was learned from
earlier runs, and how much is to be trained."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from muster.core.errors import UsageError
from muster.core.hardware.devices import CPU, Device, driver_device, plain_name
from muster.core.hardware.links import LinkSpec, ethernet, find_link, infiniband, named
from muster.core.hardware.machines import Machines, machines_of
from muster.core.inventory import Host, Inventory
from muster.core.job import Facts
from muster.inputs.read import Inputs
from muster.planner.placing import gpus_of, ranks_of
from muster.planner.time import reached
from muster.planner.time.reached import speed
from muster.planner.time.steptime import Calibration, key
from muster.store.atomic import write_json

CPU_PEAK = 1e11  # operations/s of a thread, nominal: a calibration says which share of it is reached


@dataclass(frozen=True)
class UserFigures:
    """What a user gives besides the recipe. `host_memory`: bytes; `link`: between hosts, in place of theirs;
    `tokens`: to be trained in all, in place of the recipe's steps and epochs."""

    samples: int | None = None
    price: float | None = None
    link: str | None = None
    host_memory: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid figure."""
        for name, least in (("samples", 1), ("price", 0), ("tokens", 1)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise UsageError(
                    f"{value:g} is no figure to plan with", where=f"--{name}", hint=f"{least} or more"
                )
        if self.tokens is not None and self.samples is not None:
            raise UsageError("is given with --samples", where="--tokens", hint="one of them")


@dataclass(frozen=True)
class MachineModel:
    """What a job would run on, real or not. `machines`: of each host by its label, where they do not exist;
    None: the hosts' own, by their facts. `env`: the ranks' variables; `threads`: of each rank, where the
    recipe gives them; `learning`: CPUs are known without a calibration as well."""

    facts: Facts
    hosts: tuple[Host, ...]
    calibration: Calibration
    machines: Mapping[str, Machines] | None = None
    link: LinkSpec | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    threads: int | None = None
    one_machine: bool = False
    learning: bool = False

    def of(self, hosts: tuple[Host, ...]) -> MachineModel:
        """Return the same for some of its hosts."""
        facts = {host.label: self.facts[host.label] for host in hosts}
        return replace(self, hosts=hosts, facts=facts)

    def on(self, slots: Sequence[int], device: str, precision: str) -> Machines | None:
        """Return the machines that a step's time rests on, the slowest in this precision counting for all;
        None: not known. CPUs are known where a calibration has their model."""
        if self.machines is not None:
            parts = [self.machines[host.label] for host in self.hosts]
            slowest = min(parts, key=lambda each: speed(each.device, precision))
            return slowest.on(len(parts)).with_slots(slots) if slowest.device.kind == device else None
        several = len(self.hosts) > 1
        link = self.link or slowest_link([self.facts[host.label] for host in self.hosts], self.env)
        if self.one_machine and several and device == CPU:
            link = named("loopback")
        used = self._cpu(slots, precision) if device == CPU else self._slowest_gpu(slots, precision)
        if used is None or (several and link is None):
            return None
        made = machines_of(used, hosts=len(self.hosts), link=link if several else None)
        return made.with_slots(slots)

    def _slowest_gpu(self, slots: Sequence[int], precision: str) -> Device | None:
        """Return the GPU that sets the pace in this precision; None: there is none, or one is not known."""
        used = gpus_of(self.facts, self.hosts, slots, shared=self.one_machine)
        devices = []
        for gpu in chain.from_iterable(used.values()):
            device = driver_device(str(gpu.get("name") or ""))
            if device is None:
                return None
            devices.append(device)
        return min(devices, key=lambda each: speed(each, precision), default=None)

    def _cpu(self, slots: Sequence[int], precision: str) -> Device | None:
        """Return CPUs at a nominal peak for each thread, by their model: the share that they reach is known
        for one model at a time, and for none where hosts differ. None where no run has shown it."""
        models = {self.facts[host.label].get("processor") for host in self.hosts}
        name = CPU if models == {None} else f"{CPU} {' + '.join(sorted(each or '?' for each in models))}"
        if not self.learning and key(name, precision) not in self.calibration.efficiency:
            return None
        sharing = sum(slots) if self.one_machine else None
        threads = self.threads or min(
            max(1, int(self.facts[host.label].get("cores") or 1) // (sharing or count))
            for host, count in zip(self.hosts, slots, strict=True)
        )
        peak = CPU_PEAK * threads
        return Device(name, {"fp32": peak, "bf16": peak, "fp16": peak}, source="nominal")

    def fewer(self, slots: Sequence[int], device: str, precision: str) -> UnlikeHosts | None:
        """Return the hosts where they differ, the fastest first; None: all are alike."""
        count = {host.label: number for host, number in zip(self.hosts, slots, strict=True)}
        alone = [self.of((host,)).on([count[host.label]], device, precision) for host in self.hosts]
        each = tuple(machines for machines in alone if machines is not None)
        if len({(machines.device.name, machines.per_host) for machines in each}) < 2:
            return None
        ordered = by_speed(self.hosts, self.facts, device, self.env, precision)
        return UnlikeHosts(self.of(tuple(ordered)), count, each, device, precision)


@dataclass(frozen=True)
class UnlikeHosts:
    """Hosts that differ, the fastest first. `count`: ranks of each, by its label; `each`: the machines of
    every host by itself, as far as they are known."""

    model: MachineModel
    count: Mapping[str, int]
    each: tuple[Machines, ...]
    device: str
    precision: str

    def fastest(self, hosts: int) -> Machines | None:
        """Return the machines of the fastest `hosts` hosts; None: not known."""
        some = self.model.hosts[:hosts]
        slots = [self.count[host.label] for host in some]
        return self.model.of(some).on(slots, self.device, self.precision)

    def peak(self, precision: str) -> float | None:
        """Return the operations per second that makers state of a rank's device, the mean of all ranks; None:
        not known of all devices."""
        peaks = [machines.device.peak(precision) for machines in self.each]
        if len(peaks) < len(self.count) or None in peaks:
            return None
        ranks = [machines.ranks for machines in self.each]
        return sum((peak or 0.0) * n for peak, n in zip(peaks, ranks, strict=True)) / sum(ranks)


def machine_model(
    inputs: Inputs, facts: Facts, figures: UserFigures, calibration: Calibration
) -> MachineModel:
    """Return the model of real hosts. Raises UsageError for a link that is not understood."""
    return MachineModel(
        facts,
        inputs.inventory.hosts,
        calibration,
        link=find_link(figures.link) if figures.link else None,
        env=inputs.env,
        threads=inputs.recipe.launch.threads,
        one_machine=inputs.launcher.ONE_MACHINE,
    )


def slowest_link(facts: Sequence[Mapping[str, Any]], env: Mapping[str, str | None]) -> LinkSpec | None:
    """Return the slowest link between hosts, by their facts; None where one is missing, or there is one host
    alone."""
    links = [link_of(about.get("network") or {}, env) for about in facts]
    stated = [link for link in links if link is not None]
    if len(facts) < 2 or len(stated) < len(links):
        return None
    return min(stated, key=lambda link: link.bandwidth)


def link_of(network: Mapping[str, Any], env: Mapping[str, str | None]) -> LinkSpec | None:
    """Return InfiniBand where it exists and may be used, else the network card; None: not known."""
    fast = network.get("infiniband_megabits") if env.get("NCCL_IB_DISABLE", "0") == "0" else None
    if fast:
        return infiniband(fast / 1000)
    return ethernet(network["megabits"] / 1000) if network.get("megabits") else None


def by_speed(
    hosts: Sequence[Host], facts: Facts, device: str, env: Mapping[str, str | None], precision: str = "auto"
) -> list[Host]:
    """Sort hosts by their ranks' speed, in the precision that is wanted, of equals those with the faster
    link, then more memory, then as given: hosts are taken in this order, since the slowest of them sets the
    pace."""

    def key(host: Host) -> tuple[float, float, float]:
        about = facts[host.label]
        ranks = ranks_of(host, about, device)
        gpus = [] if device == "cpu" else list(about.get("gpus") or [])[:ranks]
        link = link_of(about.get("network") or {}, env)
        speed, memory = (about.get("cores") or 0) // ranks, (about.get("memory_total") or 0) // ranks
        if gpus:
            speed = min(_reaches(gpu, precision) for gpu in gpus)
            memory = min(gpu.get("memory_total") or 0 for gpu in gpus)
        return -speed, -(link.bandwidth if link else 0.0), -memory

    return sorted(hosts, key=key)


def _reaches(gpu: Mapping[str, Any], precision: str) -> float:
    """Return the operations per second of a GPU's products, the most where precision is still open; 0: not
    known. A GPU that does not exist has its peaks with it."""
    maker = driver_device(str(gpu.get("name") or "")) or Device("a GPU", {})
    device = replace(maker, peaks=gpu.get("peaks") or maker.peaks)
    wanted = device.peaks.keys() - {"fp8"} if precision == "auto" else (precision,)
    return max((reached.speed(device, each) for each in wanted), default=0.0)


def hypothetical(
    parts: Sequence[Machines], source: str, host_memory: int | None
) -> tuple[Inventory, Facts, Mapping[str, Machines]]:
    """Return hosts that do not exist: an inventory, the facts that they would report, and each one's machine.
    """
    hosts: list[Host] = []
    facts: dict[str, dict[str, Any]] = {}
    machines: dict[str, Machines] = {}
    numbers: Counter[str] = Counter()
    for part in parts:
        device = part.device
        plain = plain_name(device.name)
        name = "".join(c if c.isalnum() else "-" for c in plain).strip("-") or "host"
        gpu = {"name": plain, "memory_total": device.memory, "capability": device.able, "peaks": device.peaks}
        cpus = device.memory * part.per_host if device.memory else None  # a device is a rank's part
        about: dict[str, Any] = {
            "gpus": [gpu] * part.per_host if device.kind != CPU else [],
            "cores": None,
            "memory_total": host_memory if device.kind != CPU else cpus or host_memory,
            "network": {},
        }
        for _ in range(part.hosts):
            numbers[name] += 1
            host = Host(f"{name}-{numbers[name]}", part.per_host)
            hosts.append(host)
            facts[host.label], machines[host.label] = about, part
    return Inventory(tuple(hosts), "ssh", source), facts, machines


# --- what was learned ------------------------------------------------------------------------------------


def calibration_file() -> Path:
    """Return the file with what runs taught (XDG Base Directory Specification, which ignores relative paths).
    """
    base = os.environ.get("XDG_DATA_HOME") or ""
    folder = Path(base) if base.startswith("/") else Path("~/.local/share").expanduser()
    return folder / "muster" / "calibration.json"


KEPT_VERSION = 2  # since products, attention and memory traffic are told apart
_CALIBRATION = TypeAdapter(Calibration)


def load_calibration() -> Calibration:
    """Return what was learned before; empty where there is no file. In a file of an earlier version, the
    figures of devices mean something else and are left out; links and hosts' memory stay. Raises UsageError
    for a damaged one."""
    file = calibration_file()
    try:
        document = from_json(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.pop("version", None) != KEPT_VERSION:
            document = {name: value for name, value in document.items() if name in ("links", "hosts")}
        return _CALIBRATION.validate_python(document)
    except (FileNotFoundError, NotADirectoryError):
        return Calibration()
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"cannot be read: {reason}", where=str(file), hint="remove it, and calibrate again"
        ) from None


def save_calibration(learned: Calibration) -> Path:
    """Store it for later plans. Return the file. Raises UsageError where it cannot be written."""
    file = calibration_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"version": KEPT_VERSION, **asdict(learned)})
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(file)) from None
    return file
