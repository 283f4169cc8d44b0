"""Hosts, time, versions, recipe and command as the page's tables show them. Pure."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from muster.core.printable import scrubbed
from muster.core.recipes import dump_yaml, parse_yaml
from muster.core.result import HostReport
from muster.core.units import format_bytes
from muster.reports.charts import usable
from muster.reports.rundata import RunData
from muster.reports.words import ranges
from muster.results.figures import UNKNOWN, number, seconds
from muster.store.secrets import masked, masked_command, masked_program, shared_section

FORWARD = "Forward pass alone"  # tells the host that others wait for
OWN_TIME = "A step's time: by itself, and waiting"
SPLIT = ("Share of a micro-step", "Speed, alone")  # where hosts' shares need not be equal
COLOURS = ("c5", "c0", "c2", "c3", "c4", "c1", "c6", "c7")  # training has the page's main colour


@dataclass(frozen=True)
class TimeSlice:
    """A part of the run's time. `amount`: seconds; None: not measured; `share`: in words."""

    name: str
    amount: float | None
    share: str
    style: str

    @property
    def value(self) -> str:
        """The seconds, for people."""
        return seconds(self.amount)


@dataclass(frozen=True)
class HostTable:
    """The hosts, with a column for every version that differs between them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def time_parts(data: RunData) -> tuple[list[TimeSlice], str]:
    """Return where the time went, and a note on it."""
    if data.result is None:
        return [], ""
    spent, quality, fabric = data.result.seconds, data.result.quality, data.result.fabric
    named = [
        ("setup", spent.setup),
        ("training", spent.training),
        ("evaluation", spent.evaluation),
        ("saving", spent.saving),
        ("answering held-out questions", quality.seconds if quality else None),
    ]
    if fabric:  # what each question took on rank 0
        named = list(fabric.seconds.items())
    measured = sum(value for _, value in named if value is not None and usable(value))
    rest = spent.total - measured
    named.append(("rest", rest if rest > 0 else None))
    whole = max(spent.total, measured)
    parts = []
    for index, (name, value) in enumerate(named):
        style = "rest" if name == "rest" else COLOURS[index % len(COLOURS)]
        amount = value if usable(value) else None
        if name == "rest" and amount is None:
            continue
        share = f"{100 * amount / whole:.1f} %" if amount is not None and whole > 0 else ""
        parts.append(TimeSlice(name, amount, share, style))
    note = "Rest: starting the processes, ranks waiting for each other, ending"
    note += ", and parts that were not measured." if any(not part.share for part in parts) else "."
    if fabric:
        note = "Rest: starting the processes, loading torch, ending."
    elif data.result.attempt > 1:
        note = (
            "This run was resumed. Setup is that of the last attempt; the rest includes the setup of earlier "
            "attempts, and repeated steps."
        )
    return parts, note


def host_table(data: RunData) -> HostTable:
    """Return each host's hardware and work."""
    hosts = data.result.hosts if data.result else []
    versions = {each.host: _versions(each) for each in hosts}
    names = sorted({name for installed in versions.values() for name in installed})
    differ = [name for name in names if len({installed.get(name) for installed in versions.values()}) > 1]
    columns: list[tuple[str, Callable[[HostReport], str]]] = [
        ("Host", lambda each: each.host),
        ("Ranks", lambda each: ranges(each.ranks)),
        ("Cores", lambda each: _fact(each, "cores")),
        ("Memory", lambda each: _bytes(each.facts.get("memory_total"))),
        ("GPUs", lambda each: gpus(each.facts.get("gpus"))),
        ("CPU, mean", lambda each: _percent(each.cpu_percent_mean)),
        ("GPU, mean", lambda each: _percent(each.gpu_percent_mean)),
        ("Memory used, peak", lambda each: _bytes(each.memory_used_peak)),
    ]
    if any(each.forward_seconds is not None for each in hosts):
        columns.append((FORWARD, lambda each: seconds(each.forward_seconds)))
    if any(each.parts for each in hosts):
        columns.append((OWN_TIME, _parts))
    if any(each.share is not None for each in hosts):
        columns += zip(SPLIT, (_share, _speed), strict=True)
    own = tuple(tuple(cell(each) for _, cell in columns) for each in hosts)
    rows = tuple((*row, *(versions[row[0]].get(name) or UNKNOWN for name in differ)) for row in own)
    notes = [_same_machine(hosts)]
    if len(hosts) > 1 and not differ:
        notes.append("All hosts have the same versions; they are listed below.")
    return HostTable((*(head for head, _ in columns), *differ), rows, tuple(note for note in notes if note))


def _parts(host: HostReport) -> str:
    """Return the parts of a host's steps: "forward 20 %, backward 51 %, waiting 18 %"."""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in host.parts.items()) or UNKNOWN


