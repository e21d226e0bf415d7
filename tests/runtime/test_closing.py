"""Parts that are closed in turn, whatever becomes of the others."""

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
    parts.closing.close()

    assert parts.closed == [*"abcde"]


def test_whoever_comes_in_the_middle_leaves_the_rest_to_who_was_first():
    parts = Parts(c=lambda: (parts.closing.close(), parts.closed.append("came")))

    parts.closing.close()

    assert parts.closed == [*"abc", "came", *"de"]
