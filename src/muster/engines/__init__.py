"""How a model is spread over the ranks. An engine is a folder of this package, or one that an entry point of
the group `muster.worker.engines` names. It has two modules:

spec.py: SPEC, a class derived from EngineSpec (base.py): what a rank holds, sends and saves, what it can
resume and what it refuses. The control side asks it, so it imports no torch. An engine that is one module,
its runtime, has the base's answers.

runtime.py, in the rank: RUNTIME, a class derived from EngineRuntime (worker/engine.py). These two have no
usual answer:

join(context)                the ranks meet
arguments(context) -> dict   the keyword arguments of Transformers' TrainingArguments that make it so
"""
