"""What verbs say of recorded runs, benches and pipelines (tests/golden/runs, tests/golden/old_run)."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from functools import lru_cache
from pathlib import Path

import pytest

from muster.api import judge
from muster.core.errors import UsageError
from tests.golden.documents import DIGITS, Documents, lines, muster, rounded, text_of, workplace

FOLDER = Path(__file__).parent
ARCHIVES = sorted((FOLDER / "runs").glob("*.tar.xz"))
NAMES = ("old", *(file.name.removesuffix(".tar.xz") for file in ARCHIVES))
VERBS = {
    "show": ("show", "{}"),
    "show --json": ("show", "{}", "--json"),
    "show --csv": ("show", "{}", "--csv"),
    "report": ("show", "{}", "--html", "page.html"),
    "explain": ("explain", "{}"),
    "explain --json": ("explain", "{}", "--json"),
}


@lru_cache
def recorded() -> Path:
    """A folder with all of them in `runs`, in the order of their start."""
    runs = workplace() / "runs"
    shutil.copytree(FOLDER / "old_run", runs / "old")
    os.utime(runs / "old" / "job.json", (0, 0))
    for file in ARCHIVES:
        with tarfile.open(file) as archive:
            archive.extractall(runs, filter="data")
    return runs.parent


def shown(name: str, verb: str) -> str:
    """What a verb says of a run; of a report the page's text."""
    place = recorded()
    printed = muster(*(word.format(name) for word in VERBS[verb]), place=place)
    if verb != "report":
        return str(printed)
    page = place / "page.html"
    html = page.read_text(encoding="utf-8")
    page.unlink()
    return printed.behind(text_of(html, whole=name == NAMES[0]))


def folded_again() -> str:
    """What `muster bench --continue` makes of a bench whose jobs are over: its document, and its table."""
    place = recorded()
    bench = place / "bench-again"
    shutil.copytree(place / "runs" / "bad-host", bench)
    printed = muster("bench", "--continue", bench.name, "--json", place=place)
    found = json.loads(printed.out)
    judged = muster("judge", bench.name, "--json", "--output", "judged.csv", place=place)
    assert json.loads(judged.out) == found  # the same document, and the same table
    assert (place / "judged.csv").read_bytes() == (bench / "results.csv").read_bytes()
    table = (bench / "results.csv").read_text(encoding="utf-8")
    shutil.rmtree(bench)
    del found["ended"]
    fields = "".join(f"{line}\n" for line in lines(rounded(found, DIGITS)))
    return printed.behind(f"{table}\n{fields}")


def test_a_bench_is_judged_anew_with_other_bounds() -> None:
    bench = recorded() / "runs" / "bad-host"
    assert judge(bench).summary["slow"] == 1
    assert judge(bench, slow=0.5).summary["slow"] == 0
    missed = judge(bench, at_least="99.6samples/s/host").hosts
    assert {each.host for each in missed if each.condition == "below"} == {"node6", "node8"}
    with pytest.raises(UsageError, match="--hardware"):
        judge(bench, hardware=["a100=node[1-8]"])


DOCUMENTS = [
    Documents("bench-again", ("bad-host",), lambda _: folded_again()),
    *(Documents(f"run-{name}", tuple(VERBS), lambda verb, name=name: shown(name, verb)) for name in NAMES),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("document", DOCUMENTS[1:], ids=NAMES)
def test_a_recorded_run(document: Documents, verb: str) -> None:
    document.check(verb)


def test_a_bench_is_folded_again() -> None:
    DOCUMENTS[0].check("bad-host")
