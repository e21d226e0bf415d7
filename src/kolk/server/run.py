"""A server: an engine, its front and its health, put together, and taken apart in the order that loses nothing.

To stop means: take nothing new, let what runs finish, close the engine, and only then go. Flight cannot interrupt a
stream that waits for its client, so a process that serves ends without waiting for those; their clients connect again.
"""

import logging
import os
import resource
import shutil
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

import kolk
from kolk.client.address import url_of
from kolk.config import EngineConfig, ServerConfig
from kolk.engine.database import Engine
from kolk.engine.shared import ENGINES
from kolk.errors import InvalidArgument, KolkError, Unavailable
from kolk.runtime.clock import Clock, SystemClock
from kolk.runtime.folder import TOKENS_FILE
from kolk.runtime.modules import load_modules
from kolk.runtime.rng import Rng
from kolk.runtime.threads import start_thread
from kolk.server.access import Access
from kolk.server.admission import DiskGuard, PutBudget, Streams
from kolk.server.api import Api
from kolk.server.events import Events, log_to
from kolk.server.health import Health
from kolk.server.metrics import Metrics
from kolk.server.tokens import Tokens
from kolk.server.transport import Transport
from kolk.server.watch import Watch

_SHUTDOWN_SECONDS = 2.0
_TICK_SECONDS = 1.0
_SWITCH_SECONDS = 0.0005


