"""Plug-ins: the modules of a package by name; third parties append and never replace."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from muster.core import registry
from muster.core.errors import UsageError
from muster.core.registry import load_plugin, plugin_names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "plugged_things"
    folder.mkdir()
    for name in ("__init__", "base", "_private", "plain", "two_words"):
        (folder / f"{name}.py").write_text(f"NAME = {name!r}\n")
    (folder / "broken.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "plugged_things"
    for name in [name for name in sys.modules if name.startswith("plugged_things")]:
        del sys.modules[name]


def offer(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        return [EntryPoint(name, value, group) for name, value in points if group == "plugged_things"]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_modules_are_found_without_being_imported(package: str) -> None:
    assert set(plugin_names(package)) == {"plain", "two_words", "broken"}
    assert "plugged_things.broken" not in sys.modules


@pytest.mark.parametrize("name", ["two_words", "two-words"])
def test_dash_and_underscore_are_the_same(package: str, name: str) -> None:
    assert load_plugin(package, name).NAME == "two_words"


def test_a_third_party_appends(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("their-own", "json"))
    assert load_plugin(package, "their_own") is sys.modules["json"]


def test_a_third_party_never_replaces(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("plain", "json"), ("two-words", "json"))
    assert load_plugin(package, "plain").NAME == "plain"
    assert load_plugin(package, "two-words").NAME == "two_words"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("two-word", "did you mean two-words?"),
        ("zzz", "known: broken, plain, two-words"),
        ("base", "known: broken, plain, two-words"),
        ("_private", "known: broken, plain, two-words"),
    ],
)
def test_an_unknown_one(package: str, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"unknown plugged_thing '{name}'") as caught:
        load_plugin(package, name)
    assert caught.value.hint == hint


def test_what_ships() -> None:
    assert {"local", "ssh"} <= set(plugin_names("muster.launchers"))
    with pytest.raises(UsageError, match="unknown launcher 'shh'") as caught:
        load_plugin("muster.launchers", "shh")
    assert caught.value.hint == "did you mean ssh?"
