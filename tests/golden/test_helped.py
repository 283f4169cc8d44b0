"""What the command line says of itself and of what is shipped: help, recipes, and the jobs of suites."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import muster as package
from muster.cli.app import VERBS
from tests.golden.documents import DIGITS, Documents, muster, workplace
from tests.golden.test_planned import traces
from tests.golden.test_shown import recorded

SUITES = sorted(file.stem for file in (Path(package.__file__).parent / "suites").glob("*.yaml"))
HELP = {"muster": ("--help",), **{verb: (verb, "--help") for verb in VERBS}}
SHIPPED = {"recipes": ("recipes",), "recipes --json": ("recipes", "--json")} | {
    f"bench {name} --dry-run": ("bench", name, "--hosts", "node[1-8]:2", "--dry-run") for name in SUITES
}
# Learned from the recorded runs: what devices reach, and how far off the plans are then.
LEARNED = {
    "of one rank, then of two": ("--calibrate", "resumed", "--calibrate", "digits"),
    "of preferences and rewards": ("--calibrate", "dpo", "--calibrate", "grpo"),
    "of the fabric": ("--calibrate", "fabric", "--link", "10Gbit"),
    "of two ranks alone": ("--calibrate", "digits"),
    "of a run that failed": ("--calibrate", "broken"),
}


def learned(case: str) -> str:
    """What is learned, as it is printed and as --json; nothing is kept for other documents."""
    with traces():
        told = [muster("plan", *LEARNED[case], *more, place=recorded()) for more in ((), ("--json",))]
    shutil.rmtree(workplace() / "home" / "muster", ignore_errors=True)
    return f"{told[0]}\n{told[1].fields(DIGITS)}"


DOCUMENTS = [
    Documents("help", tuple(HELP), lambda case: str(muster(*HELP[case]))),
    Documents("shipped", tuple(SHIPPED), lambda case: str(muster(*SHIPPED[case]))),
    Documents("learned", tuple(LEARNED), learned),
]
ALL = [(document, case) for document in DOCUMENTS for case in document.cases]


@pytest.mark.parametrize(("document", "case"), ALL, ids=[f"{each.kind}: {case}" for each, case in ALL])
def test_what_is_said_of_itself(document: Documents, case: str) -> None:
    document.check(case)
