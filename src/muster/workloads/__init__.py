"""What ranks do. A workload is a folder here, or a package that an entry point of the group
`muster.worker.workloads` names; it has

spec.py, which the control side reads, so without torch: RECIPE, its recipe: a subclass of
muster.core.recipe.Recipe with its own `data`, which answers where its answers differ from the usual ones
(muster/core/workload.py);

train.py, which its ranks run:

build(context, arguments) -> Built      the trainer, its data and how to count a batch
Answerer(folder, recipe, device)        the saved model, derived from Answerer of worker/answering.py

and for `muster ask --evaluate` questions(recipe, cache), the held-out ones with their answers, unless the
Answerer has a `score` of its own. A workload whose recipe says `trains = False`, such as `fabric`, has
measure instead, which takes the context, forms its own process group, and emits what it measures as events;
no model is saved then;

model.py, where the recipe's `traced` is true: TRACED, how the model is made and fed to be traced
(muster/worker/tracing/tasks.py).

A third party's workload may be a single module with what train.py has. Its recipe has what all recipes have,
with the workload's own keys in data.options.
"""
