"""Grants: what a pattern matches, what an operation implies, and texts that are read back or refused."""

import contextlib
import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidArgument
from kolk.model.grant import ALL_OPERATIONS, EVERYONE, Grant, Operation, Principal
from kolk.model.names import TableName

# Few letters, so that patterns meet names often.
names = st.from_regex(r"(?!__)[ab_][ab_-]{0,3}", fullmatch=True) | st.just("default")
table_names = st.builds(TableName, names, names)
parts = st.one_of(names, names.map(lambda name: name + "*"), st.just("*"))
patterns = st.one_of(parts, st.tuples(parts, parts).map(".".join))
grants = st.builds(Grant, patterns, st.sets(st.sampled_from(Operation), min_size=1).map(frozenset))


def globbed(pattern: str, table: TableName) -> bool:
    """The same rule, told by another: fnmatch's * goes across dots, so database and table are asked apart."""
    if pattern == "*":
        return True
    database, _, name = pattern.rpartition(".")
    return fnmatch.fnmatchcase(table.database, database or "default") and fnmatch.fnmatchcase(table.table, name)


@given(grants)
def test_a_grant_is_read_back_from_its_text(grant):
    assert Grant.parse(str(grant)) == grant


@given(patterns, table_names)
def test_a_pattern_matches_what_a_glob_of_each_part_matches(pattern, table):
    assert Grant(pattern, ALL_OPERATIONS).covers(table) == globbed(pattern, table)


@given(st.lists(grants, max_size=4).map(tuple), st.sampled_from(Operation), table_names)
def test_what_no_grant_allows_is_denied(grants, operation, table):
    principal = Principal("p", grants, None)
    implying = {operation}
    if operation is Operation.DESCRIBE:
        implying |= {Operation.READ, Operation.WRITE, Operation.ALTER}
    matching = [grant for grant in grants if globbed(grant.tables, table)]

    assert principal.may(operation, table) == any(grant.operations & implying for grant in matching)
    assert principal.may_anything(table) == bool(matching)


@given(st.text() | st.tuples(patterns | st.text(), st.text()).map("=".join))
def test_any_text_is_a_grant_or_an_invalid_argument_and_nothing_else(text):
    with contextlib.suppress(InvalidArgument):
        assert Grant.parse(str(Grant.parse(text))) == Grant.parse(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("*=all", "*=all"),
        ("*.*=all", "*=all"),
        ("web.*=write,read", "web.*=read,write"),
        ("web.page*=read,read", "web.page*=read"),
        ("default.pages=read", "pages=read"),
        ("default.page*=read", "page*=read"),
        ("default.*=read", "default.*=read"),
        ("*.pages=describe", "*.pages=describe"),
        (" web.pages = READ , Drop ", "web.pages=read,drop"),
        ("t=read,write,create,drop,alter,describe", "t=all"),
        ("t=all,read", "t=all"),
    ],
)
def test_each_grant_has_one_text(text, kept):
    assert str(Grant.parse(text)) == kept


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a grant: write tables=operations"),
        ("web.*", "is not a grant: write tables=operations"),
        (None, "is not a grant"),
        (7, "is not a grant"),
        ("=read", "'' is not a table or database name"),
        ("web.=read", "'' is not a table or database name"),
        (".pages=read", "'' is not a table or database name"),
        ("a.b.c=read", "does not name tables"),
        ("web/pages=read", "'web/pages' is not a table or database name"),
        ("__x*=read", "not starting with - or with two underscores"),
        ("*web=read", r"has a \* in the middle of a part"),
        ("w*b.pages=read", r"has a \* in the middle of a part"),
        ("web.**=read", r"has a \* in the middle of a part"),
        ("web.*=", "'' is not an operation: use read, write, create, drop, alter, describe or all"),
        ("web.*=read,", "'' is not an operation"),
        ("web.*=raed", "'raed' is not an operation"),
        ("web.*=read=write", "'read=write' is not an operation"),
    ],
)
def test_what_is_no_grant_is_refused_with_what_is_wrong(text, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        Grant.parse(text)


def test_the_error_for_a_huge_grant_is_short_and_printable():
    with pytest.raises(InvalidArgument) as caught:
        Grant.parse("\x1b" * 1_000_000 + "=read")

    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("operations", [frozenset(), frozenset({"read"}), frozenset({None})])
def test_a_grant_of_nothing_or_of_words_is_refused(operations):
    with pytest.raises(InvalidArgument, match="a grant allows some of read, write"):
        Grant("web.*", operations)


def test_a_lone_star_is_every_database_but_a_lone_prefix_is_of_the_default_one():
    pages = TableName("web", "pages")

    assert Grant.parse("*=read").covers(pages)
    assert not Grant.parse("page*=read").covers(pages)
    assert Grant.parse("page*=read").covers(TableName("default", "pages"))


@pytest.mark.parametrize("word", ["read", "write", "alter"])
def test_who_may_use_a_table_may_describe_it(word):
    assert Principal("p", (Grant.parse(f"t={word}"),)).may(Operation.DESCRIBE, TableName.parse("t"))


@pytest.mark.parametrize("word", ["create", "drop"])
def test_who_may_only_create_or_drop_may_not_describe(word):
    assert not Principal("p", (Grant.parse(f"t={word}"),)).may(Operation.DESCRIBE, TableName.parse("t"))


@given(st.sampled_from(Operation), table_names)
def test_without_auth_everyone_may_everything(operation, table):
    assert EVERYONE.may(operation, table)
    assert EVERYONE.may_anything(table)
    assert (EVERYONE.name, EVERYONE.token_id) == ("anonymous", None)
