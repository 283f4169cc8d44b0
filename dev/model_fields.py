"""Print the fields that the installed Transformers' models have: src/muster/core/families/known.json.

Run after raising the Transformers version, and into that file. Of each type of the models that Muster can
train: what the configuration class takes, has or renames, and what its code and the model's read of a
configuration. Common are the fields of every class, those of generation, and those that older versions wrote.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, GenerationConfig, PretrainedConfig
from transformers.models.auto import modeling_auto

TRAINED = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "SEQUENCE_CLASSIFICATION")
OLDER = (
    "add_cross_attention attn_implementation auto_map bad_words_ids cross_attention_hidden_size decoder "
    "decoder_start_token_id early_stopping encoder finetuning_task is_decoder length_penalty "
    "max_length min_length n_ctx num_beams prefix pruned_heads quantization_config remove_invalid_values "
    "rope_scaling rope_theta sep_token_id task_specific_params temperature tf_legacy_loss "
    "tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p torch_dtype torchscript "
    "transformers_version typical_p use_bfloat16 use_cache"
)
READ = (
    re.compile(r"kwargs(?:\.pop\(|\.get\(|\[)\s*[\"'](\w+)[\"']"),
    re.compile(r"config\.(\w+)"),
    re.compile(r"(?:get|has)attr\(\s*(?:self\.)?config,\s*[\"'](\w+)[\"']"),
)


def fields_of(made: Any) -> set[str]:
    """What a class of configurations takes, has or renames."""
    names = {each.name for each in inspect.signature(made.__init__).parameters.values()}
    for each in made.__mro__:
        if each.__module__.startswith("transformers"):
            names |= {*getattr(each, "__annotations__", {})}
            names |= {name for name, value in vars(each).items() if isinstance(value, property)}
    names |= {*(made.attribute_map or {})}
    try:
        names |= {*vars(made()), *made().to_dict()}
    except Exception:  # one that needs its parts
        sys.stderr.write(f"{made.__name__} has no usual values\n")
    return {name for name in names if not name.startswith("_")}


def read_by(made: Any) -> set[str]:
    """What the files of a model read of its configuration."""
    folder = Path(inspect.getfile(made)).parent
    files = [file for kind in ("configuration", "modeling") for file in folder.glob(f"{kind}_*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    names = {name for each in READ for name in each.findall(text)}
    names |= {*re.findall(r"self\.(\w+)", Path(inspect.getfile(made)).read_text(encoding="utf-8"))}
    return {name for name in names if not name.startswith("_")}


def main() -> None:
    """Collect and print."""
    named = [getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES") for kind in TRAINED]
    common = fields_of(PretrainedConfig) | {*vars(GenerationConfig())} | {*OLDER.split()}
    common = {name for name in common if not name.startswith("_")} - {"self"}
    made = {
        "transformers": transformers.__version__,
        "common": " ".join(sorted(common)),
        "types": {
            kind: " ".join(sorted((fields_of(each) | read_by(each)) - common - {"self"}))
            for kind in sorted({kind for each in named for kind in each})
            for each in [CONFIG_MAPPING[kind]]
        },
    }
    json.dump(made, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
