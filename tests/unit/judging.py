"""What the tests of check families share: a context, findings by host, probes run as they are on hosts."""

from __future__ import annotations

import importlib
import json
from functools import cache
from types import CodeType
from typing import Any

from muster.agent.probe import at_end, run, text
from muster.checks.base import Context, Finding, Level, Transport
from muster.checks.families.versions import PACKAGES
from muster.checks.profiles import load_profile
from muster.checks.registry import checks_of, families, family_of

PASS, NA, NOTE, UNKNOWN, WARN, FAIL = (
    Level.PASS,
    Level.NOT_APPLICABLE,
    Level.NOTE,
    Level.UNKNOWN,
    Level.WARN,
    Level.FAIL,
)


ALL = checks_of(families())


def context(**changes: Any) -> Context:
    """Defaults for two or three hosts over ssh; `expects` is laid over the checks' own expectations."""
    expects = {check.name: dict(check.expects) for check in ALL}
    for name, wanted in changes.pop("expects", {}).items():
        expects[name].update(wanted)
    profile = changes.pop("profile", None)
    if profile:
        expects = load_profile(profile, ALL).expects  # type: ignore[assignment]
    values: dict[str, Any] = {
        "slots": {},
        "world_size": None,
        "gpus_expected": None,
        "transport": {},
        "recipe": {},
        "launcher": "ssh",
    }
    return Context(expects=expects, **{**values, **changes})


def judged(family: str, answers: Any, *, peers: Any = None, **changes: Any) -> dict[tuple[str, str], Finding]:
    """(check's last word, host) -> its Finding; exactly one for each host and check of the family."""
    module = importlib.import_module(f"muster.checks.families.{family}")
    asked = context(**{"slots": dict.fromkeys(answers), **changes})
    findings = family_of(family, module).judge(answers, peers or {}, asked)
    found = {(each.check.partition(".")[2], each.host): each for each in findings}
    assert len(found) == len(findings), "a host has two findings of one check"
    checks = {check.name.partition(".")[2] for check in module.CHECKS}
    assert set(found) == {(check, host) for check in checks for host in answers}
    return found


@cache
def _probe_of(family: str) -> CodeType:
    module = importlib.import_module(f"muster.checks.families.{family}")
    return compile(family_of(family, module).source, family, "exec", dont_inherit=True)


def probed(family: str, second: bool = False, **ask: Any) -> Any:
    """A family's probe, run as on a host: from its text, with the names that the probe program gives it."""
    space: dict[str, Any] = {"text": text, "run": run, "at_end": ask.pop("at_end", at_end)}
    exec(_probe_of(family), space)
    answer = space["probe_peers" if second else "probe"]({**ASK, **ask})
    assert json.loads(json.dumps(answer)) == answer, "an answer is plain JSON"
    return answer


ASK: dict[str, Any] = {
    "host": "a", "address": "127.0.0.1", "hosts": {"a": "127.0.0.1"}, "slots": 1, "world_size": 1,
    "token": "0123456789abcdef0123456789abcdef", "launcher": "ssh", "one_machine": False, "python": None,
    "controller_python": None, "packages": list(PACKAGES), "folders": {}, "timeout": 10.0,
}  # fmt: skip


def transport(**changes: Any) -> Transport:
    return Transport(**{"seconds": 0.1, **changes})
