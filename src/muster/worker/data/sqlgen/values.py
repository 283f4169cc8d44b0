"""The values that fill tables and questions, split into seen ones and held-out ones.

The split is by value, once for all schemas: a held-out name, place or number stands in no training question,
whatever the column. Names are built from syllables, so a held-out name is a new combination of known pieces.
Numbers below `SMALL` (LIMIT 3, HAVING count(*) > 4) and the closed lists of categories are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .dice import Dice
from .schemas import SCHEMAS, Column, SqlTable

SMALL = 10
Row = Mapping[str, str | int]
Rows = Mapping[str, Sequence[Row]]  # by table
HELD_OUT = 0.2  # of all values
_STEMS = (
    "Bal Bel Bor Cal Cor Dal Dan Dor Fal Fen Gal Gor Hal Hol Jan Jor Kal Kar Kel Lan Lor Mal Mar Mel "
    "Mor Nal Nor Pal Per Pol Ral Ren Rol Sal Sel Sol Tal Tar Tor Val Vel Vor Wal Wen Yor Zan Zel Zor"
)
STEMS = tuple(_STEMS.split())
MIDDLES = ("", "an", "el", "in", "or", "am", "et", "ul")
ENDINGS: Mapping[str, tuple[str, ...]] = {
    "person": ("a", "ia", "o", "us", "ek", "is", "ette", "y"),
    "place": ("burg", "ford", "ton", "ville", "stad", "port", "by", "mouth"),
    "brand": ("ix", "ara", "tec", "ium", "ex", "ova", "und", "ax"),
    "title": ("wood", "song", "night", "land", "moon", "fire", "rain", "dream"),
}
ADJECTIVES = ("Red", "Old", "Last", "Lost", "Silent", "Golden", "Broken", "Hidden")


@dataclass(frozen=True)
class SplitValues:
    """Values of one sort: those for training and those held out."""

    seen: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True)
class Values:
    """Every value there is."""

    names: Mapping[str, SplitValues]  # by kind
    held_numbers: frozenset[int]


def make_values(dice: Dice) -> Values:
    """Build and split the values."""
    names = {kind: _split(_names(kind), dice) for kind in ENDINGS}
    top = max(column.high for schema in SCHEMAS for table in schema.tables for column in table.columns)
    step = round(1 / HELD_OUT)  # one of every five neighbours, so that narrow columns have some too
    numbers = frozenset(number + dice.below(step) for number in range(SMALL, top + 1, step))
    return Values(names, numbers)


def _names(kind: str) -> list[str]:
    names = [
        stem + middle + ending
        for stem in STEMS
        for middle in MIDDLES
        for ending in ENDINGS[kind]
        if not middle or (not stem.endswith(middle) and not ending.startswith(middle))  # no "Dananan"
    ]
    names = list(dict.fromkeys(names))
    if kind != "title":
        return names
    return [f"{ADJECTIVES[place % len(ADJECTIVES)]} {name}" for place, name in enumerate(names)]


def _split(names: list[str], dice: Dice) -> SplitValues:
    dice.shuffle(names)
    border = int(len(names) * HELD_OUT)
    return SplitValues(tuple(names[border:]), tuple(names[:border]))


class Pool(Protocol):
    """Where a question takes its values from."""

    def text(self, table: SqlTable, column: Column) -> str:
        """Return a name, place or category."""
        ...

    def texts(self, table: SqlTable, column: Column) -> tuple[str, str]:
        """Two different ones."""
        ...

    def number(self, table: SqlTable, column: Column, stored: bool = False) -> int:
        """Return a number in the column's range; `stored`: one to ask for by equality."""
        ...

    def numbers(self, table: SqlTable, column: Column) -> tuple[int, int]:
        """Two different ones."""
        ...


class SeenPool:
    """For training: any value that is not held out, whether or not a row has it."""

    def __init__(self, values: Values, dice: Dice) -> None:
        self._values, self._dice = values, dice

    def text(self, table: SqlTable, column: Column) -> str:
        """See Pool."""
        return self._dice.pick(column.options or self._values.names[column.kind].seen)

    def texts(self, table: SqlTable, column: Column) -> tuple[str, str]:
        """See Pool."""
        return self._dice.pair(column.options or self._values.names[column.kind].seen)

    def number(self, table: SqlTable, column: Column, stored: bool = False) -> int:
        """See Pool."""
        while (number := self._dice.between(column.low, column.high)) in self._values.held_numbers:
            pass
        return number

    def numbers(self, table: SqlTable, column: Column) -> tuple[int, int]:
        """See Pool."""
        first = self.number(table, column)
        while (second := self.number(table, column)) == first:
            pass
        return first, second


class HeldPool:
    """For validation: held-out values only, and names that a row really has."""

    def __init__(self, values: Values, rows: Rows, dice: Dice) -> None:
        self._values, self._rows, self._dice = values, rows, dice

    def _stored(self, table: SqlTable, column: Column) -> list[str | int]:
        held: frozenset[str | int] = self._values.held_numbers
        if column.kind != "number":
            held = frozenset(column.options or self._values.names[column.kind].held)
        cells = dict.fromkeys(row[column.name] for row in self._rows[table.name])
        return [cell for cell in cells if cell in held]

    def text(self, table: SqlTable, column: Column) -> str:
        """See Pool."""
        return str(self._dice.pick(self._stored(table, column)))

    def texts(self, table: SqlTable, column: Column) -> tuple[str, str]:
        """See Pool."""
        first, second = self._dice.pair(self._stored(table, column))
        return str(first), str(second)

    def number(self, table: SqlTable, column: Column, stored: bool = False) -> int:
        """See Pool."""
        if stored:
            return int(self._dice.pick(self._stored(table, column)))
        return self._dice.pick(self._inside(column))

    def numbers(self, table: SqlTable, column: Column) -> tuple[int, int]:
        """See Pool."""
        return self._dice.pair(self._inside(column))

    def _inside(self, column: Column) -> list[int]:
        return [n for n in range(column.low, column.high + 1) if n in self._values.held_numbers]
