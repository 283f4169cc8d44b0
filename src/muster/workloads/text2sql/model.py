"""The same models as seq2seq's."""

from muster.workloads.seq2seq.model import TRACED, make_model

__all__ = ["TRACED", "make_model"]
