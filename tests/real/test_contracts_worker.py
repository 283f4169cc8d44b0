"""The plug-ins that ranks import keep what their packages promise."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from muster.core.errors import RecipeError
from muster.core.recipe import Engine
from muster.core.registry import load_plugin, plugin_names
from tests.support import needs_torch
from tests.unit.test_contracts import promised

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("torch_here")]


@pytest.fixture(autouse=True)
def torch_here() -> None:
    needs_torch()


@pytest.mark.parametrize("name", sorted(plugin_names("muster.worker.engines")))
def test_an_engine_has_what_is_promised(name: str) -> None:
    import muster.worker.engines

    functions = promised(muster.worker.engines.__doc__ or "")
    assert set(functions) == {"join", "arguments"}
    module = load_plugin("muster.worker.engines", name)
    for function, parameters in functions.items():
        signature = inspect.signature(getattr(module, function))
        assert list(signature.parameters) == parameters
        assert inspect.getdoc(getattr(module, function))


def test_a_recipe_can_name_every_engine() -> None:
    for name in plugin_names("muster.worker.engines"):
        assert Engine(name=name).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(plugin_names("muster.worker.workloads")))
def test_a_workload_has_what_is_promised(name: str) -> None:
    import muster.worker.workloads

    promises = promised(muster.worker.workloads.__doc__ or "")
    assert set(promises) == {"build", "Answerer"}
    module = load_plugin("muster.worker.workloads", name)
    for promise, parameters in promises.items():
        assert list(inspect.signature(getattr(module, promise)).parameters) == parameters
        assert inspect.getdoc(getattr(module, promise))
    inspect.signature(module.Answerer.answer).bind("self", ["question"])


def test_a_number_that_transformers_would_contradict_is_bad_input() -> None:
    """Its own words of many lines become one line that names the key; exit code 2."""
    from transformers.integrations import HfTrainerDeepSpeedConfig

    from muster.worker.main import explain

    config = HfTrainerDeepSpeedConfig({"scheduler": {"params": {"total_num_steps": 1000}}})
    with pytest.raises(ValueError) as caught:
        config.trainer_config_finalize(SimpleNamespace(get_warmup_steps=lambda _: 0), None, 8)
    told = explain(caught.value)
    assert isinstance(told, RecipeError)
    assert str(told).startswith("engine.config: scheduler.params.total_num_steps=1000, but here")
    assert "\n" not in str(told)
    assert "auto" in (told.hint or "")
