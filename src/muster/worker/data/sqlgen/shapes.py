"""The query shapes, over one table or two: each draws a question and the SQL that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .phrases import Draw
from .schemas import SqlTable

Pair = tuple[str, str]  # question, SQL
Shape = Callable[[Draw], Pair]


def equal(draw: Draw) -> Pair:
    """One column where a text column equals a value."""
    table = draw.grouped()
    group = draw.dice.pick(table.groups)
    condition, column = draw.equal(table, group), draw.other(table, group)
    question = draw.say(
        f"What is the {column.phrase} of {table.many} {condition.words}?",
        f"Show the {column.phrase} of every {table.one} {condition.words}.",
        f"Give me the {column.phrase} for {table.many} {condition.words}.",
    )
    return question, f"SELECT {column.name} FROM {table.name} WHERE {condition.sql}"


def lookup(draw: Draw) -> Pair:
    """One column of the row with a given label."""
    table = draw.table()
    column = draw.other(table, table.label)
    value, literal = draw.name_of(table)
    question = draw.say(
        f"What is the {column.phrase} of the {table.one} {value}?",
        f"What {column.phrase} does {table.one} {value} have?",
        f"Tell me the {column.phrase} of {table.one} {value}.",
        f"Look up {table.one} {value} and show the {column.phrase}.",
    )
    return question, f"SELECT {column.name} FROM {table.name} WHERE {table.label.name} = {literal}"


def compare(draw: Draw) -> Pair:
    """Labels where a number is above, below, at least or at most a value."""
    table = draw.table()
    condition = draw.compared(table, draw.dice.pick(table.numbers))
    sql = f"SELECT {table.label.name} FROM {table.name} WHERE {condition.sql}"
    return draw.list_of(table, condition.words), sql


def between(draw: Draw) -> Pair:
    """Labels where a number lies in a range."""
    table = draw.table()
    column = draw.dice.pick(table.numbers)
    low, high = sorted(draw.pool.numbers(table, column))
    words = draw.say(
        f"with {column.phrase} between {low} and {high}",
        f"whose {column.phrase} is from {low} to {high}",
        f"having {column.phrase} between {low} and {high}",
    )
    sql = f"SELECT {table.label.name} FROM {table.name} WHERE {column.name} BETWEEN {low} AND {high}"
    return draw.list_of(table, words), sql


def both(draw: Draw) -> Pair:
    """Labels where a text and a number condition hold together."""
    table = draw.grouped()
    first = draw.equal(table, draw.dice.pick(table.groups))
    second = draw.compared(table, draw.dice.pick(table.numbers))
    sql = f"SELECT {table.label.name} FROM {table.name} WHERE {first.sql} AND {second.sql}"
    return draw.list_of(table, f"{first.words} and {second.words}"), sql


def either(draw: Draw) -> Pair:
    """Labels where a text column is one of two values."""
    table = draw.grouped()
    column = draw.dice.pick(table.groups)
    one, two = draw.pool.texts(table, column)
    words = draw.say(
        f"whose {column.phrase} is {one} or {two}",
        f"with {column.phrase} either {one} or {two}",
        f"{column.short or 'with ' + column.phrase + ' {}'}".format(f"{one} or {two}"),
    )
    sql = f"SELECT {table.label.name} FROM {table.name} WHERE {column.name} IN ('{one}', '{two}')"
    return draw.list_of(table, words), sql


def starts(draw: Draw) -> Pair:
    """Labels that begin with given letters."""
    table = draw.dice.pick([table for table in draw.schema.tables if not table.label.is_number])
    label = table.label
    value = draw.pool.text(table, label)
    start = value.split()[0] if label.kind == "title" else value[: draw.dice.between(2, 4)]
    words = draw.say(
        f"whose {label.phrase} starts with {start}",
        f"with a {label.phrase} beginning with {start}",
    )
    sql = f"SELECT {label.name} FROM {table.name} WHERE {label.name} LIKE '{start}%'"
    return draw.list_of(table, words), sql


def count(draw: Draw) -> Pair:
    """How many rows meet a condition."""
    table = draw.table()
    condition = draw.condition(table)
    question = draw.say(
        f"How many {table.many} are there {condition.words}?",
        f"Count the {table.many} {condition.words}.",
        f"What is the number of {table.many} {condition.words}?",
    )
    return question, f"SELECT count(*) FROM {table.name} WHERE {condition.sql}"


def aggregate(draw: Draw) -> Pair:
    """Average, highest, lowest or total of a number over rows that meet a condition, or over all."""
    table = draw.table()
    column = draw.dice.pick(table.numbers)
    function, word = draw.aggregate(column)
    rest, where = f"of all {table.many}", ""
    if draw.dice.chance(0.8):
        condition = draw.condition(table)
        rest, where = f"of {table.many} {condition.words}", f" WHERE {condition.sql}"
    question = draw.say(
        f"What is the {word} {column.phrase} {rest}?",
        f"Compute the {word} {column.phrase} {rest}.",
        f"Tell me the {word} {column.phrase} {rest}.",
    )
    return question, f"SELECT {function}({column.name}) FROM {table.name}{where}"


def group_count(draw: Draw) -> Pair:
    """Rows per value of a text column, perhaps of those that meet a condition."""
    table = draw.grouped()
    group = draw.dice.pick(table.groups)
    rest, where = "", ""
    if draw.dice.chance(0.6):
        condition = draw.compared(table, draw.dice.pick(table.numbers))
        rest, where = f" {condition.words}", f" WHERE {condition.sql}"
    question = draw.say(
        f"How many {table.many}{rest} are there for each {group.phrase}?",
        f"For each {group.phrase}, count the {table.many}{rest}.",
        f"Show the number of {table.many}{rest} per {group.phrase}.",
    )
    return question, f"SELECT {group.name}, count(*) FROM {table.name}{where} GROUP BY {group.name}"


def group_aggregate(draw: Draw) -> Pair:
    """Return an aggregate per value of a text column."""
    table = draw.grouped()
    group, column = draw.dice.pick(table.groups), draw.dice.pick(table.numbers)
    function, word = draw.aggregate(column)
    question = draw.say(
        f"What is the {word} {column.phrase} of {table.many} for each {group.phrase}?",
        f"For each {group.phrase}, show the {word} {column.phrase} of its {table.many}.",
        f"Show the {word} {column.phrase} of {table.many} per {group.phrase}.",
        f"Compute the {word} {column.phrase} of {table.many} by {group.phrase}.",
    )
    return question, f"SELECT {group.name}, {function}({column.name}) FROM {table.name} GROUP BY {group.name}"


def having(draw: Draw) -> Pair:
    """Values of a text column that enough rows share."""
    places = [(table, group) for table in draw.schema.tables for group in table.groups if not group.options]
    table, group = draw.dice.pick(places)  # not the five values of a category: each has dozens of rows
    least = draw.dice.between(2, 6)
    operator, words = draw.dice.pick(((">", "more than"), (">=", "at least")))
    question = draw.say(
        f"Which {group.phrase} has {words} {least} {table.many}?",
        f"Show each {group.phrase} with {words} {least} {table.many}.",
        f"For which {group.phrase} are there {words} {least} {table.many}?",
    )
    sql = f"SELECT {group.name} FROM {table.name} GROUP BY {group.name} HAVING count(*) {operator} {least}"
    return question, sql


def top(draw: Draw) -> Pair:
    """Return the first few rows in the order of a number, perhaps of those that meet a condition."""
    table = draw.table()
    column = draw.dice.pick(table.numbers)
    rows, down = draw.dice.between(2, 9), draw.dice.chance(0.5)
    rest, where = "", ""
    if table.groups and draw.dice.chance(0.5):
        condition = draw.equal(table, draw.dice.pick(table.groups))
        rest, where = f" {condition.words}", f" WHERE {condition.sql}"
    word = draw.say("highest", "largest") if down else draw.say("lowest", "smallest")
    question = draw.say(
        f"Show the {rows} {table.many}{rest} with the {word} {column.phrase}.",
        f"Which {rows} {table.many}{rest} have the {word} {column.phrase}?",
    )
    special = column.most if down else column.least
    if special and draw.dice.chance(0.5):
        question = draw.say(
            f"Which are the {rows} {special} {table.many}{rest}?",
            f"List the {rows} {special} {table.many}{rest}.",
        )
    order = f"ORDER BY {column.name} {'DESC' if down else 'ASC'} LIMIT {rows}"
    return question, f"SELECT {table.label.name} FROM {table.name}{where} {order}"


def order(draw: Draw) -> Pair:
    """Rows that meet a condition, sorted by a number."""
    table = draw.table()
    column, condition = draw.dice.pick(table.numbers), draw.condition(table)
    down = draw.dice.chance(0.5)
    ways = ("from high to low", "in descending order") if down else ("from low to high", "in ascending order")
    way = draw.dice.pick(ways)
    question = draw.say(
        f"List {table.many} {condition.words}, sorted by {column.phrase} {way}.",
        f"Show {table.many} {condition.words}, ordered by {column.phrase} {way}.",
        f"Sort the {table.many} {condition.words} by {column.phrase} {way}.",
    )
    sql = f"SELECT {table.label.name} FROM {table.name} WHERE {condition.sql} ORDER BY {column.name} "
    return question, sql + ("DESC" if down else "ASC")


def distinct(draw: Draw) -> Pair:
    """Return the different values of a text column among rows that meet a condition."""
    table = draw.grouped()
    group, column = draw.dice.pick(table.groups), draw.dice.pick(table.numbers)
    condition = draw.compared(table, column)
    question = draw.say(
        f"What are the different {group.phrase} values of {table.many} {condition.words}?",
        f"List each distinct {group.phrase} among {table.many} {condition.words}.",
        f"Show the unique {group.phrase} values for {table.many} {condition.words}.",
    )
    return question, f"SELECT DISTINCT {group.name} FROM {table.name} WHERE {condition.sql}"


def above_average(draw: Draw) -> Pair:
    """Rows above or below the average: a nested query."""
    table = draw.table()
    column, asked = draw.dice.pick(table.numbers), draw.dice.pick(table.columns)
    operator, word = draw.dice.pick(((">", "above"), ("<", "below")))
    question = draw.say(
        f"Show the {asked.phrase} of {table.many} with {column.phrase} {word} the average.",
        f"What is the {asked.phrase} of {table.many} whose {column.phrase} is {word} average?",
        f"List the {asked.phrase} of every {table.one} having {column.phrase} {word} the mean.",
    )
    nested = f"(SELECT avg({column.name}) FROM {table.name})"
    return question, f"SELECT {asked.name} FROM {table.name} WHERE {column.name} {operator} {nested}"


# --- over two tables that a foreign key joins ---------------------------------------------------------------


def _join(child: SqlTable, parent: SqlTable) -> str:
    return f"FROM {child.name} JOIN {parent.name} ON {child.name}.{parent.name}_id = {parent.name}.id"


def join_where(draw: Draw) -> Pair:
    """Return a child's column where the parent meets a condition."""
    child, parent = draw.link()
    condition = draw.condition(parent, f"{parent.name}.")
    column = draw.dice.pick(child.columns)
    question = draw.say(
        f"What is the {column.phrase} of {child.many} that belong to {parent.many} {condition.words}?",
        f"Show the {column.phrase} of {child.many} of {parent.many} {condition.words}.",
        f"For {parent.many} {condition.words}, list the {column.phrase} of their {child.many}.",
    )
    return question, f"SELECT {child.name}.{column.name} {_join(child, parent)} WHERE {condition.sql}"


