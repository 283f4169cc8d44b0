"""How a model is spread over the ranks. A module per engine has

join(context)                the ranks meet
arguments(context) -> dict   the keyword arguments of Transformers' TrainingArguments that make it so
"""
