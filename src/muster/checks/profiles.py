"""What is expected of hosts: the checks' own defaults, and a profile on top. A profile is a YAML file:

about: one line for people
inherit: another profile, by name or path (or a list of them); later keys win
expect:
  limits.open_files: {base: 65536}      numbers are numbers; of bytes also as text: 2GB, 1.5 TiB
  gpu.ecc: skip                         this check does not apply here
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.checks.base import Check
from muster.core.errors import UsageError
from muster.core.near import did_you_mean
from muster.core.recipes import find_file, read_layer
from muster.core.units import parse_bytes

# What the keys of expectations mean. Keys of third parties' checks have their check's question.
KEYS = {
    "allowed": "Number of lines that may be printed.",
    "at_least": "Smallest good value, in the check's unit; 0: anything.",
    "at_least_gb": "Smallest good speed in GB/s. Null: compared with the other GPUs only.",
    "at_least_gbit": "Smallest good bandwidth in Gbit/s. Null: no fixed bound.",
    "at_most": "Largest good value, in the check's unit.",
    "at_most_seconds": "Largest good latency in seconds. Null: compared with the other hosts only.",
    "base": "The part of the limit that does not depend on the number of ranks.",
    "contains": "Text that must be a part of the GPUs' name; empty: any name.",
    "count": "GPUs that each host must have; 0: no fixed number.",
    "cpu_fail_below": "On CPUs, fail below this share of the other hosts' rate.",
    "cpu_warn_below": "On CPUs, warn below this share of the other hosts' rate.",
    "enabled": "Whether the mode must be on.",
    "fail": "Fail above this many seconds.",
    "fail_below": "Fail below this value: bytes for limits, a share of the hosts' median for bandwidth.",
    "fatal": "Numbers of the Xid events that count as broken hardware.",
    "gen": "Smallest PCIe generation; 0: any.",
    "gpu_fail_below": "On GPUs, fail below this share of the rate of GPUs of the same name.",
    "gpu_warn_below": "On GPUs, warn below this share of the rate of GPUs of the same name.",
    "link_warn_below": "Warn of a link below this share of what both its ends reach on other links.",
    "links": "Smallest number of active NVLinks per GPU; 0: any.",
    "loopback": "allowed or forbidden: whether the host's own name may mean a loopback address.",
    "margin": "Smallest distance in degrees Celsius to the temperature at which the GPU slows down.",
    "mode": "ECC mode: any, enabled or disabled.",
    "of_peak_warn_below": "Warn below this share of the maker's peak.",
    "packets": "Number of packets below which errors are not judged.",
    "per_cpu_rank": "Bytes per rank on hosts without GPUs.",
    "per_gpu_rank": "Bytes per rank on hosts with GPUs.",
    "per_rank": "The part of the limit that is added for each rank.",
    "per_worker": "Bytes per data loader process.",
    "read_at_least_mb": "Smallest good read speed in MB/s. Null: not judged.",
    "required": "Whether a folder that is not shared is a failure.",
    "tolerance": "Difference from the other hosts that is allowed, as a share (0.02 is 2 %).",
    "wanted": "The frequency governor that every core should have.",
    "warn": "Warn above this many seconds.",
    "warn_above": "Warn above this many times the hosts' median.",
    "warn_below": "Warn below this share of what the other hosts reach.",
    "warn_excess_seconds": "Warn only where it is also this many seconds above the hosts' median.",
    "width": "Smallest number of PCIe lanes; 0: any.",
    "write_at_least_mb": "Smallest good write speed in MB/s. Null: not judged.",
}

SHIPPED = Path(__file__).resolve().parent.parent / "profiles"
SKIP = "skip"


@dataclass(frozen=True)
class Profile:
    """Expectations: check -> key -> value, defaults included; and the checks that are left out."""

    name: str
    expects: Mapping[str, Mapping[str, Any]]
    skipped: frozenset[str] = field(default_factory=frozenset)


def shipped_profiles() -> dict[str, Path]:
    """Return the profiles that come with Muster, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def load_profile(source: str | None, checks: Iterable[Check]) -> Profile:
    """Return the profile of that name or file over the checks' defaults; None: the defaults alone.

    Raises UsageError: no such profile, or one that names what no check has, with near names.
    """
    by_name = {check.name: check for check in checks}
    expects: dict[str, dict[str, Any]] = {name: dict(check.expects) for name, check in by_name.items()}
    skipped: set[str] = set()
    for path, layer in _layers(source, Path()) if source else []:
        for name, wanted in layer.items():
            where = f"{path}: expect.{name}"
            if name not in by_name:
                raise UsageError(
                    "no such check",
                    where=where,
                    hint=did_you_mean(name, by_name) or "muster check --list shows all",
                )
            if wanted == SKIP:
                skipped.add(name)
                continue
            if not isinstance(wanted, Mapping):
                raise UsageError("must be a mapping of expectations, or skip", where=where)
            skipped.discard(name)
            for key, value in wanted.items():
                expects[name][key] = _fitting(by_name[name], str(key), value, where)
    return Profile(source or "defaults", expects, frozenset(skipped))


