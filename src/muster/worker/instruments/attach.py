"""The instruments of a training, on its trainer in the order in which they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from muster.worker.context import Context
from muster.worker.feed import Feed
from muster.worker.instruments.attention import AttentionMonitor
from muster.worker.instruments.checkpoint_callback import CheckpointCallback
from muster.worker.instruments.computing import Computing
from muster.worker.instruments.flops import FlopsCounter
from muster.worker.instruments.logbook import HeartbeatCallback, LogCallback
from muster.worker.instruments.meter import Meter
from muster.worker.instruments.profile import Profiler
from muster.worker.instruments.weights import WeightWatch
from muster.worker.settings import SettingsWatch
from muster.worker.workloads.base import Built

Around = Callable[[Any], AbstractContextManager[None]]


def attach_instruments(context: Context, built: Built) -> tuple[WeightWatch, Meter, LogCallback]:
    """Attach everything that measures a training to its trainer. -> those that hold whether weights changed,
    the seconds, and whether time was up."""
    recipe, measure = context.recipe, context.recipe.measure
    trainer: Any = built.trainer
    around: list[Around] = []
    weights = WeightWatch()
    trainer.add_callback(weights)  # before the meter: what it adds up is no step's time
    flops = FlopsCounter(context, trainer.model) if measure.flops and built.flops else None
    # A compiled model's parts are no calls of Python's; a GPU's own waiting is part of its kernels.
    apart = context.device != "cuda" or not context.spec.shards_weights(recipe.engine.stage)
    computing = Computing(context.device) if apart and not recipe.train.compiled else None
    feed = Feed(context.device)
    trainer.add_callback(CheckpointCallback(context))
    trainer.add_callback(SettingsWatch(context, trainer))
    if measure.attention:
        monitor = AttentionMonitor(context, trainer)
        trainer.add_callback(monitor)
        around.append(monitor.around)
    log = LogCallback(context)
    trainer.add_callback(log)
    if context.emit.pulse:
        trainer.add_callback(HeartbeatCallback(context.emit.pulse))
    if measure.profiled:
        profiler = Profiler(context, trainer)
        trainer.add_callback(profiler)
        if profiler.breaks_down:
            around.append(profiler.around)
    meter = Meter(context, built, feed, flops, computing)
    trainer.add_callback(meter)  # last: what the others do after a step is not the step's
    trainer.__class__ = instrumented(type(trainer), feed, meter, around)
    return weights, meter, log


def instrumented(kind: Any, feed: Feed, meter: Meter, around: Sequence[Around] = ()) -> Any:
    """Return the class of any Transformers trainer with instruments about its methods, where there is no
    callback: the fetch of a batch, a micro-step, and a loss, of which each of `around` gets the model.

    A class behind a trainer that is made already: a third party's need not derive from Muster's.
    """

    class Instrumented(kind):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return feed.unplaced(super().get_train_dataloader())

        def get_batch_samples(self, batches: Iterator[Any], *rest: Any, **named: Any) -> Any:
            return super().get_batch_samples(feed.over(batches), *rest, **named)

        def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            meter.see(inputs, done=False)
            loss = super().training_step(model, inputs, *rest, **named)
            meter.see(inputs, done=True)
            return loss

    class Watched(Instrumented):
        def compute_loss(self, model: Any, *rest: Any, **named: Any) -> Any:
            with ExitStack() as stack:
                for each in around:
                    stack.enter_context(each(model))
                return super().compute_loss(model, *rest, **named)

    return Watched if around else Instrumented