def join_named(draw: Draw) -> Pair:
    """Return the children of the parent with a given name."""
    child, parent = draw.link()
    value, literal = draw.name_of(parent)
    column = draw.dice.pick(child.columns)
    question = draw.say(
        f"What is the {column.phrase} of {child.many} of the {parent.one} {value}?",
        f"List the {column.phrase} of every {child.one} that belongs to {parent.one} {value}.",
        f"Show the {column.phrase} of all {child.many} of {parent.one} {value}.",
    )
    where = f"WHERE {parent.name}.{parent.label.name} = {literal}"
    return question, f"SELECT {child.name}.{column.name} {_join(child, parent)} {where}"


def join_parent(draw: Draw) -> Pair:
    """Return a column of the parent of a given child."""
    child, parent = draw.link()
    column = draw.dice.pick(parent.columns)
    value, literal = draw.name_of(child)
    question = draw.say(
        f"What is the {column.phrase} of the {parent.one} of {child.one} {value}?",
        f"Which {column.phrase} has the {parent.one} that {child.one} {value} belongs to?",
        f"Show the {parent.one} {column.phrase} of the {child.one} {value}.",
    )
    where = f"WHERE {child.name}.{child.label.name} = {literal}"
    return question, f"SELECT {parent.name}.{column.name} {_join(child, parent)} {where}"


