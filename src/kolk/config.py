"""Settings: numbers and words that a user may tune, frozen and checked once.

Components (clock, disk, random numbers) are not settings; they are constructor arguments. Every setting says
why one would change it. The defaults need no thought.
"""

import ipaddress
import os
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from kolk.errors import InvalidArgument

MIB = 2**20
PUT_BYTES_LIMIT = 1024 * MIB
"""Arrow addresses 2 GiB in one array, and a put meets the rows that are stored."""
_WHOLE_MAX = 2**63 - 1
_SECONDS_MAX = 100 * 365 * 86_400
"""Moments so far from now can still be shown, and waited for."""


class Durability(Enum):
    """What an acknowledged put survives."""

    PROCESS = "process"
    """The end of the process, kill -9 included, but not a power cut: nothing is synced. For tests."""
    MACHINE = "machine"
    """A power cut: the log is synced before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one database in one process."""

    durability: Durability = Durability.MACHINE
    """What acknowledged puts survive. ``process`` is faster and only for what can be made again."""
    log_segment_bytes: int = 128 * MIB
    """Size of a log file. Smaller files are trimmed sooner; recovery verifies the last one."""
    kv_block_cache_bytes: int = 256 * MIB
    """Memory for blocks read from disk, shared by all buckets. More makes lookups in large tables quicker."""
    kv_write_buffer_bytes: int = 256 * MIB
    """Memory for rows not yet flushed, shared by all buckets. It bounds what a restart replays."""
    log_pinned_max_bytes: int = 64 * 1024 * MIB
    """Most log that all followers, leases and owners together may keep beyond its time. Above it whoever keeps the most
    loses it; an owner is taken back to its last commit first."""
    follower_ttl_seconds: float = 7 * 86_400.0
    """How long a follower that is not used holds the log. Longer survives longer outages, and takes more disk."""
    put_rows_max: int = 1_000_000
    """Most rows in one put. A put is one atomic frame per bucket and is held in memory several times over."""
    put_bytes_max: int = 256 * MIB
    """Most Arrow bytes in one put."""
    buckets_open_max: int = 512
    """Most buckets that are open while nobody uses them; each takes a third of a megabyte and some file handles."""
    bucket_idle_seconds: float = 900.0
    """After how long without use a bucket is closed, unless it is among the 64 used last."""
    partitions_max: int = 1_000
    """Most partitions of one table (Fluss: ``max.partition.num``). Each has a folder and buckets of its own."""
    scan_page_rows: int = 16_384
    """Most rows per batch of a scan. Smaller batches let lookups in between sooner."""
    scan_page_bytes_max: int = 10 * MIB
    """Most bytes per page of a scan, whatever a client asks for (Fluss: ``kv.scanner.max-batch-size``)."""
    scan_ttl_seconds: float = 60.0
    """How long a scan over the network that nobody reads is kept (Fluss: ``kv.scanner.ttl``), unless it names a time of
    its own. Its rows stay on disk meanwhile. Scans within the process are kept as long as somebody has them."""
    scan_shared_ttl_seconds: float = 600.0
    """The same of a scan that is shared: its readers may come late."""
    scan_ttl_seconds_max: float = 86_400.0
    """The longest time that a scan may name."""
    scans_per_bucket_max: int = 8
    """Most scans of one bucket at the same time (Fluss: ``kv.scanner.max-per-bucket``)."""
    scans_max: int = 200
    """Most scans at the same time (Fluss: ``kv.scanner.max-per-server``); one of a whole table counts as one."""
    scan_views_max: int = 8_192
    """Most buckets that all scans together have pinned. Each takes a few kilobytes, and what is written meanwhile."""
    kv_snapshot_interval_seconds: float = 600.0
    """How often the rows that changed are copied into a snapshot (Fluss: ``kv.snapshot.interval``). More often makes a
    lost folder come back sooner, and copies more."""
    kv_snapshot_num_retained: int = 2
    """How many snapshots of a bucket are kept (Fluss: ``kv.snapshot.num-retained``), besides those that are leased."""
    lease_ttl_seconds_min: float = 1.0
    """The shortest time that a lease may name."""
    lease_ttl_seconds_max: float = 7 * 86_400.0
    """The longest time that a lease may name: what nobody renews is let go after it."""
    leases_max: int = 1_000
    """Most leases at the same time."""
    lease_pins_max: int = 200_000
    """Most buckets that one lease holds snapshots of."""
    owner_abandon_seconds: float = 86_400.0
    """How long after its time an owner of columns is waited for, before what it has not committed is taken back and its
    columns are free (``column-lock.abandon-after``)."""
    owner_retention_seconds: float = 365 * 86_400.0
    """How long an owner that has let its columns go, with nothing left uncommitted, is remembered: one that comes back
    later is taken for a new one."""
    owners_per_table_max: int = 1_000
    """Most owners that are remembered of one table, whether they have columns now or not. Every put looks at those that
    have."""
    owners_max: int = 10_000
    """Most owners that are remembered in all, each with up to 64 KiB of state in memory. Above it new ones are refused;
    none is forgotten before its time."""
    txn_open_ttl_seconds: float = 600.0
    """How long rows that are being staged for a transaction are kept after their client was last heard of. One that
    lives keeps them every minute."""
    txn_staging_ttl_seconds: float = 86_400.0
    """How long staged rows wait for their commit."""
    txn_open_max: int = 512
    """Most handles that rows are being staged under at the same time. Each is an open file."""
    txn_handles_max: int = 100_000
    """Most handles at the same time, sealed ones included. Each is a file until it is committed."""
    txn_staging_bytes_max: int = 16 * 1024 * MIB
    """Most bytes that are staged for transactions at the same time."""
    txn_app_bytes_max: int = 4 * 1024 * MIB
    """Most of them of one application."""
    txn_bytes_max: int = 1024 * MIB
    """Most bytes that one transaction has staged when it is committed. It is merged in memory, which takes about seven
    times as much."""
    txn_app_retention_seconds: float = 365 * 86_400.0
    """How long the last version of an application is remembered after it was committed: an application that comes back
    later is taken for a new one."""
    txn_apps_max: int = 100_000
    """Most applications that are remembered. Above it new ones are refused; none is forgotten before its time. Of names
    that were drawn for one write there may be as many besides; above that the oldest go."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "durability", _durability(self.durability))
        _check_numbers(self)
        if self.put_bytes_max > PUT_BYTES_LIMIT:
            raise InvalidArgument(f"put_bytes_max is at most {PUT_BYTES_LIMIT:,}, not {self.put_bytes_max:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of one server. The files of TLS are read once, when it starts."""

    host: str = "127.0.0.1"
    """Where to listen. Anywhere but on this machine itself needs TLS, and a token or client certificates."""
    port: int = 9123
    """The port for clients; 0 takes a free one."""
    http_port: int = 9124
    """The port for health and metrics, on the same host; 0 takes a free one, -1 none."""
    tls_cert: str | None = None
    """File with the server's certificate chain (PEM). With it every connection is encrypted."""
    tls_key: str | None = None
    """File with the private key of ``tls_cert`` (PEM)."""
    tls_client_ca: str | None = None
    """File with the authority (PEM) that every client's certificate must come from: mutual TLS."""
    allow_plaintext: bool = False
    """Listen beyond this machine without TLS, tokens still required: only where something else encrypts."""
    streams_max: int = 512
    """Most calls and streams at the same time. Each holds a thread; further ones are answered Busy."""
    streams_per_principal: int = 256
    """The share of these that one principal may take, so that others always find room."""
    message_bytes_max: int = 64 * MIB
    """Most bytes in one message of a client. A larger put goes in pieces."""
    puts_bytes_max: int = 256 * MIB
    """Most bytes of puts that are served at the same time; further ones wait."""
    puts_wait_seconds: float = 10.0
    """How long a put waits for its turn before it is answered Busy."""
    disk_used_max: float = 0.95
    """Share of the disk in use above which puts are refused; reads go on."""
    backup_folder: str | None = None
    """Folder in which clients that may alter all tables make backups, each under a name of its own (`db.backup`).
    Without it they make none."""
    drain_seconds: float = 10.0
    """How long a server that was told to stop lets calls that run finish."""
    load: tuple[str, ...] = ()
    """Python modules to import when the server starts, such as those that call `kolk.register_aggregate`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "load", modules_of(self.load))
        for name in ("tls_cert", "tls_key", "tls_client_ca", "backup_folder"):
            object.__setattr__(self, name, _path(name, getattr(self, name)))
        if not isinstance(self.host, str) or not self.host:
            raise InvalidArgument(f"host is a name or an address, such as '127.0.0.1', not {self.host!r}")
        _check_numbers(self)
        if not 0 < self.disk_used_max <= 1:
            raise InvalidArgument(f"disk_used_max is a share between 0 and 1, not {self.disk_used_max!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("tls_cert and tls_key go together; give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidArgument("tls_client_ca asks clients for certificates, which needs tls_cert and tls_key")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether this host is this machine, and no other can be meant."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_numbers(config: EngineConfig | ServerConfig) -> None:
    """Whole numbers are positive, but a port may also be 0 or, where there need be none, -1."""
    for field in fields(config):
        value, wanted = getattr(config, field.name), type(field.default)
        if wanted is bool and not isinstance(value, bool):
            raise InvalidArgument(f"{field.name} is true or false, not {value!r}")
        if wanted in (int, float):
            _check_number(field.name, value, whole=wanted is int)


def _check_number(name: str, value: Any, *, whole: bool) -> None:
    kinds = int if whole else int | float
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if name.endswith("port"):
        least = -1 if name == "http_port" else 0
        if not is_number or not least <= value <= 65_535:
            raise InvalidArgument(f"{name} is a number from {least} to 65535, not {value!r}")
    elif not is_number or not 0 < value <= (_WHOLE_MAX if whole else _SECONDS_MAX):  # NaN is not within either
        limit = f" of at most {_SECONDS_MAX:,}" if name.endswith("seconds") else ""
        raise InvalidArgument(f"{name} is a positive {'whole ' if whole else ''}number{limit}, not {value!r}")


def _path(name: str, given: Any) -> str | None:
    """A path in any of its forms, as text."""
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise InvalidArgument(f"{name} is the path of a {'folder' if 'folder' in name else 'file'}, not {given!r}")
    return os.fsdecode(given)


def modules_of(given: object) -> tuple[str, ...]:
    """One may be given by itself, and TOML has lists."""
    listed = [given] if isinstance(given, str) else given
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list | tuple) else []
    if not isinstance(listed, list | tuple) or len(names) < len(listed):
        raise InvalidArgument(f"load is a list of names of Python modules, not {given!r}")
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidArgument(f"load: {name!r} is not the name of a Python module, such as my_aggregates")
    return tuple(names)


def _durability(given: object) -> Durability:
    """People write the word."""
    words = {level.value: level for level in Durability}
    if isinstance(given, Durability):
        return given
    if not isinstance(given, str) or given not in words:
        raise InvalidArgument(f"durability is one of {', '.join(words)}, not {given!r}")
    return words[given]
