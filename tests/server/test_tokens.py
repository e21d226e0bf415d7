"""Tokens: who is let in and who is not, changes by other processes, and limits."""

import stat
import subprocess
import sys
import threading

import pytest

from kolk.errors import InvalidInput, NotFound, Unauthenticated, Unavailable
from kolk.model.grant import EVERYONE, Grant, Principal
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.tokens import GRANTS_MAX, TOKENS_MAX, TTL_SECONDS_MAX, Tokens, TokenState, _encoded, _Stored

READ_WEB = (Grant.parse("web.*=read"),)


class CountingDisk(OsDisk):
    """Counts how often a file is read."""

    reads = 0

    def open_reader(self, path):
        self.reads += 1
        return super().open_reader(path)


@pytest.fixture
def disk():
    return CountingDisk()


@pytest.fixture
def elsewhere(path, clock):
    """The same file, as another process has it."""
    return Tokens(path, clock, Rng(seed=2))


def refusal(tokens, secret) -> str:
    with pytest.raises(Unauthenticated) as caught:
        tokens.authenticate(secret)
    return str(caught.value)


def test_a_secret_opens_what_its_token_grants(tokens):
    token, secret = tokens.create("etl", READ_WEB)

    assert tokens.authenticate(secret) == Principal("etl", READ_WEB, token.id)
    assert secret.startswith(f"kolk_{token.id}_")
    assert len(secret) == len("kolk_") + 16 + 1 + 64


def test_no_two_tokens_share_an_id_or_a_secret(path, clock):
    tokens = Tokens(path, clock, Rng())

    made = [tokens.create("etl", READ_WEB) for _ in range(20)]

    assert len({token.id for token, _ in made}) == len({secret for _, secret in made}) == 20


def test_every_secret_that_is_not_right_is_refused_with_the_same_words(tokens):
    token, secret = tokens.create("etl", READ_WEB)
    flipped = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    unknown = f"kolk_{'0' * 16}_{'0' * 64}"
    wrong = [flipped, unknown, secret.upper(), secret + "\n", " " + secret, secret[:-1], secret + "0", secret * 1_000]
    wrong += [f"kolk_{token.id}_", token.id, "", "Bearer " + secret, "\0", "\ud800", "é", None, 7, secret.encode()]

    refusals = {refusal(tokens, each) for each in wrong}

    assert len(refusals) == 1
    assert token.id not in refusals.pop()


def test_an_expired_token_says_so_to_its_owner_alone(tokens, clock):
    token, secret = tokens.create("etl", READ_WEB, ttl_seconds=60)
    clock.advance(ms=59_999)
    assert tokens.authenticate(secret).name == "etl"

    clock.advance(ms=1)

    assert "expired" in refusal(tokens, secret)
    assert "expired" not in refusal(tokens, f"kolk_{token.id}_{'0' * 64}")
    assert tokens.list()[0].state(clock.now_ms()) is TokenState.EXPIRED


def test_a_revoked_token_says_so_to_its_owner_alone(tokens, clock):
    token, secret = tokens.create("etl", READ_WEB)

    revoked = tokens.revoke(token.id)

    assert "revoked" in refusal(tokens, secret)
    assert "revoked" not in refusal(tokens, f"kolk_{token.id}_{'0' * 64}")
    assert revoked.state(clock.now_ms()) is TokenState.REVOKED
    assert revoked.revoked_ms == clock.now_ms()


def test_revoking_again_keeps_the_first_time(tokens, clock):
    token, _ = tokens.create("etl", READ_WEB)
    first = tokens.revoke(token.id)
    clock.advance(seconds=9)

    assert tokens.revoke(token.id) == first


def test_a_token_that_is_not_there_cannot_be_revoked(tokens):
    with pytest.raises(NotFound, match="there is no token 0123456789abcdef"):
        tokens.revoke("0123456789abcdef")
    tokens.create("etl", READ_WEB)
    with pytest.raises(NotFound, match="kolk token list"):
        tokens.revoke("0123456789abcdef")


