"""Predict what a setting's steps consist of, and how long one takes on some machines. Pure."""

from __future__ import annotations

from dataclasses import replace

from muster.core import families, float8
from muster.core.errors import UsageError
from muster.core.flops import Shape, training
from muster.core.hardware.machines import Machines
from muster.engines.states import elements
from muster.planner.memory.fit import Setting
from muster.planner.time import steptime
from muster.planner.time.steptime import Calibration, Step, StepCase, StepWork, work_of


def predict(setting: Setting, machines: Machines | None, calibration: Calibration) -> Step | None:
    """Return an optimizer step; None: not known, as where a figure is missing (a peak in this precision)."""
    case = case_of(setting, machines) if machines is not None else None
    try:
        return steptime.predict(case, calibration) if case is not None else None
    except UsageError:
        return None


def case_of(setting: Setting, machines: Machines) -> StepCase | None:
    """Return the job in the form that predicts a step's time; None where a micro-batch's operations are not
    known, or answers are generated, for whose time there is no model."""
    work = _work(setting)
    if work is None or setting.drawing is not None:
        return None
    if setting.mean_tokens is not None:  # as many operations, over shorter samples
        shorter = work.times(setting.padded)
        work = replace(shorter, operations=work.operations, launches=work.launches)
    spread = setting.spread
    few_bits = setting.quantized is not None
    return StepCase(
        machines,
        setting.precision,
        work,
        setting.tensors,
        spread,
        share=setting.share,
        uncounted=few_bits,
        compiled=setting.compiled,
    )


def _work(setting: Setting) -> StepWork | None:
    """Return the work of all models of a step. By the trace; else by the family's formula, without what moves
    through memory."""
    trace, asked = setting.trace, (setting.checkpointing, setting.compiled)
    if trace is not None and asked == (trace.checkpointing, trace.compiled):
        passes, again = trace.at(setting.micro), setting.checkpointing
        work = work_of(passes, checkpointing=again, compiled=setting.compiled)
        return with_others(setting, _in_fp8(setting, work))
    products = families.products(setting.config, shape_of_batch(setting))
    if products is None:
        return None
    frozen = setting.trainable < setting.parameters
    done = training(products, checkpointing=setting.checkpointing, frozen=frozen)
    return with_others(setting, _in_fp8(setting, StepWork(setting.micro, done.forward, done.hardware)))


def _in_fp8(setting: Setting, work: StepWork) -> StepWork:
    """Return the work with the products that are in fp8 and the casts of their matrices: three products of a
    layer and six casts, a product and two casts more where it is computed again. Where it is not known what
    else moves through memory, the casts are not counted."""
    layers = setting.in_fp8
    if not layers:
        return work
    rows = setting.micro * setting.lengths.sequences * setting.lengths.tokens
    weights, sides = elements(layers), sum(sum(each.shape) for each in layers)
    again = 4 / 3 if setting.checkpointing else 1.0
    casts = 2 * again * (weights + rows * sides)  # of a weight, a layer's input and its output's gradient
    operations = float8.OPERATIONS[setting.compiled] * 6 * again * len(layers)
    return replace(
        work,
        fp8=6 * again * rows * weights,
        moved=work.moved + float8.MOVED[setting.compiled] * casts if work.moved else 0.0,
        operations=work.operations + operations if work.moved else 0.0,
        launches=work.launches + (0 if setting.compiled else operations) if work.moved else 0.0,
    )


def shape_of_batch(setting: Setting) -> Shape:
    image = "image_size" in setting.config
    rows = setting.micro * setting.lengths.sequences
    return Shape(rows, 0 if image else setting.lengths.tokens, setting.lengths.target)


def with_others(setting: Setting, work: StepWork) -> StepWork:
    """Return the work with the passes of a step's further models: forward alone, or both where they are
    trained. What they move, and their operations, are taken to be in proportion."""
    more = 0.0
    for each in setting.others:
        config = setting.config if each.config is None else each.config
        products = families.products(config, shape_of_batch(setting))
        if products is None:
            more += work.flops if each.trained else work.forward
        else:
            done = training(products, checkpointing=setting.checkpointing)
            more += done.hardware if each.trained else done.forward
    return replace(work.times(1 + more / work.flops), forward=work.forward) if work.flops else work
