"""The table of failures: its entries say what tools really print, and all that know a failure use it."""

from __future__ import annotations

import ast
import importlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from muster.checks.registry import checks_of, families
from muster.checks.unreachable import Stage
from muster.failures.sign import weight_of
from muster.failures.table import (
    Blame,
    KnownFailure,
    Phase,
    Phrase,
    Retry,
    Source,
    Weight,
    find,
    find_ssh,
    is_hardware,
    known_failures,
    why_lost,
)
from muster.failures.wording import HINTS
from muster.schemas.documents import schema_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "muster"
PHRASES = [(entry, phrase) for entry in known_failures().values() for phrase in entry.says]


@pytest.mark.parametrize("entry", known_failures().values(), ids=list(known_failures()))
def test_an_entry_is_whole(entry: KnownFailure) -> None:
    allowed = (entry.phase, Phase), (entry.blame, Blame), (entry.retry, Retry)
    assert all(value in get_args(kind) for value, kind in allowed)
    assert re.fullmatch(r"[a-z0-9_]+", entry.id)
    for words in (entry.cause, entry.remedy, entry.source):
        assert 0 < len(words) <= 200, words  # an operator reads them in a terminal
    assert set(re.findall(r"{.*?}", entry.remedy)) <= {"{host}"}
    if any(phrase.of == "ssh" for phrase in entry.says):
        assert Stage(entry.phase)
    if entry.proof:  # something that the entry claims is proof, and something is none
        lines = [phrase.example for phrase in entry.says]
        assert {bool(re.search(entry.proof, line)) for line in lines} == {True, False}


@pytest.mark.parametrize(
    ("entry", "phrase"), PHRASES, ids=[f"{entry.id}-{phrase.pattern[:30]}" for entry, phrase in PHRASES]
)
def test_a_phrase_is_what_a_tool_printed_and_nobody_before_claims_it(
    entry: KnownFailure, phrase: Phrase
) -> None:
    assert phrase.of in get_args(Source) and phrase.weight in get_args(Weight)
    assert phrase.expression.search(phrase.example) and phrase.hint in phrase.example
    found = find_ssh([phrase.example]) if phrase.of == "ssh" else find(phrase.example, "log", phrase.of)
    assert found is not None and found.failure is entry, found
    assert found.phrase.pattern == phrase.pattern
    assert (phrase.of == "log") == bool(phrase.hint)  # most lines of a log need no expression
    assert phrase.of != "ssh" or phrase.problem


def test_checks_that_see_failures_before_the_start_are_there() -> None:
    known = {check.name for check in checks_of(families())}
    named = {entry.check for entry in known_failures().values() if entry.check}
    assert len(named) > 20 and not named - known


def test_remedies_name_keys_that_recipes_have() -> None:
    schema = json.dumps(schema_of("recipe"))
    for entry, phrase in PHRASES:
        for section, key in re.findall(
            r"\b(batch|checkpoint|engine|launch|model|train)\.([a-z]\w*)", f"{entry.remedy} {phrase.remedy}"
        ):
            assert f'"{section}": {{' in schema and f'"{key}": {{' in schema, (entry.id, section, key)


def test_ids_that_code_names_are_in_the_table() -> None:
    named = {name: str(path) for path in SOURCE.rglob("*.py") for name in _ids_in(path)}
    assert {"disk_full", "nccl_watchdog_timeout", "port_in_use", "remote_python_missing"} <= named.keys()
    assert not {name: path for name, path in named.items() if name not in known_failures()}


def _ids_in(path: Path) -> Iterator[str]:
    """Strings that are given as a failure or its id, compared with one, or looked up in the table."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[ast.expr] = []
        if isinstance(node, ast.keyword) and node.arg in ("failure", "id"):
            found = [node.value]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "known_failures()":
            found = [node.slice]
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".id"):
            found = node.comparators
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WATCHDOG":
            found = [node.value]
        for each in (inner for value in found for inner in ast.walk(value)):
            value = getattr(each, "value", None)
            if isinstance(value, str) and re.fullmatch(r"[a-z0-9]+(?:_[a-z0-9]+)+", value):
                yield value


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (  # a jump host, and nothing listens on the port behind it
            "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n"
            "kex_exchange_identification: Connection closed by remote host\n"
            "Connection closed by UNKNOWN port 65535",
            "the jump host cannot reach it",
        ),
        (  # a web server
            "kex_exchange_identification: banner line contains invalid characters\n"
            "banner exchange: Connection to 127.0.0.1 port 80: invalid format",
            "what answers there is not an sshd",
        ),
    ],
)
def test_of_all_that_ssh_says_the_line_that_explains_most_counts(said: str, problem: str) -> None:
    """As OpenSSH 9.2 printed it: what it says of its own end comes beside the cause, before or after it."""
    found = find_ssh(said.splitlines())
    assert found is not None and found.phrase.problem == problem


def test_who_is_to_blame_for_a_host_that_nobody_gets_through_to() -> None:
    """What it says itself, if that is the host's doing; a peer that hung up is none."""
    assert why_lost("silent for 15 s") == why_lost("Connection reset by peer") == "ssh_unreachable"
    assert why_lost("no answer within 20 s (Host key verification failed.)") == "ssh_host_key"


def test_what_is_proof_of_broken_hardware() -> None:
    assert is_hardware("gpu_hardware", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.")
    assert not is_hardware("gpu_hardware", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, Ch 00000010")
    assert not is_hardware("cuda_oom", "has fallen off the bus") and not is_hardware(None, None)


def test_a_cause_says_more_than_an_exception_and_a_symptom_less() -> None:
    assert weight_of("cuda_oom") < weight_of(None) < weight_of("peer_collapse")


def test_no_ordinary_line_of_a_training_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """One such hint makes `explain` an order of magnitude slower: see benchmarks/explain_log.py."""
    monkeypatch.syspath_prepend(str(SOURCE.parents[1] / "benchmarks"))
    training = importlib.import_module("explain_log").training
    lines = [training(random.Random(number), number) for number in range(500)]
    assert not [hint for hint in HINTS if any(hint in line for line in lines)]
