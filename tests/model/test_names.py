"""Names from outside: one rule, and nothing that breaks it comes in."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidName
from kolk.model.names import NAME_LENGTH_MAX, TableName, check_name

LETTERS = string.ascii_letters + string.digits + "_-"
HOSTILE = [
    *("", ".", "..", "../x", "..\\x", "/etc/passwd", "a/b", "a\\b", "C:", "~", "%2e%2e", "a.b"),
    *("\0", "a\0", "a\0b", "a\n", "\na", "a\r", "a\t", " a", "a ", "a b", "\x1b[2J", "\x7f"),
    *("-", "-a", "--", "-rf", "__", "__a", "__init__", "___"),
    # Look-alikes: Cyrillic, full width, circled, long s, Kelvin, dotless i, combining and invisible.
    *(
        "p\u0430ge",
        "\uff50age",
        "\uff21",
        "\u2460",
        "\uff11",
        "\u017f",
        "\u212a",
        "\u0131",
        "\u00e9",
        "e\u0301",
    ),
    *("a\u200b", "\u202ea", "a\u2010b", "\ufeffa"),
    *(
        "a" * (NAME_LENGTH_MAX + 1),
        "a" * 1_000_000,
        "\ud800",
        "a;b",
        "a'b",
        'a"b',
        "a`b",
        "$a",
        "a:b",
        "*",
        "a,b",
    ),
]

names = st.from_regex(rf"(?!__)[A-Za-z0-9_][A-Za-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}}", fullmatch=True)


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:20]))
def test_a_hostile_name_is_never_accepted(name):
    with pytest.raises(InvalidName):
        check_name(name, "table")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:20]))
def test_a_hostile_name_is_never_accepted_as_a_part_of_a_table_name(name):
    with pytest.raises(InvalidName):
        TableName.parse(f"web.{name}")
    with pytest.raises(InvalidName):
        TableName.parse(f"{name}.pages")


@pytest.mark.parametrize("name", [None, 7, b"pages", ["pages"], True])
def test_what_is_not_text_is_not_a_name(name):
    with pytest.raises(InvalidName):
        check_name(name, "table")
    with pytest.raises(InvalidName):
        TableName.parse(name)


@given(st.text())
def test_only_plain_ascii_names_are_accepted(text):
    plain = (
        0 < len(text) <= NAME_LENGTH_MAX
        and all(character in LETTERS for character in text)
        and not text.startswith(("-", "__"))
    )

    try:
        accepted = check_name(text, "column") == text
    except InvalidName:
        accepted = False

    assert accepted == plain


@given(names)
def test_a_plain_name_is_returned_as_it_is(name):
    assert check_name(name, "column") == name


@pytest.mark.parametrize("name", ["a", "_", "_a", "0", "2026-11-15", "a__b", "a-", "A" * NAME_LENGTH_MAX])
def test_the_edges_of_the_rule_are_inside_it(name):
    assert check_name(name, "table") == name


def test_the_error_shows_the_name_and_tells_the_rule():
    with pytest.raises(InvalidName) as caught:
        check_name("../x", "column")

    assert str(caught.value) == (
        "'../x' is not a column name: use 1 to 200 of A-Z a-z 0-9 _ -, not starting with - or with two underscores"
    )


def test_the_error_for_a_huge_name_is_short_and_printable():
    with pytest.raises(InvalidName) as caught:
        check_name("\x1b" * 1_000_000, "table")

    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_a_table_named_without_a_database_lives_in_default():
    assert TableName.parse("pages") == TableName.parse("default.pages") == TableName("default", "pages")


@given(names, names)
def test_a_table_name_is_read_back_from_its_text(database, table):
    name = TableName.parse(f"{database}.{table}")

    assert TableName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["a.b.c", "a.b.c.d", "..."])
def test_a_table_name_has_one_or_two_parts(text):
    with pytest.raises(InvalidName, match=r"is not a table name: write table or database\.table"):
        TableName.parse(text)
