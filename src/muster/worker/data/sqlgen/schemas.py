"""The schemas of the generated set: tables, columns and the words people use for them.

Table names are unique over all schemas: the noun in a question is all a model has to find the table by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["person", "place", "brand", "title", "category", "number"]


@dataclass(frozen=True)
class Column:
    """A column, what fills it and how it is spoken of."""

    name: str
    kind: Kind
    words: str = ""  # "hire year"; empty: the column's name
    low: int = 0  # numbers lie in [low, high]
    high: int = 0
    options: tuple[str, ...] = ()  # the closed list of a category
    most: str = ""  # "oldest"; empty: "... with the highest age"
    least: str = ""
    short: str = ""  # "in {}": the short way to say "whose city is {}"

    @property
    def phrase(self) -> str:
        """The column's name in a sentence."""
        return self.words or self.name

    @property
    def is_number(self) -> bool:
        """Whether it can be compared, summed and averaged."""
        return self.kind == "number"

    @property
    def is_year(self) -> bool:
        """Whether its numbers are years."""
        return self.low >= 1800 and self.high < 2100


@dataclass(frozen=True)
class SqlTable:
    """A table: its first column names a row (a name, a title, an order number)."""

    name: str
    one: str
    many: str
    rows: int
    columns: tuple[Column, ...]
    parents: tuple[str, ...] = ()

    @property
    def label(self) -> Column:
        """The column that names a row."""
        return self.columns[0]

    @property
    def numbers(self) -> tuple[Column, ...]:
        """The columns to compare, sum and average; an order number that only names a row is none."""
        return tuple(column for column in self.columns[1:] if column.is_number)

    @property
    def groups(self) -> tuple[Column, ...]:
        """The text columns whose values several rows share."""
        return tuple(column for column in self.columns[1:] if not column.is_number)


@dataclass(frozen=True)
class Schema:
    """A database of joined tables."""

    name: str
    tables: tuple[SqlTable, ...]

    def table(self, name: str) -> SqlTable:
        """Return the table of that name."""
        return next(table for table in self.tables if table.name == name)

    @property
    def links(self) -> tuple[tuple[SqlTable, SqlTable], ...]:
        """Every (child, parent) pair that a foreign key joins."""
        return tuple((child, self.table(parent)) for child in self.tables for parent in child.parents)


def _number(name: str, low: int, high: int, most: str = "", least: str = "", words: str = "") -> Column:
    return Column(name, "number", words, low, high, most=most, least=least)


def _category(name: str, *options: str, short: str = "") -> Column:
    return Column(name, "category", options=options, short=short)


PERSON = Column("name", "person")
BRAND = Column("name", "brand")
TITLE = Column("title", "title")

COMPANY = Schema("company", (
    SqlTable("department", "department", "departments", 70, (
        BRAND, Column("city", "place", short="in {}"), _number("budget", 100, 990, "richest", "poorest"))),
    SqlTable("employee", "employee", "employees", 200, (
        PERSON,
        _category("role", "engineer", "analyst", "manager", "clerk", "designer", short="working as {}"),
        _number("age", 18, 67, "oldest", "youngest"),
        _number("salary", 1200, 9900, "best paid", "worst paid")), ("department",)),
))  # fmt: skip

SHOP = Schema("shop", (
    SqlTable("customer", "customer", "customers", 90, (
        PERSON, Column("city", "place", short="from {}"), _number("points", 10, 900))),
    SqlTable("product", "product", "products", 90, (
        BRAND, _category("category", "toys", "food", "tools", "garden", "sports", short="in category {}"),
        _number("price", 11, 950, "most expensive", "cheapest"), _number("stock", 10, 400))),
    SqlTable("purchase", "order", "orders", 260, (
        Column("number", "number", "order number", 1000, 9999), _number("quantity", 10, 99),
        _number("discount", 10, 60)), ("customer", "product")),
))  # fmt: skip

LIBRARY = Schema("library", (
    SqlTable("author", "author", "authors", 70, (
        PERSON, Column("country", "place", short="from {}"),
        _number("born", 1850, 1990, words="birth year"))),
    SqlTable("book", "book", "books", 200, (
        TITLE, _category("genre", "crime", "poetry", "history", "travel", "science", short="of genre {}"),
        _number("pages", 80, 950, "longest", "shortest", "page count"),
        _number("year", 1900, 2024, "newest", "oldest")), ("author",)),
))  # fmt: skip

AVIATION = Schema("aviation", (
    SqlTable("airport", "airport", "airports", 60, (
        BRAND, Column("city", "place", short="in {}"), _number("gates", 10, 150, words="gate count"))),
    SqlTable("airline", "airline", "airlines", 60, (
        BRAND, Column("country", "place", short="from {}"), _number("fleet", 10, 300, words="fleet size"))),
    SqlTable("flight", "flight", "flights", 260, (
        Column("number", "number", "flight number", 100, 9999),
        _number("distance", 100, 4000, "longest", "shortest"), _number("seats", 20, 400, words="seat count")),
        ("airport", "airline")),
))  # fmt: skip

SCHOOL = Schema("school", (
    SqlTable("teacher", "teacher", "teachers", 70, (
        PERSON, Column("city", "place", short="in {}"),
        _category("subject", "maths", "music", "biology", "latin", "drama", short="for {}"),
        _number("experience", 10, 40, "most experienced", "least experienced"))),
    SqlTable("course", "course", "courses", 200, (
        TITLE, _category("level", "basic", "middle", "advanced", "expert", short="at level {}"),
        _number("hours", 10, 90), _number("fee", 20, 600, "most expensive", "cheapest")), ("teacher",)),
))  # fmt: skip

MUSIC = Schema("music", (
    SqlTable("band", "band", "bands", 70, (
        BRAND, Column("city", "place", short="from {}"),
        _number("founded", 1950, 2020, "newest", "oldest", "founding year"))),
    SqlTable("album", "album", "albums", 200, (
        TITLE, _category("style", "jazz", "rock", "folk", "metal", "soul", short="in style {}"),
        _number("sales", 100, 9000, "best selling", "worst selling"),
        _number("minutes", 25, 99, "longest", "shortest", "length")), ("band",)),
))  # fmt: skip

SCHEMAS: tuple[Schema, ...] = (COMPANY, SHOP, LIBRARY, AVIATION, SCHOOL, MUSIC)
