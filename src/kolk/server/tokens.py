"""Access tokens: the file that holds them, and the question whose secret this is.

``tokens.json`` lies in the data folder and holds of each secret a keyed hash only, so that who reads a backup can log
in nowhere. The secret is shown once, when it is made. Any process may change the file while a server runs: changes
are made under a file lock, and the server looks for a new file once a second, and whenever it is shown an id that it
does not know. So a new token works at once, and a revoked one ends within a second, streams under way included.

It fails closed: a file that cannot be read or is not what was written lets nobody in, and it is never repaired by
guessing. A file that is not there holds no tokens; whether a server without tokens serves at all is decided where it
starts, not here. Tokens cannot be changed, only revoked: to rotate one, make a second of the same name first.

{"format": 1, "check": blake2b of the tokens, "tokens": [{"id": 16 hex digits, "name": "etl", "grants": ["web.*=read"],
 "created_ms": …, "expires_ms": … or null, "revoked_ms": … or null, "salt": hex, "digest": hex}, …]}
"""

import fcntl
import hashlib
import hmac
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import msgspec

from kolk.errors import Corrupted, InvalidArgument, InvalidInput, NotFound, Unauthenticated, Unavailable, UnknownFormat
from kolk.model.grant import Grant, Principal
from kolk.model.names import check_name
from kolk.runtime.clock import Clock, SystemClock
from kolk.runtime.disk import Disk, OsDisk
from kolk.runtime.folder import TOKENS_FILE, TOKENS_LOCK_FILE
from kolk.runtime.rng import Rng

TOKENS_MAX = 1_000
GRANTS_MAX = 100
TTL_SECONDS_MAX = 100 * 365 * 86_400
CHECK_SECONDS = 1.0
"""How long a change by another process may go unnoticed."""

_FORMAT = 1
_FILE_BYTES_MAX = 64 * 2**20  # the limits above, with the longest names, stay below
_ID = re.compile(r"[0-9a-f]{16}")
_HASH = re.compile(r"[0-9a-f]{64}")
_SECRET = re.compile(rf"kolk_(?P<id>{_ID.pattern})_{_HASH.pattern}")
_NO_SALT = "00" * 32

# One text for every secret that is not right, so that nobody learns which ids exist.
_UNKNOWN = "the token is not known here; ask the operator of the server for one (kolk token create)"

_Signature = tuple[int, ...]
_ABSENT: _Signature = ()
_UNREAD: _Signature = (-1,)

_OS_DISK = OsDisk()
_SYSTEM_CLOCK = SystemClock()
_SYSTEM_RNG = Rng()


class TokenState(Enum):
    """Whether a token opens anything, and why not."""

    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What may be shown of a token: everything but its secret."""

    id: str
    name: str
    """Whose it is. Several tokens may share a name, which is how one is rotated."""
    grants: tuple[Grant, ...]
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None

    def state(self, now_ms: int) -> TokenState:
        """What the token is worth at this moment of the wall clock."""
        if self.revoked_ms is not None:
            return TokenState.REVOKED
        if self.expires_ms is not None and now_ms >= self.expires_ms:
            return TokenState.EXPIRED
        return TokenState.VALID

    @property
    def principal(self) -> Principal:
        """Who calls with this token."""
        return Principal(self.name, self.grants, self.id)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A token with what its secret is checked against."""

    token: Token
    salt: str = field(repr=False)
    digest: str = field(repr=False)


