"""Which hosts hold which value, which is the majority, and numbers as numbers."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.checks.base import Finding, Level
from muster.checks.kinds import (
    Case,
    Differ,
    _near,
    differing,
    host_check,
    majority,
    same_check,
    version_key,
    world_size,
)
from muster.checks.registry import family_of
from tests.unit.judging import FAIL, PASS, UNKNOWN, WARN, context

DIFFER, NEAR = Differ("another size than most hosts"), Differ("p", tolerance=0.03)
SIZES = [1000, 1000, 1000, 1004, 1004, 1004, 1004]


@pytest.mark.parametrize(
    ("values", "differ", "levels", "evidence"),
    [
        pytest.param(
            [8, 8, 4], DIFFER, [PASS, PASS, WARN], "4 here (8 on n[1-2] (most); 4 on n3)", id="an odd host"
        ),
        pytest.param(["a", "b"], Differ("p", FAIL), [FAIL, FAIL], "b here (", id="no majority: none passes"),
        pytest.param([1, 1, 2, 3], DIFFER, [PASS, PASS, WARN, WARN], None, id="a lead is a majority"),
        pytest.param([1000.0, 990.0, 900.0], NEAR, [PASS, PASS, WARN], None, id="close, and not"),
        pytest.param(["3.1", "3.1", "3.10"], DIFFER, [PASS, PASS, WARN], None, id="text is no number"),
        pytest.param([*SIZES, 974], NEAR, [PASS] * 8, "974", id="at the edge"),
        pytest.param(
            [*SIZES, 968], NEAR, [*[PASS] * 7, WARN], "968 here (1004 on n[1-7] (most); 968 on n8)",
            id="an outlier draws no host away from the others",
        ),
        pytest.param(
            ["2.8", "2.8", None], DIFFER, [PASS, PASS, WARN], "not found here (2.8 on n[1-2] (most)",
            id="a missing value is a difference",
        ),
        pytest.param([None], DIFFER, [PASS], None, id="one host differs from nobody"),
        pytest.param([], DIFFER, [], None, id="no host"),
    ],
)  # fmt: skip
def test_who_differs(values: list[Any], differ: Differ, levels: list[Level], evidence: str | None) -> None:
    """The last host's evidence says what it and the others have."""
    hosts = {f"n{index}": value for index, value in enumerate(values, 1)}
    found = list(differing("x.y", hosts, differ).values())
    assert [(each.host, each.level) for each in found] == list(zip(hosts, levels, strict=True))
    assert evidence is None or found[-1].evidence.startswith(evidence)
    if PASS not in levels and found:
        assert found[0].problem == "p, and no value has a majority" and "most" not in found[0].evidence
    if levels[:-1] == [PASS] * 7:
        assert [each.evidence for each in found[:-1]] == [str(size) for size in SIZES]


def test_ten_thousand_different_values_are_grouped() -> None:
    """Each against each would take minutes."""
    values = [1000.0 + index for index in range(10_000)]
    near = _near(values, 0.001)
    assert len(near) == 10_000 and near[10_990.0] == near[10_999.0]
    assert all(abs(value - centre) <= 0.001 * centre for value, centre in near.items())


@given(
    st.dictionaries(st.text("ab12", min_size=1), st.sampled_from([1, 2, 2.01, 3]), max_size=9),
    st.sampled_from([0.0, 0.004, 0.1]),
)
def test_every_host_has_one_finding_and_the_majority_passes(
    values: dict[str, float], tolerance: float
) -> None:
    found = differing("x.y", values, Differ("p", tolerance=tolerance))
    assert [each.host for each in found.values()] == list(values)
    most = majority(values.values())
    if most is not None and tolerance == 0:
        passed = {host for host, each in found.items() if each.level == PASS}
        assert passed == {host for host, value in values.items() if value == most}


@pytest.mark.parametrize(
    ("values", "most"), [([], None), ([1, 2], None), ([1, 1, 2, 2], None), ([2, 1, 1], 1), ([None], None)]
)
def test_majority(values: list[Any], most: Any) -> None:
    assert majority(values) == most


@pytest.mark.parametrize(
    ("text", "key"),
    [("525.60.13", (525, 60, 13)), ("2.13.0+cpu", (2, 13, 0)), ("12.8", (12, 8)), (None, ()), ("none", ())],
)
def test_version_key(text: str | None, key: tuple[int, ...]) -> None:
    assert version_key(text) == key


def test_the_world_is_the_plan_or_the_slots_or_the_gpus() -> None:
    answers = {"n1": {"gpus": 8}, "n2": {"gpus": 0}}
    assert world_size(context(world_size=32), answers) == 32
    assert world_size(context(slots={"n1": 2, "n2": None}), answers) == 3
    assert world_size(context(), answers) == 9


@same_check("own.size", DIFFER, at_least=0, tolerance=0.1)
def size(case: Case) -> Finding | float:
    """A size.

    Why.
    """
    told: float | None = case.answer.get("size")
    if told is None:
        return case.unknown("not told")
    return told if told >= case.expect("at_least") else case.fail("too small", f"{told}")


@host_check("own.name")
def name(case: Case) -> Finding:
    """A name, over
    two lines.

    Why.
    """
    return case.passed(case.host)


def test_checks_with_judges_of_their_own_make_a_family() -> None:
    """A host that is settled alone, or tells nothing, does not count in the comparison of the others."""
    module = ModuleType("own")
    module.CHECKS = (size, name)  # type: ignore[attr-defined]
    answers = {"n1": {"size": 100}, "n2": {"size": 95}, "n3": {"size": 50}, "n4": {}, "n5": {"size": 3}}
    told = replace(context(), expects={"own.size": {"at_least": 10, "tolerance": 0.1}, "own.name": {}})
    found = family_of("own", module).judge(answers, {}, told)
    assert [(each.check, each.host, each.level) for each in found] == [
        *(("own.size", f"n{at}", level) for at, level in enumerate((PASS, PASS, WARN, UNKNOWN, FAIL), 1)),
        *(("own.name", host, PASS) for host in answers),
    ]
    assert "n5" not in found[2].evidence
    assert (name.asks, name.why) == ("A name, over two lines.", "Why.")
