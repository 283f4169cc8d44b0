"""Parts of questions that several query shapes share: conditions and requests, with the SQL they mean."""

from __future__ import annotations

from dataclasses import dataclass

from .dice import Dice
from .schemas import Column, Schema, SqlTable
from .values import Pool

COMPARISONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (">", ("above", "over", "more than", "greater than")),
    ("<", ("below", "under", "less than", "smaller than")),
    (">=", ("at least", "no less than")),
    ("<=", ("at most", "no more than")),
)
AGGREGATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("avg", ("average", "mean")),
    ("max", ("highest", "maximum")),
    ("min", ("lowest", "minimum")),
    ("sum", ("total", "summed")),
)


@dataclass(frozen=True)
class Condition:
    """Words that follow a noun ("with age above 40") and the SQL after WHERE."""

    words: str
    sql: str


@dataclass(frozen=True)
class Draw:
    """What one question is drawn from."""

    dice: Dice
    pool: Pool
    schema: Schema

    def say(self, *phrasings: str) -> str:
        """One of several phrasings."""
        return self.dice.pick(phrasings)

    def table(self) -> SqlTable:
        """Return a table of the schema."""
        return self.dice.pick(self.schema.tables)

    def grouped(self) -> SqlTable:
        """Return a table that has a text column whose values repeat."""
        return self.dice.pick([table for table in self.schema.tables if table.groups])

    def link(self) -> tuple[SqlTable, SqlTable]:
        """Return a child and its parent."""
        return self.dice.pick(self.schema.links)

    def comparison(self) -> tuple[str, str]:
        """Return an operator and words for it."""
        operator, words = self.dice.pick(COMPARISONS)
        return operator, self.dice.pick(words)

    def aggregate(self, column: Column) -> tuple[str, str]:
        """Return an SQL function that makes sense for a number, and a word for it: nobody sums years."""
        function, words = self.dice.pick(AGGREGATES[:-1] if column.is_year else AGGREGATES)
        return function, self.dice.pick(words)

    def other(self, table: SqlTable, *taken: Column) -> Column:
        """Return a column that is not one of those."""
        return self.dice.pick([column for column in table.columns if column not in taken])

    def name_of(self, table: SqlTable) -> tuple[str, str]:
        """Return a row's label, as one says it and as SQL writes it."""
        if table.label.is_number:
            number = str(self.pool.number(table, table.label, stored=True))
            return number, number
        value = self.pool.text(table, table.label)
        return value, f"'{value}'"

    def equal(self, table: SqlTable, column: Column, prefix: str = "") -> Condition:
        """Text column = value."""
        value = self.pool.text(table, column)
        words = self.say(f"with {column.phrase} {value}", f"whose {column.phrase} is {value}")
        if column.short and self.dice.chance(0.5):
            words = column.short.format(value)
        return Condition(words, f"{prefix}{column.name} = '{value}'")

    def compared(self, table: SqlTable, column: Column, prefix: str = "") -> Condition:
        """Return number column against a value."""
        operator, words = self.comparison()
        value = self.pool.number(table, column)
        words = self.say(
            f"with {column.phrase} {words} {value}",
            f"whose {column.phrase} is {words} {value}",
            f"having {column.phrase} {words} {value}",
        )
        return Condition(words, f"{prefix}{column.name} {operator} {value}")

    def condition(self, table: SqlTable, prefix: str = "") -> Condition:
        """Any condition on one column besides the label."""
        column = self.dice.pick(table.columns[1:])
        return self.compared(table, column, prefix) if column.is_number else self.equal(table, column, prefix)

    def list_of(self, table: SqlTable, rest: str) -> str:
        """Return a request for the labels of rows: "Which employees ..."."""
        label = table.label.phrase
        return self.say(
            f"Which {table.many} are there {rest}?",
            f"Show the {label} of all {table.many} {rest}.",
            f"List the {label} of every {table.one} {rest}.",
            f"Find {table.many} {rest}.",
        )
