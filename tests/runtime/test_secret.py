"""Secrets show as stars wherever they may be printed, and the mask finds those in other texts."""

import copy
import json
import traceback
from dataclasses import asdict, dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.runtime.secret import Secret, masked

PLANTED = "hunter2-and-more"
ID = "0123456789abcdef"
TOKEN = f"kolk_{ID}_{'5eed' * 16}"


@dataclass(frozen=True)
class Settings:
    password: Secret


def test_a_secret_shows_as_stars_however_it_is_printed():
    secret = Secret(PLANTED)
    texts = [repr(secret), str(secret), f"{secret}", f"{secret!r:>5}", "%s %r" % (secret, secret), f"{[secret]}"]  # noqa: UP031
    texts += [repr(Settings(secret)), str(asdict(Settings(secret))), str(copy.deepcopy(secret))]

    assert not [text for text in texts if PLANTED in text]
    assert str(secret) == "***"


def test_a_secret_in_an_exception_does_not_show_in_the_traceback():
    with pytest.raises(ValueError, match=r"\*\*\*") as caught:
        raise ValueError(Secret(PLANTED))

    assert PLANTED not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("use", [lambda secret: "a" + secret, lambda secret: "".join([secret]), json.dumps, len])
def test_a_secret_is_not_a_text_by_accident(use):
    with pytest.raises(TypeError):
        use(Secret(PLANTED))


@given(st.text(), st.text())
def test_secrets_are_equal_when_their_texts_are_and_reveal_gives_the_text(one, other):
    assert (Secret(one) == Secret(other)) == (one == other)
    assert hash(Secret(one)) == hash(Secret(one))
    assert Secret(one).reveal() == one
    assert Secret(one) != one
    assert bool(Secret(one)) == bool(one)


@given(st.text(), st.text(alphabet="0123456789abcdef", min_size=1), st.text())
def test_a_token_in_the_middle_of_any_text_is_masked_but_for_its_id(before, secret, after):
    text = masked(f"{before} kolk_{ID}_{secret} {after}")

    assert f"kolk_{ID}_{secret}" not in text
    assert f"kolk_{ID}_***" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"bad token {TOKEN}", f"bad token kolk_{ID}_***"),
        (f"{{'token': '{TOKEN}'}}", f"{{'token': 'kolk_{ID}_***'}}"),
        (f"{TOKEN}{TOKEN}", f"kolk_{ID}_***kolk_{ID}_***"),
        (TOKEN[:-20], f"kolk_{ID}_***"),
        (TOKEN.upper(), f"KOLK_{ID.upper()}_***"),
        (f"kolk://{TOKEN}@host", f"kolk://kolk_{ID}_***@host"),
        ("Authorization: Bearer abc.def~ghi+/==", "Authorization: Bearer ***"),
        ("b'authorization', b'bearer abc'", "b'authorization', b'bearer ***'"),
        ('{"auth":"Bearer abc","n":1}', '{"auth":"Bearer ***","n":1}'),
        (f"Bearer {TOKEN}", "Bearer ***"),
        ("nothing of the kind: kolk_serve, kolk.errors", "nothing of the kind: kolk_serve, kolk.errors"),
    ],
)
def test_the_mask_hides_tokens_and_leaves_the_rest(text, shown):
    assert masked(text) == shown
    assert masked(shown) == shown