class Server:
    """An engine that listens. A context manager; ``close`` is idempotent.

    It is given an engine and lets it go with ``release``; ``Server.open`` opens one.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        release: Callable[[], None],
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        disk_used: Callable[[], float] | None = None,
    ) -> None:
        self.config = config
        self._engine = engine
        self._release = release
        self._clock = clock or SystemClock()
        self._events = events or Events(logging.getLogger("kolk.server"))
        self._started = self._clock.monotonic()
        self._closed = False
        self.url = ""  # until it listens
        tokens = Tokens(engine.path / TOKENS_FILE, self._clock, Rng())
        _check_exposure(config, tokens, engine.path)
        tls = _tls(config)
        self._streams = Streams(config)
        self._disk = DiskGuard(disk_used or (lambda: _disk_used(engine.path)), config.disk_used_max, self._clock)
        self._access = Access(tokens, required=not (config.is_loopback or config.tls_client_ca))
        metrics = _metrics(engine)
        self._health = self._make_health(metrics)
        try:
            self._transport = _listen(
                config,
                lambda location: Transport(
                    location,
                    Api(engine, self.status, config.backup_folder),
                    self._access,
                    self._streams,
                    PutBudget(config),
                    PutBudget(config, "commit"),
                    self._disk,
                    Watch(metrics, self._events, self._clock),
                    config.message_bytes_max,
                    **tls,
                ),
            )
        except BaseException:
            if self._health is not None:
                self._health.close()
            raise
        self.url = url_of("kolk+tls" if tls else "kolk", config.host, self._transport.port)
        engine.announce(self.url)
        if self._health is not None:
            self._health.start()
        self._events.event(
            "server.started",
            url=self.url,
            http=self.http_url,
            durability=engine.config.durability.value,
            tokens=self._access.is_required,
            tls=bool(tls),
            client_certificates=config.tls_client_ca is not None,
        )

    @staticmethod
    def open(folder: Path, config: ServerConfig, engine_config: EngineConfig | None = None, **parts: Any) -> "Server":
        """Serve a folder; it is shared with connections to it within this process."""
        load_modules(config.load)
        engine = ENGINES.attach(folder, engine_config)
        try:
            return Server(engine, config, partial(ENGINES.detach, engine), **parts)
        except BaseException:
            ENGINES.detach(engine)
            raise

    @property
    def http_url(self) -> str | None:
        """Where health and metrics are."""
        scheme = "http" if self.config.tls_cert is None else "https"
        return None if self._health is None else url_of(scheme, self.config.host, self._health.port)

    def status(self) -> dict[str, Any]:
        """The server in plain values; nothing that is not for everybody."""
        return {
            "version": kolk.__version__,
            "url": self.url,
            **self._engine.status(),
            "uptime_seconds": round(self._clock.monotonic() - self._started, 1),
            "streams": self._streams.open,
            "disk_used": round(self._disk.used, 4),
            "ready": not self.reasons(),
        }

    def reasons(self) -> list[str]:
        """Why it is not ready to serve everything; empty if it is."""
        reasons: list[str] = []
        if self._streams.is_draining:
            reasons.append("the server is shutting down")
        if self._disk.is_full:
            reasons.append(f"puts are refused: the disk is {self._disk.used:.0%} full")
        if not self._engine.is_in_place:
            reasons.append("the data folder was moved or removed")
        try:
            self._access.check_readable()
        except KolkError as error:
            reasons.append(str(error))
        return reasons

    def tick(self) -> None:
        """What is due now and then: tell of events that were too many to be told one by one."""
        self._events.flush()

    def close(self) -> bool:
        """Drain and stop; whether nothing was cut off."""
        if self._closed:
            return True
        self._closed = True
        self._events.event("server.draining", seconds=self.config.drain_seconds)
        is_clean = self._streams.drain(self.config.drain_seconds)
        try:
            self._release()
        finally:
            if self._health is not None:
                self._health.close()
            # It waits for streams whose clients are idle, perhaps for ever, so somebody else waits for it.
            ended = start_thread(self._transport.shutdown, "kolk-shutdown")
            ended.join(_SHUTDOWN_SECONDS)
            self._events.event("server.stopped", clean=is_clean)
            self._events.flush()
        return is_clean and not ended.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _make_health(self, metrics: Metrics) -> Health | None:
        if self.config.http_port < 0:
            return None

        def render() -> bytes:
            metrics.disk_used(self._disk.used)
            return metrics.render()

        try:
            return Health(
                self.config.host,
                self.config.http_port,
                ready=self.reasons,
                status=self.status,
                metrics=render,
                authenticate=self._is_known,
                tls=_http_tls(self.config),
            )
        except Unavailable:
            # Whoever has this port most likely has that of the clients too, which is the one to tell of.
            _check_free(self.config)
            raise

    def _is_known(self, secret: str | None) -> bool:
        """Whether a token is good, where one is wanted. Beyond this machine one always is: here nobody is asked for a
        certificate."""
        try:
            return self._access.identify(secret).token_id is not None or self.config.is_loopback
        except KolkError:
            return False


def serve(folder: Path, config: ServerConfig, engine_config: EngineConfig | None = None) -> None:
    """Serve a folder until SIGTERM or SIGINT; for the main thread of a process that does nothing else."""
    logger = logging.getLogger("kolk")
    log_to(sys.stderr, logger)
    serve_until(folder, config, engine_config, stop=_stop_signal())


def serve_until(
    folder: Path,
    config: ServerConfig,
    engine_config: EngineConfig | None,
    on_ready: Callable[[Server], None] | None = None,
    *,
    stop: threading.Event,
) -> None:
    """Serve until ``stop`` is set, then end the process: without ceremony if clients keep idle streams open."""
    # Lookups wait for the lock of the interpreter behind scans; this is how long at most.
    sys.setswitchinterval(_SWITCH_SECONDS)
    _allow_many_files()
    server = Server.open(folder, config, engine_config)
    try:
        if on_ready is not None:
            on_ready(server)
        # In pieces, because a signal is only noticed between them on some systems.
        while not stop.wait(_TICK_SECONDS):
            server.tick()
    finally:
        is_clean = server.close()
    if not is_clean:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _allow_many_files() -> None:
    """An open bucket holds about seven files, and the usual limit of 1,024 is soft: raise it as far as we may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stop_signal() -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second one ends the process at once."""
    stop = threading.Event()

    def told(number: int, _: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    return stop


def _metrics(engine: Engine) -> Metrics:
    return Metrics(
        version=kolk.__version__,
        offsets=engine.open_offsets,
        scans=engine.scans.sessions.counts,
        snapshots=engine.keeping.snapshot_counts,
        leases=engine.keeping.lease_counts,
        transactions=engine.transactions.counts,
        owners=engine.owners.totals,
    )


def _check_exposure(config: ServerConfig, tokens: Tokens, folder: Path) -> None:
    """Whoever can reach a server must be told apart from strangers, and must not be overheard."""
    if config.is_loopback:
        return
    if config.tls_cert is None and not config.allow_plaintext:
        raise InvalidArgument(
            f"{config.host} can be reached by other machines, which needs TLS: give --tls-cert and --tls-key"
            " (docs/security.md shows how to make them), or listen on 127.0.0.1"
        )
    if config.tls_client_ca is None and not tokens.any:
        raise InvalidArgument(
            f"{config.host} can be reached by other machines, and anybody there could read and write: make a token"
            f" first, `kolk token create {folder} --name me --allow '*=all'`, or ask for client certificates with"
            " --tls-client-ca"
        )


def _tls(config: ServerConfig) -> dict[str, Any]:
    """The arguments that make Flight encrypt; none without certificates."""
    if config.tls_cert is None or config.tls_key is None:
        return {}
    tls: dict[str, Any] = {"tls_certificates": [(_read(config.tls_cert), _read(config.tls_key))]}
    if config.tls_client_ca is not None:
        tls |= {"verify_client": True, "root_certificates": _read(config.tls_client_ca)}
    return tls


def _http_tls(config: ServerConfig) -> ssl.SSLContext | None:
    """The same certificate for health and metrics; clients need none there, so that anything can probe."""
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"{config.tls_cert} and {config.tls_key} are no certificate and its key") from error
    return context


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"the file {path} cannot be read: {error.strerror}") from error


def _listen(config: ServerConfig, make: Callable[[str], Transport]) -> Transport:
    scheme = "grpc+tls" if config.tls_cert is not None else "grpc+tcp"
    try:
        return make(url_of(scheme, config.host, config.port))
    except (pa.ArrowException, OSError) as error:
        raise _taken(config, error) from error


def _check_free(config: ServerConfig) -> None:
    """Unavailable if nobody can listen for clients; nothing is left there."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        socket.create_server((config.host, config.port), family=family).close()
    except OSError as error:
        raise _taken(config, error) from error


def _taken(config: ServerConfig, error: Exception) -> Unavailable:
    return Unavailable(
        f"cannot listen on {config.host}:{config.port} ({error}); is the port taken? Choose another one,"
        " or 0 for a free one"
    )


def _disk_used(folder: Path) -> float:
    """As ``df`` counts it: what is kept for root is nobody's."""
    usage = shutil.disk_usage(folder)
    return usage.used / max(usage.used + usage.free, 1)
