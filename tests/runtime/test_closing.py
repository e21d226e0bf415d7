"""Parts that are closed in turn, whatever becomes of the others."""

import inspect
import sys

import pytest

from kolk.runtime.closing import Closing


class Parts:
    """Five parts, and in which order they were closed; one does something besides."""

    def __init__(self, **doing):
        self.closed = []
        self._doing = doing
        self.closing = Closing(*(lambda name=name: self._close(name) for name in "abcde"))

    def _close(self, name):
        self.closed.append(name)
        self._doing.get(name, lambda: None)()


def _raising(error):
    def fail():
        raise error

    return fail


def test_parts_are_closed_in_order_and_once():
    parts = Parts()

    parts.closing.close()
    parts.closing.close()

    assert parts.closed == [*"abcde"]


@pytest.mark.parametrize("error", [OSError("as told"), KeyboardInterrupt()])
def test_one_that_fails_or_is_interrupted_does_not_keep_the_others_open(error):
    parts = Parts(b=_raising(error))

    with pytest.raises(type(error)):
        parts.closing.close()

    assert parts.closed == [*"abcde"]


def test_one_that_failed_is_not_closed_again_and_one_that_was_interrupted_is():
    parts = Parts(b=_raising(OSError("as told")), c=_raising(KeyboardInterrupt()), d=_raising(OSError("too")))

    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error):
            parts.closing.close()

    assert parts.closed == [*"abcde", "c"]


def test_whoever_comes_in_the_middle_leaves_the_rest_to_who_was_first():
    parts = Parts(c=lambda: (parts.closing.close(), parts.closed.append("came")))

    parts.closing.close()

    assert parts.closed == [*"abc", "came", *"de"]


def test_who_is_interrupted_just_before_a_part_is_closed_closes_it_the_next_time():
    parts = Parts()
    lines, first = inspect.getsourcelines(Closing._close)
    line = first + next(place for place, text in enumerate(lines) if "part()" in text)

    def interrupt(frame, event, arg):
        if frame.f_code is Closing._close.__code__ and frame.f_lineno == line and parts.closed == [*"ab"]:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            parts.closing.close()
    finally:
        sys.settrace(None)
    parts.closing.close()

    assert parts.closed == [*"abdec"]