def test_a_secret_given_instead_of_an_id_is_not_repeated(tokens):
    _, secret = tokens.create("etl", READ_WEB)

    with pytest.raises(InvalidInput) as caught:
        tokens.revoke(secret)

    assert secret[-64:] not in str(caught.value)


def test_a_token_is_rotated_under_its_name(tokens):
    old, old_secret = tokens.create("etl", READ_WEB)
    _, new_secret = tokens.create("etl", READ_WEB)
    assert tokens.authenticate(old_secret).name == tokens.authenticate(new_secret).name

    tokens.revoke(old.id)

    assert tokens.authenticate(new_secret).name == "etl"


def test_tokens_are_listed_from_the_oldest_on(tokens, clock):
    assert tokens.list() == []
    made = []
    for name in ("b", "a", "c"):
        made.append(tokens.create(name, READ_WEB)[0])
        clock.advance(ms=1)

    assert tokens.list() == made


def test_there_is_any_token_while_one_is_valid(tokens, clock):
    assert not tokens.any
    assert not tokens.exist
    token, _ = tokens.create("etl", READ_WEB)
    tokens.create("guest", READ_WEB, ttl_seconds=10)
    assert tokens.any

    tokens.revoke(token.id)
    assert tokens.any
    clock.advance(seconds=10)
    assert not tokens.any
    assert tokens.exist, "who asked for tokens once must not be opened to everyone"


# The file.


def test_the_secret_is_nowhere_but_with_its_owner(tokens, path, tmp_path):
    token, secret = tokens.create("etl", READ_WEB)
    tokens.authenticate(secret)
    random_part = secret[-64:]
    shown = [repr(token), str(token), repr(tokens), repr(tokens._current()), repr(tokens.authenticate(secret))]

    assert not [text for text in shown if random_part in text]
    assert not [file for file in tmp_path.iterdir() if random_part in file.read_text()]


def test_the_files_are_for_their_owner_only(tokens, path, tmp_path):
    tokens.create("etl", READ_WEB)

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}

    assert modes == {"tokens.json": 0o600, "tokens.lock": 0o600}


def test_tokens_are_there_after_a_restart(tokens, elsewhere, clock):
    token, secret = tokens.create("etl", (Grant.parse("*=all"), *READ_WEB), ttl_seconds=1.5)

    assert elsewhere.list() == [token]
    assert elsewhere.authenticate(secret) == tokens.authenticate(secret)
    assert token.expires_ms == clock.now_ms() + 1_500


def test_tokens_may_be_made_before_the_folder_is(tmp_path):
    folder = tmp_path / "new" / "data"

    Tokens(folder / "tokens.json").create("etl", READ_WEB)
    (folder / "tokens.json.tmp").write_text("left by a crash")

    Folder(folder).close()
    assert (folder / "FORMAT").exists()


def test_tokens_do_not_make_a_folder_of_other_files_acceptable(tokens, tmp_path):
    tokens.create("etl", READ_WEB)
    (tmp_path / "thesis.txt").write_text("not ours")

    with pytest.raises(InvalidInput, match="holds other files"):
        Folder(tmp_path)


def test_without_a_file_there_are_no_tokens_and_nothing_is_made(tmp_path):
    tokens = Tokens(tmp_path / "nowhere" / "tokens.json")

    assert tokens.list() == []
    assert not tokens.any
    assert not (tmp_path / "nowhere").exists()


# Other processes.


def test_a_token_made_by_another_process_works_at_once(tokens, elsewhere):
    assert tokens.list() == []

    _, secret = elsewhere.create("etl", READ_WEB)

    assert tokens.authenticate(secret).name == "etl"


def test_a_token_revoked_by_another_process_ends_within_a_second(tokens, elsewhere, clock):
    token, secret = tokens.create("etl", READ_WEB)
    principal = tokens.authenticate(secret)

    elsewhere.revoke(token.id)
    clock.advance(seconds=1)

    assert not tokens.is_valid(principal)
    assert "revoked" in refusal(tokens, secret)