def join_aggregate(draw: Draw) -> Pair:
    """Return a number of the children, aggregated, where the parent meets a condition; or their count."""
    child, parent = draw.link()
    condition = draw.condition(parent, f"{parent.name}.")
    if draw.dice.chance(0.3):
        question = draw.say(
            f"How many {child.many} belong to {parent.many} {condition.words}?",
            f"Count the {child.many} of {parent.many} {condition.words}.",
        )
        return question, f"SELECT count(*) {_join(child, parent)} WHERE {condition.sql}"
    column = draw.dice.pick(child.numbers)
    function, word = draw.aggregate(column)
    question = draw.say(
        f"What is the {word} {column.phrase} of {child.many} of {parent.many} {condition.words}?",
        f"For {parent.many} {condition.words}, compute the {word} {column.phrase} of their {child.many}.",
        f"Tell me the {word} {column.phrase} of {child.many} that belong to {parent.many} {condition.words}.",
    )
    what = f"{function}({child.name}.{column.name})"
    return question, f"SELECT {what} {_join(child, parent)} WHERE {condition.sql}"


def join_group(draw: Draw) -> Pair:
    """Children per parent: counted, or one of their numbers aggregated; perhaps under a condition."""
    child, parent = draw.link()
    rest, where = "", ""
    if draw.dice.chance(0.6):
        condition = draw.compared(child, draw.dice.pick(child.numbers), f"{child.name}.")
        rest, where = f" {condition.words}", f" WHERE {condition.sql}"
    name = f"{parent.name}.{parent.label.name}"
    if draw.dice.chance(0.5):
        what = "count(*)"
        question = draw.say(
            f"How many {child.many}{rest} does each {parent.one} have?",
            f"Show the number of {child.many}{rest} per {parent.one}.",
            f"For each {parent.one}, count the {child.many}{rest}.",
        )
    else:
        column = draw.dice.pick(child.numbers)
        function, word = draw.aggregate(column)
        what = f"{function}({child.name}.{column.name})"
        question = draw.say(
            f"What is the {word} {column.phrase} of {child.many}{rest} for each {parent.one}?",
            f"Show the {word} {column.phrase} of {child.many}{rest} per {parent.one}.",
            f"For each {parent.one}, compute the {word} {column.phrase} of its {child.many}{rest}.",
        )
    return question, f"SELECT {name}, {what} {_join(child, parent)}{where} GROUP BY {name}"


