"""Which hosts hold which value, which is the majority, and numbers as numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.checks.base import Finding
from muster.checks.kinds import Case, Differ, _near, host_check, majority, same_check, version_key, world_size
from muster.checks.kinds import differing as differing_by_host
from muster.checks.registry import family_of
from tests.unit.judging import FAIL, PASS, UNKNOWN, WARN, context


def differing(check: str, values: Mapping[str, Any], differ: Differ) -> list[Finding]:
    found = differing_by_host(check, values, differ)
    assert all(found[host].host == host for host in values)
    return list(found.values())


DIFFER = Differ("another size than most hosts")


def test_the_odd_host_is_named_with_what_it_and_the_others_have() -> None:
    found = differing("x.y", {"n1": 8, "n2": 8, "n3": 4}, DIFFER)
    assert [each.level for each in found] == [PASS, PASS, WARN]
    assert found[2].host == "n3"
    assert found[2].problem == "another size than most hosts"
    assert found[2].evidence == "4 here (8 on n[1-2] (most); 4 on n3)"


def test_without_a_majority_no_host_passes() -> None:
    found = differing("x.y", {"n1": "a", "n2": "b"}, Differ("differs", FAIL))
    assert {each.level for each in found} == {FAIL}
    assert {each.problem for each in found} == {"differs, and no value has a majority"}
    assert "most" not in found[0].evidence


def test_a_lead_without_an_absolute_majority_is_a_majority() -> None:
    found = differing("x.y", {"n1": 1, "n2": 1, "n3": 2, "n4": 3}, DIFFER)
    assert [each.level for each in found] == [PASS, PASS, WARN, WARN]


def test_numbers_are_close_or_not_and_text_is_not_a_number() -> None:
    near = {"n1": 1000.0, "n2": 990.0, "n3": 900.0}
    levels = [each.level for each in differing("x.y", near, Differ("p", tolerance=0.03))]
    assert levels == [PASS, PASS, WARN]
    assert [each.level for each in differing("x.y", {"n1": "3.1", "n2": "3.1", "n3": "3.10"}, DIFFER)][
        2
    ] == WARN


def test_an_outlier_at_the_edge_draws_no_host_away_from_the_others() -> None:
    near = Differ("p", tolerance=0.03)
    sizes = [974, 1000, 1000, 1000, 1004, 1004, 1004, 1004]
    for low, level in ((974, PASS), (968, WARN)):
        values = {f"n{index}": size for index, size in enumerate([low, *sizes[1:]])}
        found = differing("x.y", values, near)
        assert [each.level for each in found] == [level] + [PASS] * 7
        assert [each.evidence for each in found][1:] == [str(size) for size in sizes[1:]]
    assert found[0].evidence == "968 here (1004 on n[1-7] (most); 968 on n0)"


def test_ten_thousand_different_values_are_grouped_soon() -> None:
    values = [1000.0 + index for index in range(10_000)]
    began = time.process_time()
    near = _near(values, 0.001)
    assert time.process_time() - began < 2  # each against each would take minutes
    assert len(near) == 10_000 and near[10_990.0] == near[10_999.0]
    assert all(abs(value - centre) <= 0.001 * centre for value, centre in near.items())


def test_a_missing_value_is_a_difference() -> None:
    found = differing("x.y", {"n1": "2.8", "n2": "2.8", "n3": None}, DIFFER)
    assert found[2].evidence.startswith("not found here (2.8 on n[1-2] (most)")


def test_one_host_differs_from_nobody_and_none_gives_nothing() -> None:
    assert differing("x.y", {"n1": None}, DIFFER)[0].level == PASS
    assert differing("x.y", {}, DIFFER) == []


@given(
    st.dictionaries(st.text("ab12", min_size=1), st.sampled_from([1, 2, 2.01, 3]), max_size=9),
    st.floats(0, 0.1),
)
def test_every_host_has_one_finding_and_the_majority_passes(
    values: dict[str, float], tolerance: float
) -> None:
    found = differing("x.y", values, Differ("p", tolerance=tolerance))
    assert [each.host for each in found] == list(values)
    if values and majority(values.values()) is not None and tolerance == 0:
        assert {each.host for each in found if each.level == PASS} == {
            host for host, value in values.items() if value == majority(values.values())
        }


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
