"""The tree of errors holds together: unique codes, a word of help on each, and a picture that is true."""

import re

import pytest

from kolk import errors
from kolk.errors import InvalidRows, KolkError, PartialPut


def _family(root: type[KolkError]) -> list[type[KolkError]]:
    return [root, *(member for child in root.__subclasses__() for member in _family(child))]


ALL = [error for error in _family(KolkError) if error.__module__ == errors.__name__]
each_error = pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)


def _pictured_parents() -> dict[str, str | None]:
    """The tree in the module docstring: each name with the name it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    (?:(?P<branches>[│├└─ ]*)── )?(?P<name>[A-Z]\w+)(?:  |$)", line):
            depth = 0 if match["branches"] is None else len(match["branches"]) // 4 + 1
            parents[match["name"]] = path[depth - 1] if depth else None
            path[depth:] = [match["name"]]
    return parents


def test_no_two_errors_share_a_code():
    codes = {error.code: error.__name__ for error in ALL}

    assert len(codes) == len(ALL)


@each_error
def test_an_error_has_its_own_code_so_that_it_survives_the_wire(error):
    assert "code" in vars(error)
    assert type(error.code) is int
    assert error.code > 0


@each_error
def test_an_error_says_whether_a_retry_can_help(error):
    assert type(error.retriable) is bool


@each_error
def test_an_error_has_a_docstring_of_its_own(error):
    assert (vars(error).get("__doc__") or "").strip()


def test_the_picture_in_the_module_docstring_is_the_tree():
    real = {error.__name__: error.__base__.__name__ if error is not KolkError else None for error in ALL}

    assert _pictured_parents() == real


def test_everything_in_the_module_that_is_an_exception_belongs_to_the_tree():
    defined = {thing for thing in vars(errors).values() if isinstance(thing, type)}

    strangers = {thing for thing in defined if issubclass(thing, BaseException)} - set(ALL)

    assert not strangers


def test_invalid_input_is_also_a_value_error_and_not_found_a_lookup_error():
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.NotFound, LookupError)


def test_a_partial_put_tells_what_is_durable_what_failed_and_how_to_complete_it():
    failure = InvalidRows("no")

    error = PartialPut({"0": 7}, {"1": failure, "2": failure}, tag="t")

    assert str(error) == (
        "1 of 3 buckets are durable, the others failed (no);"
        " to complete the put, call it again with the same data and tag=error.tag"
    )
    assert (error.acknowledged, error.failed, error.tag) == ({"0": 7}, {"1": failure, "2": failure}, "t")
