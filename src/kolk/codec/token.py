"""Resume tokens: a place in a scan as text that only this database can have written.

A token is opaque to everybody else. It names the scan that it was made by and what that was asked for, so that it
cannot be used on another table or with another predicate, and it carries a code that proves that nobody changed it. The
key of that code lives in the data folder, so tokens are as good after a restart as before.

    base64url( MessagePack [version, scan, query, partition, bucket, after, delivered] + 16 bytes of HMAC-SHA256 )
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

import msgspec

from kolk.codec.key import KEY_BYTES_MAX
from kolk.errors import InvalidArgument
from kolk.model.scan import Place

KEY_BYTES = 32
_VERSION = 1
_CODE_BYTES = 16
_TOKEN_LENGTH_MAX = 2 * KEY_BYTES_MAX
_Payload = tuple[int, bytes, bytes, int, int, bytes, int]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Payload)
_versions = msgspec.msgpack.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Token:
    """What a token says: a place, in which scan, of what query."""

    scan: str
    query: bytes
    place: Place


class Tokens:
    """Writes and reads the tokens of one database. Immutable, so thread-safe."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES, "the key is made here, or damaged"
        self._key = key

    def encode(self, token: Token) -> str:
        """The text of a token."""
        place = token.place
        payload = _encoder.encode(
            (
                _VERSION,
                bytes.fromhex(token.scan),
                token.query,
                place.partition,
                place.bucket,
                place.after,
                place.delivered,
            )
        )
        return urlsafe_b64encode(payload + self._code(payload)).decode("ascii")

    def decode(self, text: str) -> Token:
        """Read it back; InvalidArgument if this database has not written it just so."""
        try:
            if not isinstance(text, str) or len(text) > _TOKEN_LENGTH_MAX:
                raise ValueError(text)
            data = urlsafe_b64decode(text.encode("ascii"))
            payload, code = data[:-_CODE_BYTES], data[-_CODE_BYTES:]
            # base64 overlooks characters that it does not know, and the last bits before the padding.
            is_just_so = urlsafe_b64encode(data).decode("ascii") == text
            if not is_just_so or not hmac.compare_digest(code, self._code(payload)):
                raise ValueError(text)
            version = msgspec.msgpack.decode(_versions.decode(payload)[0])
            if version != _VERSION:
                raise InvalidArgument(f"this resume token is of version {version}, and {_VERSION} is known; scan anew")
            _, scan, query, partition, bucket, after, delivered = _decoder.decode(payload)
        except (ValueError, IndexError, UnicodeError, binascii.Error, msgspec.DecodeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument("this is no resume token of this database; use one as a scan has given it") from None
        return Token(scan.hex(), query, Place(partition, bucket, after, delivered))

    def _code(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")[:_CODE_BYTES]
