"""Image classification by real ranks: the same curve on one and two, what it learns, bad images, asking."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import DataError, RecipeError
from muster.core.recipe import Recipe, recipe_from
from muster.core.result import Result
from muster.inputs.read import read_inputs
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.images import BLUE, GREEN, RED, png, write_folder
from tests.support import by_the_lines, losses, needs_torch, resumed_at_the_end, said, train_here

pytestmark = [pytest.mark.real, pytest.mark.timeout(400), pytest.mark.usefixtures("torch_here")]

STEPS, GLOBAL, TRAIN = 12, 32, 120  # four steps to an epoch, whose last batch is filled up
TINY = [
    "model.config.hidden_size=32", "model.config.intermediate_size=64", f"data.limit={TRAIN}",
    "data.flip=true", "data.crop=1", f"train.max_steps={STEPS}", "train.warmup=0",
    f"batch.global={GLOBAL}", "measure.window=1", "measure.warmup=3", "evaluate.limit=50",
    "evaluate.every=6", "launch.threads=1", "measure.hardware_seconds=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def torch_here() -> None:
    needs_torch()
    pytest.importorskip("PIL")


def run(folder: Path, hosts: str, *overrides: str) -> tuple[RunFolder, Result]:
    target = RunFolder(folder)
    return target, train(read_inputs("digits", hosts, list(overrides)), target)


# --- the same on any number of ranks ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(torch_here: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """One process, the whole global batch in one micro-batch, images made by the process itself."""
    done, result = run(tmp_path_factory.mktemp("alone") / "run", "local:1", *TINY, "batch.accumulation=1")
    assert result.status == "succeeded", result.failure
    return done, result


@pytest.fixture(scope="module")
def pair(torch_here: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """Two ranks of DDP, accumulated, each with a loader process; a checkpoint inside an epoch."""
    settings = ["batch.accumulation=2", "batch.micro=8", "train.workers=1", "checkpoint.every=6"]
    done, result = run(tmp_path_factory.mktemp("pair") / "run", "local:2", *TINY, *settings)
    assert result.status == "succeeded", result.failure
    return done, result


def test_two_ranks_are_one_process(alone: Any, pair: Any) -> None:
    """Augmented images, losses, held-out losses and answers are the same."""
    (one, first), (two, second) = alone, pair
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert len(losses(one)) == STEPS
    for a, b in zip(said(one, events.Evaluated), said(two, events.Evaluated), strict=True):
        assert (a.step, b.step) in ((6, 6), (12, 12))
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.perplexity is None
    answers = [{e.index: (e.question, e.expected) for e in said(done, events.Answer)} for done in (one, two)]
    assert answers[0] == answers[1]
    assert sorted(answers[0]) == list(range(50))
    assert first.quality is not None and second.quality is not None
    assert second.quality.exact_match == pytest.approx(first.quality.exact_match, abs=0.021)
    assert {event.rank for event in said(two, events.Answered)} == {0, 1}


ENGINES = {
    "fsdp": ["batch.micro=16", "engine.name=fsdp"],
    "zero2": ["batch.micro=8", "batch.accumulation=2", "engine.name=deepspeed", "engine.zero=2"],
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_follows_ddp(engine: str, pair: tuple[RunFolder, Result], tmp_path: Path) -> None:
    """The same augmented images on two ranks, the same losses, and what it learned is as good."""
    done, result = run(tmp_path / "run", "local:2", *TINY, *ENGINES[engine])
    assert result.status == "succeeded", result.failure
    assert result.engine == {"fsdp": "fsdp", "zero2": "deepspeed ZeRO-2"}[engine]
    assert len(losses(done)) == STEPS
    assert losses(done) == pytest.approx(losses(pair[0]), rel=1e-3)
    assert result.evaluation_loss == pytest.approx(pair[1].evaluation_loss, rel=1e-3)
    assert result.quality is not None and pair[1].quality is not None
    assert result.quality.exact_match == pytest.approx(pair[1].quality.exact_match, abs=0.021)


def test_the_first_loss_is_that_of_plain_pytorch(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The untrained model's mean cross entropy over the first global batch, augmented; Pillow, no loader."""
    import torch

    from muster.worker.context import read_context
    from muster.workloads.image_classification.images import read_digits
    from muster.workloads.image_classification.model import make_model

    done, _ = alone
    spec = json.loads(next(done.path.glob("hosts/*/spec.json")).read_text())
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    context = read_context(spec)
    model = make_model(context, [str(digit) for digit in range(10)]).eval()
    from muster.workloads.image_classification.images import Augmentation, EpochSampler, load_parts

    seed = context.recipe.train.seed
    rows = load_parts(context.recipe.data, seed, None).train.rows
    order = list(EpochSampler([1] * TRAIN, GLOBAL, seed, grouped=False))[:GLOBAL]
    images, labels = read_digits()
    change = Augmentation(True, 1, seed)
    pixels = torch.stack([change(torch.from_numpy(images[rows[i]])[None], 0, i) for i in order])
    with torch.no_grad():
        logits = model(pixel_values=(pixels.float() / 255 - 0.3) / 0.37).logits
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([labels[rows[i]] for i in order]))
    assert losses(done)[0] == pytest.approx(expected.item(), rel=1e-5)


