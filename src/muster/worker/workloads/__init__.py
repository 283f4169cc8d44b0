"""What a rank trains. A module per workload has

build(context, arguments) -> Built      the trainer, its data and how to count a batch
Answerer(folder, recipe, device)        the saved model; its answer(questions) -> (answers, seconds)
"""