def profile_schema(checks: Iterable[Check]) -> dict[str, Any]:
    """Return the JSON Schema of a profile file for these checks."""

    def key(check: Check, name: str, default: Any) -> dict[str, Any]:
        return {"description": KEYS.get(name, check.asks), "default": default}

    def one(check: Check) -> dict[str, Any]:
        properties = {name: key(check, name, default) for name, default in check.expects.items()}
        wanted = {"type": "object", "additionalProperties": False, "properties": properties}
        return {"description": check.asks, "anyOf": [{"const": SKIP}, wanted]}

    parents = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    return {
        "title": "Muster check profile",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "about": {"type": "string", "description": "One line that describes the profile."},
            "inherit": parents
            | {"description": "Other profiles, by name or path; later keys override earlier ones."},
            "expect": {
                "type": "object",
                "additionalProperties": False,
                "description": "Expectations by check, which override the defaults; skip leaves a check out.",
                "properties": {check.name: one(check) for check in checks},
            },
        },
    }


def _layers(source: str, folder: Path, chain: tuple[Path, ...] = ()) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return (file, expectations) of a profile and of all that it inherits, the lowest layer first."""
    path = find_file(source, "profile", shipped_profiles(), UsageError, folder)
    data, parents = read_layer(path, chain, "profile", UsageError)
    unknown = sorted(set(data) - {"about", "expect"})
    if unknown:
        raise UsageError(
            f"unknown key {unknown[0]!r}",
            where=str(path),
            hint=did_you_mean(unknown[0], ("about", "inherit", "expect")) or "about, inherit, expect",
        )
    expect = data.get("expect") or {}
    if not isinstance(expect, Mapping) or not all(isinstance(name, str) for name in expect):
        raise UsageError("must be a mapping of checks to expectations", where=f"{path}: expect")
    below = [layer for parent in parents for layer in _layers(parent, path.parent, (*chain, path))]
    return [*below, (path, expect)]


def _fitting(check: Check, key: str, value: Any, where: str) -> Any:
    """Return the value in the type of the check's default: a number stays a number."""
    if key not in check.expects:
        raise UsageError(
            f"{check.name} has no expectation {key!r}",
            where=where,
            hint=did_you_mean(key, check.expects) or f"it has: {', '.join(check.expects) or 'none'}",
        )
    default = check.expects[key]
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "true or false"
    elif default is None and value is None:
        return value
    elif default is None or isinstance(default, int | float):
        if isinstance(value, str):  # a size such as 10GiB is whole bytes; a number in quotes is that number
            value = float(value) if re.fullmatch(r"\d+\.\d+", value) else parse_bytes(value)
        fits, kind = _number(value), "a number"
    elif isinstance(default, str):
        fits, kind = isinstance(value, str), "a text"
    elif isinstance(default, Mapping):
        fits, kind = isinstance(value, Mapping), "a mapping"
    else:
        numbers = bool(default) and all(_number(each) for each in default)
        fits, kind = isinstance(value, list), "a list of numbers" if numbers else "a list"
        fits = fits and all(_number(each) == numbers for each in value)
    if not fits:
        raise UsageError(f"must be {kind}", where=f"{where}.{key}", hint=f"the default is {default!r}")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
