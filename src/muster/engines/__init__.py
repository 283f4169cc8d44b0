"""How a model is spread over the ranks. An engine is a folder of this package, or one that an entry point of
the group `muster.worker.engines` names. It has two modules:

spec.py: SPEC, a class derived from EngineSpec (base.py): what a rank holds, sends and saves, what it can
resume and what it refuses. The control side asks it, so it imports no torch. An engine that is one module,
its runtime, has the base's answers.

runtime.py, in the rank:

join(context)                the ranks meet
arguments(context) -> dict   the keyword arguments of Transformers' TrainingArguments that make it so

and, where it needs them: `before_trainer` (called when there are TrainingArguments, no trainer yet), `adapt`
(a model before it is spread over several ranks), `sharded` (a context in which a model is cut as it is made),
`gathered` (one with a parameter whole), `readable` (a context with a checkpoint as these ranks can load it),
`complete` (writes what a disk lacks that the first rank does not see), `skipped_steps` (that the engine's own
loss scaler skipped).
"""