class Tokens:
    """The tokens of one data folder. Thread-safe: one lock, under which nothing but this file is read."""

    def __init__(self, path: Path, clock: Clock = _SYSTEM_CLOCK, rng: Rng = _SYSTEM_RNG, disk: Disk = _OS_DISK) -> None:
        self._path = path
        self._clock = clock
        self._rng = rng
        self._disk = disk
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._tokens: Mapping[str, _Stored] = {}
        self._damage: Corrupted | None = None
        self._signature = _UNREAD
        self._checked = -math.inf

    def create(self, name: str, grants: Iterable[Grant], ttl_seconds: float | None = None) -> tuple[Token, str]:
        """Make a token; the second value is its secret, which nobody can ask for again.

        Steps: take the file lock, read, add, replace the file durably. A crash before the last changes nothing.
        """
        allowed = tuple(grants)
        _check(check_name(name, "token"), allowed, ttl_seconds)
        self._disk.make_folder(str(self._path.parent))
        with self._exclusively():
            stored = self._read()
            now_ms = self._clock.now_ms()
            token = Token(
                id=self._new_id(stored),
                name=name,
                grants=allowed,
                created_ms=now_ms,
                expires_ms=None if ttl_seconds is None else now_ms + max(1, round(ttl_seconds * 1_000)),
                revoked_ms=None,
            )
            secret = f"kolk_{token.id}_{self._rng.token_hex(32)}"
            salt = self._rng.token_hex(32)
            entry = _Stored(token, salt, _digest(secret, salt))
            self._write([*_with_room(stored.values(), now_ms), entry])
        self._current(look=True)
        return token, secret

    def revoke(self, token_id: str) -> Token:
        """End a token, for good and everywhere. Idempotent: the first time counts."""
        # A secret given by mistake must not end up in a message.
        if not isinstance(token_id, str) or not _ID.fullmatch(token_id):
            raise InvalidArgument("a token is revoked by its id, 16 hexadecimal digits; kolk token list shows it")
        if not self._path.exists():
            raise NotFound(f"there is no token {token_id}; kolk token list shows those there are")
        with self._exclusively():
            stored = dict(self._read())
            found = stored.get(token_id)
            if found is None:
                raise NotFound(f"there is no token {token_id}; kolk token list shows those there are")
            if found.token.revoked_ms is None:
                found = replace(found, token=replace(found.token, revoked_ms=self._clock.now_ms()))
                self._write((stored | {token_id: found}).values())
        self._current(look=True)
        return found.token

    def list(self) -> list[Token]:
        """All tokens, expired and revoked ones too, the oldest first."""
        tokens = (stored.token for stored in self._current(look=True).values())
        return sorted(tokens, key=lambda token: (token.created_ms, token.id))

    @property
    def exist(self) -> bool:
        """Whether a token was ever made here: a server whose tokens have all ended must not open to everyone."""
        return bool(self._current())

    @property
    def any(self) -> bool:
        """Whether there is a token that opens anything."""
        now_ms = self._clock.now_ms()
        return any(stored.token.state(now_ms) is TokenState.VALID for stored in self._current().values())

    def authenticate(self, secret: str) -> Principal:
        """Who has this secret. The reason of a refusal is told only to one who has a secret that once was right."""
        match = _SECRET.fullmatch(secret) if isinstance(secret, str) else None
        token_id = match["id"] if match else ""
        stored = self._current().get(token_id) or (self._current(look=True).get(token_id) if match else None)
        # Hashed and compared also if there is no such token, so that it takes as long.
        digest = _digest(secret if match else "", stored.salt if stored else _NO_SALT)
        is_right = hmac.compare_digest(digest, stored.digest if stored else _NO_SALT)
        if stored is None or not is_right:
            raise Unauthenticated(_UNKNOWN)
        state = stored.token.state(self._clock.now_ms())
        if state is TokenState.EXPIRED:
            raise Unauthenticated("the token has expired; ask the operator of the server for a new one")
        if state is TokenState.REVOKED:
            raise Unauthenticated("the token was revoked; ask the operator of the server for a new one")
        return stored.token.principal

    def is_valid(self, principal: Principal) -> bool:
        """Whether the principal's token still stands: a look into memory, and once a second at the file.

        A principal without a token did not come from here, and nothing here can end it.
        """
        if principal.token_id is None:
            return True
        stored = self._current().get(principal.token_id)
        return stored is not None and stored.token.state(self._clock.now_ms()) is TokenState.VALID

    def _current(self, *, look: bool = False) -> Mapping[str, _Stored]:
        """The tokens as the file has them, not older than a second; with ``look``, as it has them now."""
        with self._lock:
            moment = self._clock.monotonic()
            if look or moment - self._checked >= CHECK_SECONDS:
                self._refresh()
                self._checked = moment
            if self._damage is not None:
                raise type(self._damage)(str(self._damage))
            return self._tokens

    def _refresh(self) -> None:
        """Read the file if it is another one than before. Call with the lock held."""
        signature = _UNREAD
        try:
            signature = _signature_of(self._path)
            if signature == self._signature:
                return
            tokens, damage = self._read(), None
        except Corrupted as error:
            tokens, damage = {}, error
        except OSError as error:
            # It may pass, as too many open files do, without a change of the file: so look again next time.
            signature = _UNREAD
            tokens, damage = {}, Corrupted(_cannot_be_used(self._path, error.strerror or "unknown error"))
        self._tokens, self._damage, self._signature = tokens, damage, signature

    def _read(self) -> dict[str, _Stored]:
        """The tokens in the file; through one handle, because the name may be given to another file meanwhile."""
        try:
            reader = self._disk.open_reader(str(self._path))
        except FileNotFoundError:
            return {}
        with reader:
            size = reader.size
            if size > _FILE_BYTES_MAX:
                raise Corrupted(_cannot_be_used(self._path, f"{size:,} bytes are more than it can have"))
            data = reader.pread(0, size).to_pybytes()
        try:
            return _decoded(data)
        except UnknownFormat:
            raise
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, InvalidInput, Corrupted) as error:
            # Without the error's own text: it may quote the file.
            raise Corrupted(_cannot_be_used(self._path, "it is not what was written")) from error

    def _write(self, stored: Iterable[_Stored]) -> None:
        self._disk.replace(str(self._path), _encoded(stored))

    def _new_id(self, taken: Mapping[str, _Stored]) -> str:
        while (token_id := self._rng.token_hex(8)) in taken:
            pass
        return token_id

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the file lock, which keeps other processes and other threads from writing; readers need none."""
        handle = os.open(self._path.with_name(TOKENS_LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            # By name: a forked child may still have the handle, and with it the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A token as it stands in the file."""

    id: str
    name: str
    grants: list[str]
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    salt: str
    digest: str


