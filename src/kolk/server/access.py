"""Who may call at all.

Without tokens everybody who can reach the port may do everything; that is for a server that only this machine, or
only holders of a client certificate, can reach. As soon as there is a token, one is needed. That never goes back while
the server runs: if the last token is revoked, or their file is gone, nobody gets in.
"""

from kolk.errors import Corrupted, Unauthenticated
from kolk.model.grant import EVERYONE, Principal
from kolk.server.tokens import Tokens

_UNREADABLE = "the server cannot check tokens at the moment; its operator finds the reason in its log"


class Access:
    """Turns secrets into principals. Thread-safe."""

    def __init__(self, tokens: Tokens, *, required: bool = False) -> None:
        self._tokens = tokens
        self._required = required

    @property
    def is_required(self) -> bool:
        """Whether a call needs a token. A file of tokens that cannot be read is an error, not "no"."""
        if not self._required and self._tokens.exist:
            self._required = True
        return self._required

    def check_readable(self) -> None:
        """Corrupted if tokens cannot be checked, so that nobody gets in."""
        _ = self._tokens.exist

    def identify(self, secret: str | None) -> Principal:
        """Whose secret this is; Unauthenticated if it is nobody's."""
        try:
            return self._identified(secret)
        except Corrupted as error:
            raise Unauthenticated(_UNREADABLE) from error

    def check(self, principal: Principal) -> None:
        """Unauthenticated if the principal's token was revoked or has expired since."""
        try:
            is_good = self._tokens.is_valid(principal) if principal.token_id else not self.is_required
        except Corrupted as error:
            raise Unauthenticated(_UNREADABLE) from error
        if not is_good:
            raise Unauthenticated("the token was revoked or has expired, or one is wanted now; connect again with one")

    def _identified(self, secret: str | None) -> Principal:
        # Who shows a token has one: the first may have been made a moment ago, so look at the file itself.
        if not self.is_required and (secret is None or not self._tokens.list()):
            return EVERYONE
        self._required = True
        if secret is None:
            raise Unauthenticated(
                "this server wants a token: kolk.connect(url, token=...), --token-file FILE or KOLK_TOKEN;"
                " `kolk token create` on its machine makes one"
            )
        return self._tokens.authenticate(secret)
