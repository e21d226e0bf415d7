"""A client of a server that keeps to no rule: it sends bytes as they are and tells what came back."""

import threading
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from kolk.client.address import Address
from kolk.client.deadlines import Deadlines
from kolk.client.retry import Deadline
from kolk.client.streams import Exchange, Stream, result, typed
from kolk.errors import KolkError
from kolk.runtime.clock import SystemClock
from kolk.runtime.threads import start_thread
from kolk.wire import messages as m

ANSWER_SECONDS = 20.0
"""An answer that takes longer is a hang, on whatever machine."""
DESCRIPTOR = flight.FlightDescriptor.for_command(b"kolk")


class Attacker:
    """Sends messages, actions and tickets. Every answer is None, for success, or the error that it means.

    Confined to one thread. A context manager.
    """

    def __init__(self, url: str) -> None:
        self.address = Address.parse(url)
        self.figures: dict[str, int] = {}
        """What the attack cost others, for ``write_figures``."""
        self.client = flight.FlightClient(url.replace("kolk", "grpc+tcp", 1))
        self._clock = SystemClock()
        self._deadlines = Deadlines(self._clock, partial(start_thread, name="deadlines"), lambda: None)
        self._exchange: Exchange | None = None

    def call(self, message: bytes) -> KolkError | None:
        """Send a message over an exchange; after an error the server ends it, and the next call opens another one."""
        try:
            self._asked(pa.py_buffer(message))
        except Exception as error:  # noqa: BLE001 - it is the answer
            self._exchange = None
            return typed(error, self.address)
        return None

    def open_scan(self, asked: m.OpenScan) -> m.ScanRecord:
        """Open a scan as somebody would who means no harm, yet."""
        return m.as_record(self._asked(m.join(asked)), m.ScanRecord)

    def _asked(self, message: pa.Buffer) -> Any:
        deadline = Deadline(self._clock, ANSWER_SECONDS)
        if self._exchange is None:
            writer, reader = self.client.do_exchange(DESCRIPTOR)
            self._exchange = Exchange(writer, reader, self._deadlines, self.address)
        self._exchange.send(message, deadline)
        return self._exchange.receive(deadline)[0]

    def act(self, body: bytes) -> KolkError | None:
        """Send an action."""
        options = flight.FlightCallOptions(timeout=ANSWER_SECONDS)
        try:
            (reply,) = self.client.do_action(flight.Action("kolk", body), options)
            result(m.decode_answer(reply.body))
        except Exception as error:  # noqa: BLE001 - it is the answer
            return typed(error, self.address)
        return None

    def stream(self, ticket: bytes, pages: int = 2) -> KolkError | None:
        """Ask for a stream, and read a few of its pages."""
        stream = None
        try:
            stream = self.open_stream(ticket)
            for _ in range(pages):
                if stream.next(ANSWER_SECONDS) is None:
                    break
        except Exception as error:  # noqa: BLE001 - it is the answer
            return typed(error, self.address)
        finally:
            if stream is not None:
                stream.cancel()
        return None

    def open_stream(self, ticket: bytes) -> Stream:
        """Ask for a stream, and read nothing of it."""
        exchange = Exchange(*self.client.do_exchange(DESCRIPTOR), self._deadlines, self.address)
        return Stream(exchange, m.framed(ticket), Deadline(self._clock, ANSWER_SECONDS))

    def idle_exchange(self) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader]:
        """An exchange that is open and on which nothing is sent."""
        writer, reader = self.client.do_exchange(DESCRIPTOR)
        writer.begin(pa.schema([]))
        return writer, reader

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._exchange is not None:
            self._exchange.end()
        self._deadlines.close()
        self.client.close()


def end(writer: flight.FlightStreamWriter, reader: flight.FlightStreamReader) -> None:
    """Let an exchange go, whatever state it is in."""
    reader.cancel()
    with suppress(Exception):
        writer.close()


class Ticks:
    """Looks again and again until something is so; False if it never is."""

    def __init__(self, seconds: float, every: float = 0.05) -> None:
        self._looks = round(seconds / every)
        self._every = every
        self._pause = threading.Event()

    def until(self, is_so) -> bool:
        for _ in range(self._looks):
            if is_so():
                return True
            self._pause.wait(self._every)
        return False