def test_a_principal_stays_valid_until_its_token_ends(tokens, clock):
    _, secret = tokens.create("etl", READ_WEB, ttl_seconds=60)
    principal = tokens.authenticate(secret)
    assert tokens.is_valid(principal)

    clock.advance(seconds=60)

    assert not tokens.is_valid(principal)


def test_a_principal_without_a_token_is_not_ended_here(tokens):
    assert tokens.is_valid(EVERYONE)


def test_a_token_id_that_is_not_in_the_file_is_not_valid(tokens):
    assert not tokens.is_valid(Principal("etl", READ_WEB, "0123456789abcdef"))


def test_the_file_is_read_again_only_when_it_has_changed(tokens, elsewhere, clock, disk):
    _, secret = tokens.create("etl", READ_WEB)
    principal = tokens.authenticate(secret)
    before = disk.reads

    for _ in range(100):
        clock.advance(seconds=1)
        tokens.is_valid(principal)
        refusal(tokens, f"kolk_{'0' * 16}_{'0' * 64}")
    assert disk.reads == before

    elsewhere.create("other", READ_WEB)
    clock.advance(seconds=1)
    tokens.is_valid(principal)
    assert disk.reads == before + 1


def test_processes_that_create_at_once_lose_no_token(path, tokens):
    script = (
        "import sys; from pathlib import Path\n"
        "from kolk.model.grant import Grant; from kolk.server.tokens import Tokens\n"
        "tokens = Tokens(Path(sys.argv[1]))\n"
        "for n in range(10): tokens.create(f'p{n}', [Grant.parse('*=all')])"
    )
    workers = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(3)]

    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert len(tokens.list()) == 30


def test_threads_that_create_at_once_lose_no_token(tokens):
    threads = [threading.Thread(target=lambda: [tokens.create("etl", READ_WEB) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(tokens.list()) == 20


# Limits.


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 201, None, "kolk\n"])
def test_a_token_needs_a_plain_name(tokens, name):
    with pytest.raises(InvalidInput, match="is not a token name"):
        tokens.create(name, READ_WEB)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), TTL_SECONDS_MAX + 1, True, "30d"])
def test_a_token_lives_for_some_time_within_reason(tokens, ttl):
    with pytest.raises(InvalidInput, match="a token lives for"):
        tokens.create("etl", READ_WEB, ttl_seconds=ttl)


def test_a_token_has_some_grants_but_not_too_many(tokens):
    tokens.create("etl", READ_WEB * GRANTS_MAX)

    for grants in ((), READ_WEB * (GRANTS_MAX + 1)):
        with pytest.raises(InvalidInput, match="give it 1 to 100"):
            tokens.create("etl", grants)
    with pytest.raises(InvalidInput, match="are Grant values"):
        tokens.create("etl", ["web.*=read"])


def full(tokens, path):
    """Fill the file up in one go: a thousand creations are a thousand syncs."""
    token, secret = tokens.create("etl", READ_WEB)
    first = tokens._current()[token.id]
    copies = [_Stored(_renamed(token, number), first.salt, first.digest) for number in range(1, TOKENS_MAX)]
    path.write_bytes(_encoded([first, *copies]))
    return token, secret


def _renamed(token, number):
    return type(token)(
        id=f"{number:016x}",
        name="copy",
        grants=token.grants,
        created_ms=token.created_ms,
        expires_ms=None,
        revoked_ms=None,
    )


def test_there_are_only_so_many_tokens(tokens, path):
    full(tokens, path)

    with pytest.raises(Unavailable, match="there are 1,000 tokens"):
        tokens.create("one-more", READ_WEB)


def test_the_room_of_the_longest_dead_token_is_given_to_a_new_one(tokens, path, clock):
    token, secret = full(tokens, path)
    tokens.revoke(token.id)
    clock.advance(seconds=1)
    tokens.revoke(f"{1:016x}")

    made, _ = tokens.create("one-more", READ_WEB)

    ids = {each.id for each in tokens.list()}
    assert len(ids) == TOKENS_MAX
    assert made.id in ids
    assert token.id not in ids
    assert f"{1:016x}" in ids
    assert "not known" in refusal(tokens, secret)
