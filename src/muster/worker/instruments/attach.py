"""The instruments of a training, on its trainer in the order in which they are called."""

from __future__ import annotations

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


def attach_instruments(context: Context, built: Built) -> tuple[WeightWatch, Meter, LogCallback]:
    """Attach everything that measures a training to its trainer. -> those that hold whether weights changed,
    the seconds, and whether time was up.

    Some replace methods of the trainer object: Transformers has no callback around a forward pass, a
    micro-step or the fetch of a batch, and a third party's trainer need not derive from Muster's.
    """
    recipe, measure = context.recipe, context.recipe.measure
    trainer = built.trainer
    weights = WeightWatch()
    trainer.add_callback(weights)  # before the meter: what it adds up is no step's time
    flops = (
        FlopsCounter(context.emit, trainer.model, checkpointing=recipe.train.checkpointing, main=context.main)
        if measure.flops and built.flops
        else None
    )
    # A compiled model's parts are no calls of Python's; a GPU's own waiting is part of its kernels.
    apart = context.device != "cuda" or not context.spec.shards_weights(recipe.engine.stage)
    feed = Feed(context.device)
    feed.attach(trainer)
    meter = Meter(
        context.emit,
        built.count,
        measure.window,
        context.device,
        flops,
        measure.profiled,
        Computing(context.device) if apart and not recipe.train.compiled else None,
        context.engine.skipped_steps,
        feed=feed,
        after=built.after,
    )
    trainer.add_callback(CheckpointCallback(context))
    trainer.add_callback(SettingsWatch(context, trainer))
    if measure.attention:
        monitor = AttentionMonitor(
            context.emit, main=context.main, window=measure.window, device=context.device
        )
        monitor.attach(trainer)
    log = LogCallback(context.emit, main=context.main, max_minutes=recipe.train.max_minutes)
    trainer.add_callback(log)
    if context.emit.pulse:
        trainer.add_callback(HeartbeatCallback(context.emit.pulse))
    if measure.profiled:
        Profiler(context).attach(trainer)
    meter.attach(trainer)  # last: what the others do after a step is not the step's
    return weights, meter, log
