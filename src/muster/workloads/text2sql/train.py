"""As seq2seq trains and answers."""

from muster.workloads.seq2seq.train import Answerer, build, questions

__all__ = ["Answerer", "build", "questions"]
