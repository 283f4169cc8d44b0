"""Text to SQL, as the control side knows it: seq2seq with fields of its own, whose answers are executed."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from muster.core.recipe import DATA, WORKLOAD
from muster.workloads.seq2seq.spec import PairData, PairRecipe


class TextToSqlData(PairData):
    """Questions and their SQL."""

    # A hub's WikiSQL has the parts of a query, and Spider calls it otherwise.
    pairs: ClassVar[tuple[tuple[str, str], ...]] = (
        ("question", "sql"), ("question", "sql.human_readable"), ("question", "query"),
    )  # fmt: skip
    executed: ClassVar[bool] = True

    input: str = Field(
        "question",
        alias="question",
        description="Name or dotted path of the field that holds the question (the input).",
    )
    target: str = Field(
        "sql",
        alias="sql",
        description="Name or dotted path of the field that holds the SQL (the answer to learn). The default "
        "also finds sql.human_readable (the hub's WikiSQL) and query.",
    )
    prefix: str = Field("translate to SQL: ", description='Text put before every question; "" for none.')


class TextToSqlRecipe(PairRecipe):
    """An encoder-decoder model learns to translate questions into SQL."""

    traced: ClassVar[bool | str] = "muster.workloads.seq2seq.model:TRACED"
    workload: str = Field("text2sql", description=WORKLOAD)
    data: TextToSqlData = Field(default_factory=TextToSqlData, description=DATA)


RECIPE = TextToSqlRecipe
