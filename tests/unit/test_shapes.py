"""Shapes of batches of pairs: the least padding that so few allow, and losses that do not know of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from muster.workloads.seq2seq.shapes import Shape, choose_shapes, shape_of


def compositions(rows: Sequence[int], parts: int) -> Iterator[list[Sequence[int]]]:
    """Every way to cut a row of lengths into so many ranges."""
    for cuts in itertools.combinations(range(1, len(rows)), parts - 1):
        yield [rows[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(rows)])]


def least(batches: Sequence[Shape], most: Shape, count: int) -> int:
    """Tokens with the best ranges of sources, each with the best ranges of targets: all are tried."""
    sources = sorted({*(source for source, _ in batches), most[0]})
    targets = sorted({*(target for _, target in batches), most[1]})
    best = []
    for slabs in range(1, count + 1):
        for ranges in compositions(sources, slabs):
            for cuts in itertools.product(range(1, count + 1), repeat=slabs):
                if sum(cuts) <= count and max(cuts) <= len(targets):
                    tokens = 0
                    for inside, cut in zip(ranges, cuts, strict=True):
                        rows = [target for source, target in batches if source in inside]
                        tokens += min(
                            sum(inside[-1] + part[-1] for target in rows for part in made if target in part)
                            for made in compositions(targets, cut)
                        )
                    best.append(tokens)
    return min(best)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_ranges_pad_less(seed: int) -> None:
    numbers = random.Random(seed)
    batches = [(numbers.randint(1, 9), numbers.randint(1, 9)) for _ in range(9)]
    batches = [
        (source - source % 2 + 1, target - target % 2 + 1) for source, target in batches
    ]  # few lengths
    most, count = (10, 12), numbers.randint(1, 4)
    shapes = choose_shapes(batches, most, count)
    assert len(shapes) <= count and shapes[-1] == most
    assert sum(sum(shape_of(batch, shapes)) for batch in batches) <= least(batches, most, count)


def test_every_batch_has_a_shape_that_it_fits_into() -> None:
    numbers = random.Random(1)
    batches = [(numbers.randint(1, 500), numbers.randint(1, 90)) for _ in range(2000)]
    shapes = choose_shapes(batches, (512, 96), multiple=8)
    assert len(shapes) == 8 and shapes[-1] == (512, 96)
    assert all(side % 8 == 0 for shape in shapes for side in shape)
    for source, target in [*batches, (512, 96), (1, 1), (511, 1), (1, 95)]:  # of later epochs too
        made = shape_of((source, target), shapes)
        assert made[0] >= source and made[1] >= target
    padded = sum(sum(shape_of(batch, shapes)) for batch in batches)
    assert sum(map(sum, batches)) < padded < 0.75 * len(batches) * (512 + 96)


def test_shapes_are_those_of_micro_batches_and_have_room_for_what_is_held_out() -> None:
    pytest.importorskip("torch")
    from muster.core.recipe import recipe_from
    from muster.workloads.seq2seq.train import shapes_for

    class Samples:
        def __init__(self, *lengths: Shape) -> None:
            self.lengths = list(lengths)

        def __len__(self) -> int:
            return len(self.lengths)

    recipe = recipe_from({"workload": "seq2seq", "data": {"padding": "buckets"}})
    context: Any = SimpleNamespace(recipe=recipe, batch=SimpleNamespace(micro=1, global_=2))
    train: Any = Samples((1, 1), (4, 4))
    held_out: Any = Samples((9, 2), (2, 8))
    shapes = shapes_for(context, train, held_out, 1)
    assert [shape_of(each, shapes) for each in train.lengths] == train.lengths
    assert shapes[-1] == (9, 8)


def rows(lengths: Sequence[Shape]) -> list[dict[str, Any]]:
    numbers = random.Random(0)
    return [
        {
            name: [numbers.randrange(2, 90) for _ in range(length)]
            for name, length in zip(("input_ids", "labels"), each, strict=True)
        }
        for each in lengths
    ]


@pytest.fixture
def masks() -> Iterator[None]:
    """Transformers makes its masks as before, afterwards."""
    masking = pytest.importorskip("transformers.masking_utils")
    names = ("eager", "sdpa")
    kept = {name: masking.ALL_MASK_ATTENTION_FUNCTIONS[name] for name in names}
    yield
    for name in names:
        masking.AttentionMaskInterface.register(name, kept[name])


def small_t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=96, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def test_losses_do_not_depend_on_the_shape(masks: None) -> None:
    torch = pytest.importorskip("torch")
    from muster.worker.loss import TokenLoss
    from muster.workloads.seq2seq.model import mask_unasked
    from muster.workloads.seq2seq.train import PairCollator

    model, batch = small_t5(), rows([(5, 7), (8, 3), (2, 4)])
    losses = []
    for unasked, shapes in ((False, ()), (True, ()), (True, ((8, 8), (16, 12)))):
        if unasked:
            mask_unasked()
        inputs = PairCollator(0, 0, shapes)(batch)
        if shapes:
            assert tuple(inputs["input_ids"].shape) == (3, 8) and tuple(inputs["labels"].shape) == (3, 8)
        labels = inputs.pop("labels")
        loss = TokenLoss()(model(**inputs), labels)
        loss.backward()
        losses.append((loss.detach(), [each.grad.clone() for each in model.parameters()]))
        model.zero_grad()
    for loss, gradients in losses[1:]:
        torch.testing.assert_close(loss, losses[0][0], rtol=1e-6, atol=0)
        torch.testing.assert_close(gradients, losses[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shapes", [(), ((8, 8), (16, 12))])
def test_decoder_inputs_are_the_labels_moved_by_one(shapes: tuple[Shape, ...]) -> None:
    """As the model itself moves them; behind a row's end they are padding, which no label counts."""
    torch = pytest.importorskip("torch")
    from muster.workloads.seq2seq.train import PairCollator

    inputs = PairCollator(0, 0, shapes)(rows([(5, 7), (8, 3)]))
    labels, moved = inputs["labels"], inputs["decoder_input_ids"]
    expected = small_t5().prepare_decoder_input_ids_from_labels(labels)
    counts = labels != -100
    assert counts.sum(1).tolist() == [7, 3]
    assert torch.equal(moved[counts], expected[counts])


def test_each_shape_is_compiled_once(masks: None) -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.testing import CompileCounter

    from muster.workloads.seq2seq.model import mask_unasked
    from muster.workloads.seq2seq.train import PairCollator, compile_each

    lengths = [(numbers, 12 - numbers) for numbers in range(1, 12)]
    shapes = choose_shapes(lengths, (11, 11), 3)
    mask_unasked()
    counter = CompileCounter()
    with torch._dynamo.config.patch(automatic_dynamic_shapes=True, recompile_limit=2):
        torch._dynamo.reset()
        compile_each(len(shapes))
        model = torch.compile(small_t5(), backend=counter)
        graphs = []
        for _ in range(2):
            for length in lengths:
                inputs = PairCollator(0, 0, shapes)(rows([length]))
                inputs.pop("labels")
                model(**inputs)
            graphs.append(counter.frame_count)
    torch._dynamo.reset()
    assert graphs == [len(shapes), len(shapes)]
