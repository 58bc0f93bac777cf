"""Filters such as ``price < 20 and year >= 2020 and 'beach' in tags``, compiled to SQL.

Parsed by a grammar, never evaluated. What SQL is put together of are our own words and names of slots; every
value is bound. lark is imported when a filter is compiled.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

from woh_faiss.display import display_text
from woh_faiss.errors import InputError, short
from woh_faiss.metadata import iso
from woh_faiss.validate import listed

from .item_metadata import ColumnSlot

if TYPE_CHECKING:
    from lark import Lark, Token

#: Names of columns are as they are, or in double quotes; text is in single ones; a quote inside is doubled.
GRAMMAR = r"""
?start: either
?either: both (_OR both)*
?both: opposite (_AND opposite)*
?opposite: _NOT opposite -> negated
    | test
?test: "(" either ")"
    | operand COMPARISON operand -> compared
    | operand [NOT] _IN "(" value ("," value)* ")" -> among
    | operand [NOT] _IN column -> tagged
    | operand [NOT] _BETWEEN value _AND value -> between
    | operand _IS [NOT] _NULL -> missing
    | operand [NOT] _LIKE value -> like
    | operand [NOT] _STARTSWITH value -> begins
    | operand -> flag
?operand: column | value
column: NAME | QUOTED
value: NUMBER | TEXT | TRUE | FALSE | _NULL

COMPARISON: "<=" | ">=" | "<>" | "!=" | "==" | "<" | ">" | "="
NUMBER: /[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?(?!\w)/i
TEXT: /'([^']|'')*'/
QUOTED: /"([^"]|"")+"/
NAME: /[^\W\d]\w*/
_OR.2: /or\b/i
_AND.2: /and\b/i
_NOT.2: /not\b/i
NOT.2: /not\b/i
_IN.2: /in\b/i
_BETWEEN.2: /between\b/i
_IS.2: /is\b/i
_NULL.2: /null\b/i
_LIKE.2: /like\b/i
_STARTSWITH.2: /startswith\b/i
TRUE.2: /true\b/i
FALSE.2: /false\b/i
%ignore /\s+/
"""

#: Letters of the longest filter and of a pattern in it.
LONGEST, LONGEST_PATTERN = 200_000, 1000
#: Conditions and values in one, and levels of nesting: SQLite's parser ends at 100 open symbols.
MOST_CONDITIONS, MOST_VALUES, DEEPEST = 300, 20_000, 30
#: What a filter looks like, for messages.
EXAMPLE = "price < 20 and 'beach' in tags"
_NUMBERS = ("integer", "real")
_EXPECTED = {
    **{"integer": "a number", "real": "a number", "text": "text in single quotes, 'red'"},
    "boolean": "true or false",
    "date": "a date such as '2026-11-29'",
    "datetime": "a time such as '2026-11-29 10:00'",
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: The name under which SQL calls `has_tag`.
HAS_TAG = "woh_has_tag"


@dataclass(frozen=True, slots=True)
class Field:
    """What a name in a filter means: an expression of SQL over tables i (items) and m (metadata), a type."""

    name: str
    sql: str
    type: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as SQL with places for its values.

    Attributes
    ----------
    sql : str
    values : tuple
    tables : frozenset of "i" and "m"
        What it needs: items, metadata.
    of_nothing : bool
        Whether it may hold for an item without any metadata.
    """

    sql: str
    values: tuple[Any, ...]
    tables: frozenset[str]
    of_nothing: bool = False


def compiled(where: Any, known: Sequence[ColumnSlot], form: Callable[[str], str]) -> list[Condition]:
    """The conditions that must all hold.

    Parameters
    ----------
    where : str
        As `GRAMMAR` has it.
    known : sequence of ColumnSlot
        The columns of metadata there are.
    form : callable
        The form of a tag in which it is compared.

    Raises
    ------
    InputError
        It is no such filter, a column is not there, or a value is not of its type.
    """
    if not isinstance(where, str) or not where.strip():
        raise InputError(f"where is {short(where)}, expected a filter such as {EXAMPLE!r}")
    if len(where) > LONGEST:
        raise InputError(f"where has {len(where):,} letters, expected at most {LONGEST:,}")
    try:
        where.encode()
    except UnicodeError:
        raise InputError(f"where is {short(where)}, not UTF-8 text; decode it first") from None
    fields = {
        "id": Field("id", "i.id", "integer"),
        "key": Field("key", "i.key", "text"),
        "tags": Field("tags", "i.tags", "tags"),
    }
    fields |= {it.name: Field(it.name, f"m.c{it.slot}", it.type) for it in known}
    compiler = _Compiler(fields, form)
    tree = _parsed(where)
    return [compiler.condition(part) for part in (tree.children if tree.data == "both" else [tree])]


def register(connection: Any, form: Callable[[str], str]) -> None:
    """Give a connection the function that conditions call."""

    def has_tag(tags: str | None, wanted: str) -> bool:
        return tags is not None and any(form(tag) == wanted for tag in json.loads(tags))

    connection.create_function(HAS_TAG, 2, has_tag, deterministic=True)