def test_losses_are_those_of_pixels_that_the_loader_normalised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twelve augmented steps over three epochs, a held-out loss and the operations: to the last bit."""
    import torch

    from muster.workloads.image_classification import train as module
    from muster.workloads.image_classification.images import Preparation, collate

    settings = [*TINY, "model.init=random", "data.mean=[0.3]", "data.std=[0.37]", "engine={name: ddp}"]
    seen: set[tuple[torch.dtype, torch.dtype]] = set()
    model_sees = module._Trainer.normalised

    def watched(self: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        given = model_sees(self, inputs)
        seen.add((inputs["pixel_values"].dtype, given["pixel_values"].dtype))
        return given

    def by_the_loader(samples: Any) -> dict[str, Any]:
        batch = collate(samples)
        mean, scale = (
            torch.tensor([0.3]).view(1, -1, 1, 1),
            1 / (255 * torch.tensor([0.37]).view(1, -1, 1, 1)),
        )
        batch["pixel_values"] = batch["pixel_values"].float().mul_(scale).sub_(255 * mean * scale)
        return batch

    def told(folder: Path) -> list[Any]:
        folder.mkdir()
        made = train_here(folder, read_inputs("digits", "local:1", settings).recipe.as_dict(), GLOBAL)
        windows = [each for each in made if isinstance(each, events.Window)]
        return [
            [each.loss for each in made if isinstance(each, (events.Log, events.Evaluated))],
            [(each.samples, each.model_flops, each.hardware_flops) for each in windows],
        ]

    monkeypatch.setattr(module._Trainer, "normalised", watched)
    now = told(tmp_path / "now")
    assert seen == {(torch.uint8, torch.float32)}
    assert len(now[0]) == STEPS + 2 and now[1][0][1]
    monkeypatch.setattr(module, "collate", by_the_loader)
    monkeypatch.setattr(module._Trainer, "normalised", lambda self, inputs: inputs)
    assert told(tmp_path / "before") == now
    assert Preparation.from_saved(tmp_path / "now" / "model").mean == (0.3,) * 3  # grey, that takes colours


def test_images_and_their_tokens_are_counted(pair: Any) -> None:
    done, result = pair
    windows = said(done, events.Window)
    assert result.samples == sum(window.samples for window in windows) == STEPS * GLOBAL
    assert all(window.tokens == window.padded_tokens == 17 * window.samples for window in windows)
    data = said(done, events.DataRead)[0]
    assert (data.train, data.validation, data.skipped) == (TRAIN, 50, 0)


def test_a_resumed_run_sees_the_same_images(pair: Any, tmp_path: Path) -> None:
    whole, result = pair
    again, resumed = resumed_at_the_end(whole, tmp_path / "again", STEPS)
    assert losses(again) == pytest.approx(losses(whole), rel=1e-6)
    assert resumed.quality == result.quality.model_copy(update={"seconds": resumed.quality.seconds})


# --- what it learns --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(torch_here: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """The shipped recipe as it is, in a folder of runs of its own."""
    done, result = run(tmp_path_factory.mktemp("learned") / "runs" / "digits", "local:2", "launch.threads=1")
    assert result.status == "succeeded", result.failure
    return done, result


def muster(where: RunFolder, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "muster", *arguments]
    return subprocess.run(argv, cwd=where.path.parent.parent, capture_output=True, text=True, timeout=120)


def test_it_learns_the_digits(learned: tuple[RunFolder, Result]) -> None:
    done, result = learned
    assert result.quality is not None
    assert (result.quality.questions, result.quality.metric) == (360, "top-1 accuracy")
    assert result.quality.exact_match > 0.94
    right = sum(event.predicted == event.expected for event in said(done, events.Answer))
    assert right / 360 == result.quality.exact_match


def test_every_place_calls_it_top_1(learned: tuple[RunFolder, Result]) -> None:
    from muster.reports.page import report
    from muster.results.figures import figures

    done, result = learned
    assert result.quality is not None
    share = f"{100 * result.quality.exact_match:.1f}"
    assert share in [each.value for each in figures(result) if each.name == "Top-1 accuracy"]
    page = report(done).read_text(encoding="utf-8")
    assert "Top-1 accuracy" in page
    shown = page.partition("How to read this")[0]
    assert len(shown) > len(page) / 3
    for nonsense in (
        "Exact match",
        "is padding",
        "with padding",
        "not executed",
        "Same rows from the database",
    ):
        assert nonsense not in shown


def test_ask(learned: tuple[RunFolder, Result]) -> None:
    """Files by their paths, and the held-out set, which gets the answers that the ranks gave."""
    from PIL import Image

    from muster.workloads.image_classification.images import read_digits
    from muster.workloads.image_classification.train import Answerer

    done, result = learned
    images, _ = read_digits()
    folder = done.path.parent.parent
    told = {event.question: event.predicted for event in said(done, events.Answer)}
    places = list(told)[:2]
    for number, place in enumerate(places):
        Image.fromarray(images[int(place.split("[")[1][:-1])]).save(folder / f"{number}.png")
    (folder / "cut.png").write_bytes((folder / "0.png").read_bytes()[:60])
    asked = muster(done, "ask", "digits", "0.png", "1.png", "--json")
    assert asked.returncode == 0, asked.stderr
    assert [row["predicted"] for row in json.loads(asked.stdout)["answers"]] == [
        told[place] for place in places
    ]
    held = muster(done, "ask", "digits", "--evaluate", "--json")
    assert held.returncode == 0, held.stderr
    document = json.loads(held.stdout)
    assert (document["metric"], document["questions"]) == ("top-1 accuracy", 360)
    assert document["exact_match"] == result.quality.exact_match  # type: ignore[union-attr]
    assert {row["question"]: row["predicted"] for row in document["answers"]} == told
    answerer = Answerer(done.model, recipe_from(done.read_json(done.job)["recipe"]), "cpu")
    assert answerer.answer([str(folder / "1.png"), places[0]])[0] == [told[places[1]], told[places[0]]]
    for name, what in (("cut.png", "cannot be read: image file is truncated"), ("no.png", "no such image")):
        with pytest.raises(DataError) as caught:
            answerer.answer([str(folder / name)])
        assert (caught.value.where, caught.value.what) == (str(folder / name), what)


def test_transformers_takes_grey_models(learned: tuple[RunFolder, Result]) -> None:
    """The lines that load the model name a grey and a coloured image as `muster ask` does."""
    from PIL import Image

    from muster.workloads.image_classification.images import read_digits

    done, _ = learned
    images, _ = read_digits()
    folder = done.path.parent.parent
    event = said(done, events.Answer)[0]
    grey = Image.fromarray(images[int(event.question.split("[")[1][:-1])])
    for image in (grey, grey.convert("RGB")):
        image.save(folder / "image.png")
        named = ast.literal_eval(by_the_lines(done))
        assert named[0]["label"] == event.predicted


# --- bad images, and a pretrained model ------------------------------------------------------------------


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """Folders of images of three colours; two files are cut short."""
    files = {
        f"{part}/{name}/{i}.png": png(colour, 8 + i, 9)
        for part, count in (("train", 8), ("test", 3))
        for name, colour in (("red", RED), ("green", GREEN), ("blue", BLUE))
        for i in range(count)
    }
    for name in ("train/green/3.png", "test/blue/1.png"):
        files[name] = files[name][:-30]
    return write_folder(tmp_path / "colours", files)


def settings(colours: Path, model: Path) -> list[str]:
    own = [
        f"model.name={model}",
        "model.init=pretrained",
        "model.config=null",
        "data.mean=null",
        "data.std=null",
    ]
    return [*own, f"data.path={colours}", "train.max_steps=20", "batch.global=8", "launch.threads=1"]


def test_a_truncated_image_ends_the_run(colours: Path, learned: Any, tmp_path: Path) -> None:
    done, result = run(tmp_path / "run", "local:2", *settings(colours, learned[0].model))
    assert result.status == "failed"
    assert result.failure is not None and result.failure.usage
    assert result.failure.where == str(colours / "train/green/3.png")
    assert result.failure.what == "cannot be read: image file is truncated"
    assert "data.bad=skip" in (result.failure.hint or "")
    assert not done.model.exists()


def test_it_is_skipped_and_counted_where_the_recipe_says_so(
    colours: Path, learned: Any, tmp_path: Path
) -> None:
    """And a trained model takes other classes with a new classifier, and its own way to prepare images."""
    from muster.workloads.image_classification.images import Preparation

    more = settings(colours, learned[0].model)
    done, result = run(tmp_path / "run", "local:2", *more, "data.bad=skip", "evaluate.every=10")
    assert result.status == "succeeded", result.failure
    data = said(done, events.DataRead)[0]
    assert (data.train, data.validation, data.skipped) == (23, 8, 2)
    assert any("left out (data.bad=skip): 2;" in note for note in result.notes)
    assert result.quality is not None and result.quality.questions == 8
    assert Preparation.from_saved(done.model) == Preparation.from_saved(learned[0].model)
    config = json.loads((done.model / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "green", "2": "red"}
    assert {event.expected for event in said(done, events.Answer)} == {"blue", "green", "red"}


# --- what can never work ---------------------------------------------------------------------------------


def recipe(data: dict[str, Any] | None = None, **model: Any) -> Recipe:
    return recipe_from(
        {"workload": "image-classification", "model": {"init": "random", **model}, "data": data or {}}
    )


LABELS = {"num_labels": 2, "id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}


@pytest.mark.parametrize(
    ("made", "where", "what"),
    [
        (
            recipe({"size": 30}, name="vit-micro"),
            "data.size",
            "30 pixels are no whole number of patches of 4",
        ),
        (
            recipe(config={"image_size": 30, "patch_size": 4}),
            "model.config.image_size",
            "30 pixels are no whole number of patches of 4",
        ),
        (recipe(config={"model_type": "gpt2"}), "model", "gpt2 does not classify images"),
        (recipe({"mean": [0.5]}, name="vit-micro"), "data.mean", "has 1 values for 3 channels"),
        (
            recipe(config={"model_type": "vit", "num_channels": 4}),
            "model.config.num_channels",
            "images have 1 or 3 channels",
        ),
        (recipe(config={"model_type": "nothing"}), "model.config", "does not make a model"),
    ],
)
def test_settings_that_do_not_go_together(made: Recipe, where: str, what: str) -> None:
    from muster.workloads.image_classification.model import make_config, preparation_for

    with pytest.raises(RecipeError) as caught:
        preparation_for(made, make_config(made, LABELS))
    assert caught.value.where == where
    assert caught.value.what.startswith(what)


def test_sizes_are_made_for_the_datas_size() -> None:
    from muster.core import families
    from muster.workloads.image_classification.model import make_config, preparation_for, tokens_per_image

    for name in families.sizes("vit"):
        config = make_config(recipe(name=name), LABELS)
        assert config.hidden_size == families.size(name)["hidden_size"]  # type: ignore[index]
    config = make_config(recipe({"size": 64}, name="vit-micro"), LABELS)
    assert (config.image_size, tokens_per_image(config)) == (64, 257)
    made = preparation_for(recipe({"size": 64}, name="vit-micro"), config)
    assert (made.size, made.mean, made.std) == (64, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    other = make_config(recipe(config={"model_type": "resnet"}), LABELS)
    assert (tokens_per_image(other), preparation_for(recipe(), other).size) == (0, 224)


def test_an_image_that_spoils_later_is_told(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the training finds (more images than are looked at before it) says where, and ends or is
    skipped."""

    import torch

    from muster.workloads.image_classification.images import FAULTS, Preparation
    from muster.workloads.image_classification.train import _Trainer

    told: list[str] = []
    for bad in ("error", "skip"):
        trainer = _Trainer.__new__(_Trainer)
        trainer.emit, trainer.bad, trainer.noted = (lambda kind, text: told.append(text)), bad, set()
        trainer.preparation = Preparation(2, (0.5,), (0.5,))
        monkeypatch.setattr(trainer, "_prepare_input", lambda pixels: pixels)
        monkeypatch.setattr("transformers.Trainer.compute_loss", lambda self, model, inputs: sorted(inputs))
        pixels = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
        inputs = {"labels": 1, "pixel_values": pixels, FAULTS: [("x.png", "is empty"), ("x.png", "is empty")]}
        if bad == "error":
            with pytest.raises(DataError) as caught:
                trainer.compute_loss(None, inputs)
            assert (caught.value.where, caught.value.what) == ("x.png", "is empty")
        else:
            assert trainer.compute_loss(None, inputs) == ["labels", "pixel_values"]
    assert told == ["skipped in training: x.png: is empty"]