@dataclass(frozen=True, slots=True)
class _Format:
    format: int


@dataclass(frozen=True, slots=True)
class _Content(_Format):
    check: str
    tokens: list[_Entry]


def _encoded(stored: Iterable[_Stored]) -> bytes:
    entries = [
        _Entry(
            id=each.token.id,
            name=each.token.name,
            grants=[str(grant) for grant in each.token.grants],
            created_ms=each.token.created_ms,
            expires_ms=each.token.expires_ms,
            revoked_ms=each.token.revoked_ms,
            salt=each.salt,
            digest=each.digest,
        )
        for each in stored
    ]
    content = _Content(_FORMAT, _check_of(entries), entries)
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _decoded(data: bytes) -> dict[str, _Stored]:
    written = msgspec.json.decode(data, type=_Format).format
    if written > _FORMAT:
        raise UnknownFormat(f"{TOKENS_FILE} has format {written}, this version of Kolk reads {_FORMAT}: upgrade Kolk")
    content = msgspec.json.decode(data, type=_Content)
    if not hmac.compare_digest(content.check.encode(), _check_of(content.tokens).encode()):
        raise Corrupted("the check does not fit the tokens")
    stored = {entry.id: _stored(entry) for entry in content.tokens}
    if len(stored) != len(content.tokens) or len(stored) > TOKENS_MAX:
        raise Corrupted("an id is there twice, or there are too many")
    return stored


def _stored(entry: _Entry) -> _Stored:
    if not (_ID.fullmatch(entry.id) and _HASH.fullmatch(entry.salt) and _HASH.fullmatch(entry.digest)):
        raise Corrupted("an id, salt or digest is none")
    token = Token(
        id=entry.id,
        name=check_name(entry.name, "token"),
        grants=tuple(Grant.parse(text) for text in entry.grants),
        created_ms=entry.created_ms,
        expires_ms=entry.expires_ms,
        revoked_ms=entry.revoked_ms,
    )
    return _Stored(token, entry.salt, entry.digest)


def _check_of(entries: list[_Entry]) -> str:
    return hashlib.blake2b(msgspec.json.encode(entries), digest_size=16).hexdigest()


def _digest(secret: str, salt: str) -> str:
    """A quick hash will do: the secret has 256 random bits, so there is nothing to try out."""
    return hashlib.blake2b(secret.encode(), key=bytes.fromhex(salt), digest_size=32).hexdigest()


def _signature_of(path: Path) -> _Signature:
    """What tells one content of the file from the next: each is a new file under the old name."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return _ABSENT
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _with_room(stored: Iterable[_Stored], now_ms: int) -> list[_Stored]:
    """Those to keep beside a new one. Expired and revoked ones stay, to be told so, until their room is needed."""
    kept = list(stored)
    dead = [each for each in kept if each.token.state(now_ms) is not TokenState.VALID]
    if len(kept) < TOKENS_MAX:
        return kept
    if not dead:
        raise Unavailable(f"there are {TOKENS_MAX:,} tokens, which is as many as there may be; revoke one first")
    kept.remove(min(dead, key=lambda each: (each.token.revoked_ms or each.token.expires_ms or 0, each.token.id)))
    return kept


def _check(name: str, grants: tuple[Grant, ...], ttl_seconds: float | None) -> None:
    if not all(isinstance(grant, Grant) for grant in grants):
        raise InvalidArgument("a token's grants are Grant values, such as Grant.parse('web.*=read')")
    if not 1 <= len(grants) <= GRANTS_MAX:
        raise InvalidArgument(f"the token {name!r} has {len(grants):,} grants; give it 1 to {GRANTS_MAX}")
    if ttl_seconds is None:
        return
    is_number = isinstance(ttl_seconds, int | float) and not isinstance(ttl_seconds, bool)
    if not is_number or not 0 < ttl_seconds <= TTL_SECONDS_MAX:
        raise InvalidArgument(f"a token lives for more than 0 and at most {TTL_SECONDS_MAX:,} seconds")


def _cannot_be_used(path: Path, why: str) -> str:
    """Callers that have not logged in may see this, so it names the file and not where it lies."""
    return f"{path.name} cannot be used ({why}), so nobody is let in; restore it, or remove it and make new tokens"
