"""What a recipe names is looked for before ranks start on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.core.errors import RecipeError
from muster.core.recipes import load_recipe
from muster.inputs.hub import check_names
from muster.inputs.read import absolute

PRETRAINED = ["model.name=t5-small", "model.init=pretrained", "data.limit=4"]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A cache of the test's own, and no hub."""
    names = (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_DATASETS_CACHE",
        "HF_ENDPOINT",
        "TRANSFORMERS_OFFLINE",
    )
    for name in (*names, *(proxy for each in ("http", "https", "all") for proxy in (f"{each}_proxy",))):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}


def check(env: dict[str, str], *overrides: str, recipe: str = "demo") -> None:
    check_names(absolute(load_recipe(recipe, overrides)), env)


def refused(env: dict[str, str], *overrides: str, recipe: str = "demo") -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        check(env, *overrides, recipe=recipe)
    return caught.value


def cached(env: dict[str, str], repository: str, *files: str) -> None:
    folder = Path(env["HF_HOME"]) / "hub" / repository / "snapshots" / "0123"
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()


def test_what_is_made_here_needs_nothing(env: dict[str, str]) -> None:
    for recipe in ("demo", "causal-lm", "digits", "fabric"):
        check(env, recipe=recipe)
    check(env, "model.name=t5-large")  # init random, of a known size


def test_a_model_has_to_be_in_the_cache_with_its_weights(env: dict[str, str]) -> None:
    error = refused(env, *PRETRAINED)
    assert error.where == "model.name"
    assert "t5-small is not in this machine's Hugging Face cache, and HF_HUB_OFFLINE is set" in error.what
    cached(env, "models--t5-small", "config.json")
    refused(env, *PRETRAINED)
    cached(env, "models--t5-small", "model.safetensors")
    check(env, *PRETRAINED)
    refused(env, "model.name=some/other", "model.init=random")
    cached(env, "models--some--other", "config.json")
    check(env, "model.name=some/other", "model.init=random")


def test_a_set_up_line_may_say_where_the_cache_is(env: dict[str, str]) -> None:
    check(env, *PRETRAINED, "launch.setup=export HF_HOME=/elsewhere")


def test_a_tokenizer_and_a_data_set(env: dict[str, str], tmp_path: Path) -> None:
    assert refused(env, "model.tokenizer=gpt2").where == "model.tokenizer"
    assert refused(env, "data.name=Salesforce/wikisql").where == "data.name"
    (tmp_path / "hf" / "datasets" / "Salesforce___wikisql").mkdir(parents=True)
    check(env, "data.name=Salesforce/wikisql")
    cached(env, "datasets--Salesforce--wikitext", "README.md")
    check(env, "data.name=Salesforce/wikitext")


def test_a_folder(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    pretrained = [f"model.name={folder}", "model.init=pretrained"]
    assert "no such folder" in refused(env, *pretrained).what
    folder.mkdir()
    assert "has no config.json" in refused(env, *pretrained).what
    (folder / "config.json").write_text("{}")
    assert "has no weights" in refused(env, *pretrained).what
    check(env, f"model.name={folder}", "model.init=random")
    (folder / "pytorch_model.bin").touch()
    check(env, *pretrained)


@pytest.fixture
def port() -> Iterator[int]:
    """One that nothing listens on until it is asked to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


def test_a_hub_that_cannot_be_reached(env: dict[str, str], port: int) -> None:
    here = {**env, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{port}"}
    assert "127.0.0.1 cannot be reached" in refused(here, *PRETRAINED).what
    check({**here, "https_proxy": "http://proxy:3128"}, *PRETRAINED)  # only the proxy can tell
    with socket.create_server(("127.0.0.1", 0)) as hub:
        check({**here, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}, *PRETRAINED)


@pytest.mark.parametrize("word", ["1", "true", "YES", "on"])
def test_which_switches_say_that_there_is_no_hub(
    env: dict[str, str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks' own variables count before those of this process."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        here = {**env, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        check(here, *PRETRAINED)
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            assert f"{name} is set" in refused({**here, name: word}, *PRETRAINED).what
        check({**here, "HF_DATASETS_OFFLINE": word}, *PRETRAINED)
        assert "HF_DATASETS_OFFLINE" in refused({**here, "HF_DATASETS_OFFLINE": word}, "data.name=a/b").what


def test_a_misspelt_size_has_near_names(env: dict[str, str]) -> None:
    assert "t5-small" in (refused(env, "model.name=me/t5-smal", "model.init=pretrained").hint or "")