def _share(host: HostReport) -> str:
    return UNKNOWN if host.share is None else str(host.share)


def _speed(host: HostReport) -> str:
    return UNKNOWN if host.speed is None else f"{number(host.speed, 4)} samples/s"


def gpus(listed: Any) -> str:
    """Return the GPUs of a host: "8 x NVIDIA H200 (150.3 GB)"."""
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return UNKNOWN
    kinds: Counter[str] = Counter()
    for gpu in listed:
        about = gpu if isinstance(gpu, Mapping) else {}
        memory = about.get("memory_total")
        kinds[f"{about.get('name') or 'GPU'}" + (f" ({format_bytes(memory)})" if memory else "")] += 1
    return ", ".join(f"{count} × {name}" for name, count in kinds.items()) or "none"


def version_table(data: RunData) -> list[tuple[str, str, str]]:
    """Return (package, the ranks' version, the controller's version)."""
    ranks = dict(data.result.versions) if data.result else {}
    own = {
        "muster": data.env.get("muster"),
        "python": data.env.get("python"),
        **(data.env.get("versions") or {}),
    }
    return [
        (name, str(ranks.get(name) or "—"), str(own.get(name) or "—"))
        for name in dict.fromkeys([*own, *ranks])
    ]


def decision_rows(data: RunData) -> list[tuple[str, str, str]]:
    """Return (field, value, reason)."""
    return [
        (str(each.get("field", "")), show(each.get("value")), str(each.get("why", "")))
        for each in data.decisions
    ]


def show(value: Any) -> str:
    """Return a value as JSON; text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def recipe_text(data: RunData) -> str:
    """Return the recipe as it was frozen; only secrets are masked."""
    try:
        recipe = parse_yaml(data.recipe)
    except yaml.YAMLError:  # damaged by hand: what of it is a secret is not known
        return "cannot be read as YAML"
    if not isinstance(recipe, Mapping):
        return scrubbed(data.recipe)
    shown = {name: shared_section(name, value, env_shown(data)) for name, value in recipe.items()}
    return data.recipe if shown == recipe else dump_yaml(shown)  # folders of earlier versions hold values


def environment_rows(data: RunData) -> list[tuple[str, str]]:
    """Return the ranks' variables that the user or the recipe set."""
    env = masked(data.env.get("rank_environment") or {}, env_shown(data))
    return [(name, str(value)) for name, value in sorted(env.items())]


def commands(data: RunData) -> list[tuple[str, str]]:
    """Return what the user typed, and what the agents started on the first host."""
    lines = []
    argv = data.env.get("argv")
    if isinstance(argv, list) and argv:
        lines.append(("The command that started the run", _command(argv, env_shown(data))))
    orders = data.job.get("orders")
    if isinstance(orders, Mapping) and orders:
        host, order = next(iter(orders.items()))
        started = ((order or {}).get("host") or {}).get("argv")
        if isinstance(started, list) and started:
            lines.append((f"What the agent started on {host}", _command(started, ())))
    return lines


def env_shown(data: RunData) -> list[str]:
    """Return the variables whose values the recipe allows to be shown."""
    try:
        recipe = parse_yaml(data.recipe)
    except yaml.YAMLError:
        return []
    named = recipe.get("env_show") if isinstance(recipe, Mapping) else None
    return [str(name) for name in named] if isinstance(named, list) else []


def _command(argv: Sequence[Any], shown: Sequence[str]) -> str:
    """Return a command line, masked once more: folders of earlier versions have the words as they were typed.
    """
    return shlex.join(masked_program(masked_command([str(word) for word in argv], shown)))


def _versions(host: HostReport) -> dict[str, str]:
    versions = host.facts.get("versions")
    kept = {str(k): str(v) for k, v in versions.items() if v} if isinstance(versions, Mapping) else {}
    if host.facts.get("system"):
        kept["system"] = str(host.facts["system"])
    return kept


def _same_machine(hosts: Sequence[HostReport]) -> str:
    machines = Counter(each.facts["hostname"] for each in hosts if each.facts.get("hostname"))
    shared = [str(name) for name, count in machines.items() if count > 1]
    if not shared:
        return ""
    return (
        f"Several of these hosts are the same machine ({', '.join(shared)}): its cores, memory, GPUs and "
        "their use are those of the whole machine, and stand in every line that is a part of it."
    )


def _fact(host: HostReport, name: str) -> str:
    value = host.facts.get(name)
    return UNKNOWN if value is None else str(value)


def _bytes(value: Any) -> str:
    return format_bytes(value) if isinstance(value, (int, float)) and usable(value) else UNKNOWN


def _percent(value: float | None) -> str:
    return f"{number(value, 3)} %" if value is not None and usable(value) else UNKNOWN
