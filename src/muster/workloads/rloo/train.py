"""REINFORCE leave-one-out (Ahmadian et al. 2024), by TRL."""

from muster.dialogues.groups import Answerer, build, questions

__all__ = ["Answerer", "build", "questions"]
