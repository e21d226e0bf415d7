"""Random identities, injected, so that a test can have the same ones twice.

Without a seed the bytes come from the operating system: ids must not collide across machines and tokens must
not be guessed. With a seed nothing here is secret.
"""

import random


class Rng:
    """Draws ids and tokens. Thread-safe, and safe after a fork when it has no seed."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def id128(self) -> int:
        """A random number of 128 bits: an identity nobody else will draw."""
        return self._random.getrandbits(128)

    def fraction(self) -> float:
        """A number from 0 up to 1."""
        return self._random.random()

    def token_hex(self, length_bytes: int = 16) -> str:
        """Random bytes as hexadecimal text, two characters each."""
        return self.token_bytes(length_bytes).hex()

    def token_bytes(self, length: int) -> bytes:
        """Random bytes."""
        return self._random.getrandbits(length * 8).to_bytes(length, "big")
