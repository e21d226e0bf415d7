"""Where a server is: ``kolk://host:port``, or ``kolk+tls://host:port`` for an encrypted connection."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kolk.config import is_loopback
from kolk.errors import InvalidArgument

DEFAULT_PORT = 9123
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PLAIN, _TLS = "kolk", "kolk+tls"
_BARE = re.compile(r"(?:kolk(?:\+tls)?:/?)?(?P<place>(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})/?")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address."""

    host: str
    port: int
    is_tls: bool

    @staticmethod
    def parse(url: str) -> "Address":
        """Read a URL. There is nothing but host and port in it: secrets do not belong in addresses."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidArgument(f"this is not the address of a server ({error}): it is kolk://host:port") from None
        if parts.scheme not in (_PLAIN, _TLS):
            raise InvalidArgument(f"an address is kolk://host:port or kolk+tls://host:port, not {parts.scheme}://...")
        if parts.username is not None or parts.password is not None:
            raise InvalidArgument("an address has no user or password; give the token as kolk.connect(url, token=...)")
        if not host or not _HOST.fullmatch(host) or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise InvalidArgument("an address is kolk://host:port and nothing more, the host a name or an IP address")
        return Address(host, DEFAULT_PORT if port is None else port, parts.scheme == _TLS)

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return url_of(_TLS if self.is_tls else _PLAIN, self.host, self.port)


def check_folder(path: str) -> None:
    """Refuse the path of a new folder that was meant to be a server: ``localhost:9123`` lacks nothing but ``kolk://``,
    and whoever writes there believes that others see it."""
    found = _BARE.fullmatch(path)
    if found is not None and not Path(path).exists():
        raise InvalidArgument(
            f"{path} looks like the address of a server, which is kolk://{found['place']}; if you mean a new folder of"
            f" this name, write ./{path}"
        )


def url_of(scheme: str, host: str, port: int) -> str:
    """A host and a port as a URL, an IPv6 address in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