def join_having(draw: Draw) -> Pair:
    """Parents with enough children."""
    child, parent = draw.link()
    least = draw.dice.between(2, 5)
    operator, words = draw.dice.pick(((">", "more than"), (">=", "at least")))
    question = draw.say(
        f"Which {parent.many} have {words} {least} {child.many}?",
        f"List every {parent.one} with {words} {least} {child.many}.",
        f"Show {parent.many} that own {words} {least} {child.many}.",
    )
    name = f"{parent.name}.{parent.label.name}"
    sql = f"SELECT {name} {_join(child, parent)} GROUP BY {name} HAVING count(*) {operator} {least}"
    return question, sql


def without(draw: Draw) -> Pair:
    """Return a column of the parents without children, perhaps of those that meet a condition: a nested
    query."""
    child, parent = draw.link()
    column = draw.dice.pick(parent.columns)
    rest, more = "", ""
    if draw.dice.chance(0.5):
        condition = draw.compared(parent, draw.dice.pick(parent.numbers))
        rest, more = f" {condition.words}", f" AND {condition.sql}"
    question = draw.say(
        f"Show the {column.phrase} of {parent.many}{rest} without any {child.many}.",
        f"What is the {column.phrase} of {parent.many}{rest} that have no {child.many}?",
        f"Give me the {column.phrase} of every {parent.one}{rest} lacking {child.many}.",
    )
    where = f"WHERE id NOT IN (SELECT {parent.name}_id FROM {child.name}){more}"
    return question, f"SELECT {column.name} FROM {parent.name} {where}"


SHAPES: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        equal, lookup, compare, between, both, either, starts, count, aggregate, group_count, group_aggregate,
        having, top, order, distinct, above_average, join_where, join_named, join_parent, join_aggregate,
        join_group, join_having, without,
    )
}  # fmt: skip
