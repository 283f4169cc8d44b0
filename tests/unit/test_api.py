"""`import muster`: the verbs as functions."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from tests.unit.test_contracts import HEAVY, LAZY

VERBS = sorted(set(muster.__all__) - {"MusterError", *muster._MARKS})


def test_importing_takes_no_time() -> None:
    code = "import sys, muster; dir(muster); print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & (HEAVY | LAZY | {"muster.api", "muster.core"})


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_typed_and_says_what_it_raises(name: str) -> None:
    verb = getattr(muster, name)
    signature = inspect.signature(verb)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())
    assert "Raises" in (verb.__doc__ or "")


def test_what_is_no_verb_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="launch"):
        _ = muster.launch


def test_rooms_do_not_hide_verbs() -> None:
    """A subpackage of a verb's name would replace the function once it is imported."""
    root = Path(muster.__file__).parent
    assert not {each.stem for each in root.iterdir()} & set(VERBS)


def test_a_plan_and_what_a_user_can_cause() -> None:
    planned = muster.plan("s1-opt-350m", on="h100:8x4,hdr", traced=False)
    assert planned.memory is not None and planned.memory.lacking is None
    with pytest.raises(muster.MusterError, match="either hosts or on"):
        muster.plan("s1-opt-350m")
    with pytest.raises(muster.MusterError) as caught:
        muster.plan("s1-opt-350m", on="h1000:8")
    assert caught.value.hint


def test_one_override_or_question_needs_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A string is a sequence as well: of its letters, which nobody means."""
    planned = muster.plan("digits", on="h100:8", overrides="train.max_steps=7", traced=False)
    assert planned == muster.plan("digits", on="h100:8", overrides=["train.max_steps=7"], traced=False)
    assert planned != muster.plan("digits", on="h100:8", traced=False)
    asked: list[object] = []
    monkeypatch.setattr("muster.runs.ask.check_trained", lambda run: None)
    monkeypatch.setattr("muster.runs.ask.ask", lambda run, questions, **more: asked.append(questions))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "job.json").write_text("{}")
    muster.ask(tmp_path / "one", "How many?")
    assert asked == [["How many?"]]


def test_logs_are_judged(tmp_path: Path) -> None:
    for host in range(8):
        slower = 1.3 if host == 3 else 1 + host / 1000
        lines = "".join(f"{step},{slower * step},n{host}\n" for step in range(30))
        (tmp_path / f"n{host}.csv").write_text(f"iteration,seconds,hostname\n{lines}")
    mapping = tmp_path / "columns.yaml"
    mapping.write_text("columns: {step: iteration, seconds: seconds, host: hostname}\nbatch: 8\n")
    found = muster.judge(tmp_path, mappings=[mapping])
    assert [each.hosts[0] for each in found.hosts if each.condition == "slow"] == ["n3"]
    assert found.gate == 1


def test_marks_are_looked_up_once() -> None:
    """A call of every step: the module's own lookup took four microseconds each time."""
    vars(muster).pop("step", None)
    muster.step(loss=1.0)
    assert vars(muster)["step"] is muster.step
