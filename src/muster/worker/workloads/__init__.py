"""What a rank trains. A module per workload has

build(context, arguments) -> Built      the trainer, its data and how to count a batch
Answerer(folder, recipe, device)        the saved model; its answer(questions) -> (answers, seconds)

It may have saved(folder), which the first rank calls when the trained model is there. An Answerer whose
answers grow word by word has `tokenizer`, and `streamer`, which it gives to Transformers' generate.

One that trains nothing, such as `fabric`, has measure instead, which takes the context, forms its own
process group, and emits what it finds as events; no model is saved then.
"""
