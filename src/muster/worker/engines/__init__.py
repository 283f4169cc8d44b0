"""How a model is spread over the ranks. A module per engine: `arguments(context, model_class_names)` -> the
keyword arguments of Transformers' TrainingArguments that make it so."""
