"""What the libraries look up in every step is looked up once, and means the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")


def model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout()))


def modes(made: Any) -> list[bool]:
    return [each.training for each in made.modules()]


def test_a_models_mode_is_set_where_it_differs() -> None:
    from muster.worker.lean import keep_mode

    made = model()
    keep_mode(made)
    assert made.eval() is made and modes(made) == [False] * 4
    assert made.train() is made and modes(made) == [True] * 4
    made[1][0].eval()  # a part alone, under a whole that says otherwise
    assert made.train() is made and modes(made) == [True] * 4


def test_an_opt_stack_that_draws_no_numbers_is_not_walked_through_in_every_step() -> None:
    """Its own mode differs from the model's for good; its layers train, and evaluate, as the model does."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from muster.worker.lean import keep_mode
    from muster.worker.models import without_layer_drop

    sizes = {"hidden_size": 8, "ffn_dim": 8, "num_attention_heads": 2, "word_embed_proj_dim": 8}
    config = AutoConfig.for_model("opt", num_hidden_layers=2, vocab_size=20, layerdrop=0.0, **sizes)
    made = AutoModelForCausalLM.from_config(config)
    without_layer_drop(made)
    keep_mode(made)
    made.eval()
    assert not any(modes(made))
    made.train()
    stack, walks = made.model.decoder, []
    assert [each for each in made.modules() if not each.training] == [stack]
    stack.train = lambda mode=True: walks.append(mode)
    assert made.train() is made and not walks


def test_a_copy_has_a_mode_of_its_own() -> None:
    from muster.worker.lean import keep_mode

    made = model()
    keep_mode(made)
    other = copy.deepcopy(made).eval()
    assert (modes(made), modes(other)) == ([True] * 4, [False] * 4)


def test_a_compiled_models_mode() -> None:
    from muster.worker.lean import keep_mode

    made = model()
    compiled = torch.compile(made, backend="eager")
    keep_mode(compiled)
    compiled.eval()
    assert modes(made) == [False] * 4 and not compiled.training
    compiled.train()
    assert modes(made) == [True] * 4 and compiled.training


def test_packages_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate.accelerator
    import accelerate.optimizer
    from accelerate.utils import imports

    from muster.worker.lean import ASKED, remember_packages

    searched: list[str] = []
    monkeypatch.setattr(imports, "_is_package_available", lambda name: bool(searched.append(name)))
    for module in (accelerate.accelerator, accelerate.optimizer):
        monkeypatch.setattr(module, ASKED, imports.is_lomo_available)
    remember_packages()
    remember_packages()
    assert [module.is_lomo_available() for module in (accelerate.accelerator, accelerate.optimizer) * 3] == [
        False
    ] * 6
    assert searched == ["lomo_optim"] * 2
    monkeypatch.delattr(accelerate.optimizer, ASKED)  # a release that does not ask
    remember_packages()
    assert not hasattr(accelerate.optimizer, ASKED)