# ---- grammar ---------------------------------------------------------------------------------------------


@cache
def _grammar() -> Lark:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


def _parsed(where: str) -> Any:
    from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

    try:
        return _grammar().parse(where)
    except UnexpectedInput as error:
        at = error.pos_in_stream if isinstance(error.pos_in_stream, int) else len(where)
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        rest = where[at:].split(maxsplit=1)
        if ended or not rest:
            found = "ends too early"
        elif isinstance(error, UnexpectedCharacters) and rest[0][0] in "'\"":
            found = f"has a quote at letter {at + 1} that does not end"
        else:
            found = f"is not understood at letter {at + 1}, {short(rest[0])}"
        raise InputError(
            f"where {found}: {short(where)}; expected conditions such as {EXAMPLE}, joined by and, or, not"
        ) from None


# ---- from the tree to SQL --------------------------------------------------------------------------------


class _Compiler:
    """The conditions of one filter."""

    def __init__(self, fields: dict[str, Field], form: Callable[[str], str]) -> None:
        self._fields, self._form = fields, form
        self._depth = self._n_conditions = self._n_values = 0

    def condition(self, tree: Any) -> Condition:
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(
                f"where is nested more than {DEEPEST} deep; write it with fewer 'not' and parentheses"
            )
        made: Condition = getattr(self, f"_{tree.data}")(*tree.children)
        self._depth -= 1
        return made

    def _joined(self, word: str, trees: Sequence[Any]) -> Condition:
        parts = [self.condition(tree) for tree in trees]
        return Condition(
            f"({f' {word} '.join(part.sql for part in parts)})",
            tuple(value for part in parts for value in part.values),
            frozenset().union(*(part.tables for part in parts)),
            any(part.of_nothing for part in parts),
        )

    def _either(self, *trees: Any) -> Condition:
        return self._joined("OR", trees)

    def _both(self, *trees: Any) -> Condition:
        return self._joined("AND", trees)

    def _negated(self, tree: Any) -> Condition:
        inner = self.condition(tree)
        return Condition(f"(NOT {inner.sql})", inner.values, inner.tables, inner.of_nothing)

    def _test(
        self, field: Field, negated: Any, sql: str, *values: Any, of_nothing: bool = False
    ) -> Condition:
        """A condition on one field; `sql` has {} in its place."""
        self._n_conditions += 1
        self._n_values += len(values)
        if self._n_conditions > MOST_CONDITIONS or self._n_values > MOST_VALUES:
            raise InputError(
                f"where has more than {MOST_CONDITIONS} conditions or {MOST_VALUES:,} values: 'in (...)' has "
                "room for many, a file of ids (--allow) for any number"
            )
        text = sql.replace("{}", field.sql)
        return Condition(
            f"(NOT {text})" if negated else text,
            values,
            frozenset(field.sql[0]),
            of_nothing and field.sql[0] == "m",
        )

    def _compared(self, left: Any, sign: Token, right: Any) -> Condition:
        operator = {"==": "=", "<>": "!="}.get(str(sign), str(sign))
        if left.data == right.data:
            if left.data == "value":
                raise InputError(f"where compares two values, expected a column and a value: {EXAMPLE}")
            name = _name(right.children[0])
            hint = "" if name in self._fields else f"; text is in single quotes, {short(name)}"
            raise InputError(f"where compares two columns, expected a column and a value: {EXAMPLE}{hint}")
        if left.data == "value":
            left, right, operator = right, left, _FLIPPED.get(operator, operator)
        field = self._field(left, "compared")
        if field.type == "boolean" and operator not in ("=", "!="):
            raise InputError(
                f"where: {short(field.name)} is true or false, which have no order; write = or !="
            )
        return self._test(field, None, f"({{}} {operator} ?)", self._value(field, right))

    def _among(self, left: Any, negated: Any, *wanted: Any) -> Condition:
        field = self._field(left, "compared")
        values = [self._value(field, value) for value in wanted]
        return self._test(field, negated, f"({{}} IN ({', '.join('?' * len(values))}))", *values)

    def _tagged(self, left: Any, negated: Any, column: Any) -> Condition:
        field = self._field(column)
        if field.type != "tags":
            raise InputError(
                f"where: {short(field.name)} is {field.type}, expected tags after in, or a list: x in (1, 2)"
            )
        if left.data != "value" or not left.children or left.children[0].type != "TEXT":
            raise InputError("where: what is in tags is text in single quotes: 'beach' in tags")
        tag = _unquoted(left.children[0])
        wanted = self._form(tag)
        if not wanted:
            raise InputError(
                f"where: {short(tag)} is no tag; nothing is left of it in the form that is compared"
            )
        # Few have these letters, or any that JSON escapes and may be another form of them.
        piece = max(re.findall("[a-z0-9]+", wanted) if wanted.isascii() else [""], key=len, default="")
        sql = f"({{}} IS NOT NULL AND ({{}} LIKE ? OR {{}} LIKE '%\\u%') AND {HAS_TAG}({{}}, ?))"
        return self._test(field, negated, sql, f"%{piece}%", wanted)

    def _between(self, left: Any, negated: Any, low: Any, high: Any) -> Condition:
        field = self._field(left, "compared")
        if field.type == "boolean":
            raise InputError(
                f"where: {short(field.name)} is true or false, which have no order; write = or !="
            )
        values = self._value(field, low), self._value(field, high)
        return self._test(field, negated, "({} BETWEEN ? AND ?)", *values)

    def _missing(self, left: Any, negated: Any) -> Condition:
        field = self._field(left)
        return self._test(field, negated, "({} IS NULL)", of_nothing=True)

    def _like(self, left: Any, negated: Any, pattern: Any) -> Condition:
        text = self._pattern(field := self._field(left, "compared"), pattern)
        return self._test(field, negated, "({} LIKE ?)", text)

    def _begins(self, left: Any, negated: Any, start: Any) -> Condition:
        text = self._pattern(field := self._field(left, "compared"), start)
        return self._test(field, negated, "(substr({}, 1, ?) = ?)", len(text), text)

    def _flag(self, left: Any) -> Condition:
        field = self._field(left)
        if field.type != "boolean":
            raise InputError(
                f"where: {short(field.name)} is {field.type}, expected a comparison such as {EXAMPLE}; only "
                "what is true or false stands alone"
            )
        return self._test(field, None, "({} = 1)")

    def _field(self, tree: Any, how: str = "") -> Field:
        """The field that a column names."""
        if tree.data != "column":
            value = _shown(tree) if tree.children else "null"
            raise InputError(f"where: {value} is a value, expected a column before it: {EXAMPLE}")
        (token,) = tree.children
        name = _name(token)
        field = self._fields.get(name)
        if field is None:
            close = difflib.get_close_matches(name.casefold(), {it.casefold(): it for it in self._fields}, 1)
            meant = next((it for it in self._fields if it.casefold() in close), None)
            hint = f"did you mean {_quoted(meant)}? " if meant else ""
            hint += f"text is in single quotes, {short(name)}; " if token.type == "QUOTED" else ""
            there = listed([*map(_quoted, self._fields)], 20)
            raise InputError(f"where: there is no column {short(name)}; {hint}there are {there}")
        if how and field.type == "tags":
            raise InputError("where: tags are a list; write 'beach' in tags")
        return field

    def _value(self, field: Field, tree: Any) -> Any:
        """The value of a literal, of the type of a field."""
        if tree.data != "value":
            raise InputError(f"where: {short(field.name)} is compared with a column, expected a value")
        if not tree.children:
            raise InputError(
                f"where: a comparison with null is never true; write {_quoted(field.name)} is null"
            )
        (token,) = tree.children
        expected = f"{field.type}, expected {_EXPECTED[field.type]}, got {_shown(tree)}"
        refused = InputError(f"where: {short(field.name)} is {expected}")
        if field.type == "boolean":
            if token.type not in ("TRUE", "FALSE"):
                raise refused
            return int(token.type == "TRUE")
        if field.type in _NUMBERS:
            if token.type != "NUMBER":
                raise refused
            return _number(str(token))
        if token.type != "TEXT":
            raise refused
        text = _unquoted(token)
        if field.type == "text":
            return text
        try:
            if field.type == "date":
                return date.fromisoformat(text).isoformat()
            return iso(datetime.fromisoformat(text))
        except (ValueError, OverflowError):
            raise refused from None

    def _pattern(self, field: Field, tree: Any) -> str:
        """The text after like or startswith."""
        if field.type != "text":
            raise InputError(f"where: {short(field.name)} is {field.type}; like and startswith are for text")
        text = str(self._value(field, tree))
        if len(text) > LONGEST_PATTERN:
            raise InputError(
                f"where: a pattern has {len(text):,} letters, expected at most {LONGEST_PATTERN:,}"
            )
        return text


def _unquoted(token: Token) -> str:
    return str(token)[1:-1].replace("''", "'")


def _name(token: Token) -> str:
    """What a column is called."""
    return str(token)[1:-1].replace('""', '"') if token.type == "QUOTED" else str(token)


def _quoted(name: str) -> str:
    """A column's name as a filter has it."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.casefold() not in _KEYWORDS
    return display_text(name if plain else '"' + name.replace('"', '""') + '"')


_KEYWORDS = {"or", "and", "not", "in", "between", "is", "null", "like", "startswith", "true", "false"}


def _shown(tree: Any) -> str:
    """A value for a message."""
    token = tree.children[0]
    return short(_unquoted(token)) if token.type == "TEXT" else str(token)[:60]


def _number(text: str) -> int | float:
    """A number of SQLite's; those beyond 64 bits are floats there."""
    if re.fullmatch("[+-]?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    if abs(number := float(text)) == inf:
        raise InputError(f"where: {short(text)} is too large for a number")
    return number
