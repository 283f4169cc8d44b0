"""The query shapes over one table: each draws a question and the SQL that answers it."""

from __future__ import annotations

from .phrases import Draw

Pair = tuple[str, str]  # question, SQL


def equal(draw: Draw) -> Pair:
    """One column where a text column equals a value."""
    table = draw.grouped()
    known = draw.dice.pick(table.groups)
    condition, column = draw.equal(table, known), draw.other(table, known)
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
    """An aggregate per value of a text column."""
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
    """The first few rows in the order of a number, perhaps of those that meet a condition."""
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
    """The different values of a text column among rows that meet a condition."""
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
