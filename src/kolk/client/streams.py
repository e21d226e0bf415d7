"""Streams between a client and a server: requests with answers, puts in a pipeline, batches, changelogs.

Each waits under a deadline and turns what Flight raises into what it means. A stream is of no use after a failure: its
owner opens another one.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from kolk.client.address import Address
from kolk.client.deadlines import CLOSED_UNDERWAY, Deadlines
from kolk.client.retry import Deadline, Retry
from kolk.errors import (
    Closed,
    KolkError,
    PartialPut,
    PermissionDenied,
    TimedOut,
    Unauthenticated,
    Unreachable,
    UsedAfterFork,
)
from kolk.model.page import ChangelogPage, changelog_schema
from kolk.model.partition import PartitionEvent, after
from kolk.model.schema import Schema
from kolk.wire import messages as m
from kolk.wire.rows import read_answer
from kolk.wire.status import decode_error

T = TypeVar("T")
EMPTY = pa.schema([])
_NOTHING = m.Page()
_SILENCE_SECONDS = 15.0
"""A server that follows a changelog gives a sign of life every second; after this long it is taken for gone."""


class Exchange:
    """A persistent stream of requests and answers. Confined to one caller at a time; useless after a failure."""

    def __init__(
        self,
        writer: flight.FlightStreamWriter,
        reader: flight.FlightStreamReader,
        deadlines: Deadlines,
        address: Address,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._deadlines = deadlines
        self._address = address
        self._pid = os.getpid()
        self._begun = False

    def call(self, message: pa.Buffer, deadline: Deadline) -> tuple[Any, pa.Buffer]:
        """Send a request and wait for its answer."""

        def both() -> flight.FlightStreamChunk:
            self._write(message)
            return self._reader.read_chunk()

        return self._answered(self._within(deadline.seconds_left, both))

    def send(self, message: pa.Buffer, deadline: Deadline) -> bool:
        """Send a request, whose answer comes after those to the requests before. False if the server has ended the
        stream: its last answers, and why, can still be received."""
        return self._within(deadline.seconds_left, lambda: self._write(message))

    def receive(self, deadline: Deadline) -> tuple[Any, pa.Buffer]:
        """The next answer; raised if it is an error."""
        return self._answered(self.read(deadline.seconds_left))

    def read(self, seconds: float) -> flight.FlightStreamChunk:
        """The next thing that the server sends, whatever it is."""
        return self._within(seconds, self._reader.read_chunk)

    def end(self) -> None:
        """Let the stream go. Idempotent; a forked child leaves it to its parent."""
        if os.getpid() == self._pid:
            self._reader.cancel()
            with suppress(Exception):
                self._writer.close()

    def _write(self, message: pa.Buffer) -> bool:
        try:
            if not self._begun:
                self._writer.begin(EMPTY)
                self._begun = True
            self._writer.write_metadata(message)
        except (pa.ArrowException, OSError):
            return False
        return True

    def _answered(self, chunk: flight.FlightStreamChunk) -> tuple[Any, pa.Buffer]:
        try:
            head, rows = m.split(chunk.app_metadata)
            return result(m.decode_answer(head)), rows
        except BaseException:
            self.end()
            raise

    def _within(self, seconds: float, step: Callable[[], T]) -> T:
        if os.getpid() != self._pid:
            raise UsedAfterFork("this was opened before a fork; call kolk.connect in the child")
        with self._deadlines.within(seconds, self._reader.cancel) as guarded:
            try:
                done = step()
            except BaseException as error:
                self.end()
                if guarded.cut_off is not None:
                    raise guarded.cut_off from error
                if not isinstance(error, Exception):
                    raise
                raise typed(error, self._address) from error
            if guarded.cut_off is not None and done is False:
                raise guarded.cut_off
            return done


@dataclass(frozen=True, slots=True)
class Sent:
    """A put that has no answer, and the failures after which it may have been applied."""

    message: pa.Buffer
    lost: list[KolkError] = field(default_factory=list[KolkError])


class Pipeline:
    """Puts under way on one exchange, in order; those without an answer are sent again on the next one."""

    def __init__(self, exchange: Callable[[], Exchange]) -> None:
        self.waiting: deque[Sent] = deque()
        self._open = exchange
        self._exchange: Exchange | None = None
        self._sent = 0

    def send(self, deadline: Deadline) -> None:
        """Send what is not sent, as far as the server takes it."""
        if self._exchange is None:
            self._exchange, self._sent = self._open(), 0
        try:
            while self._sent < len(self.waiting) and self._exchange.send(self.waiting[self._sent].message, deadline):
                self._sent += 1
        except BaseException as error:
            self._break(error)
            raise

    def advance(self, deadline: Deadline) -> dict[str, int]:
        """Send what is not sent, and wait for the first answer."""
        self.send(deadline)
        assert self._exchange is not None
        try:
            offsets, _ = self._exchange.receive(deadline)
        except BaseException as error:
            self._break(error)
            raise
        self.waiting.popleft()
        self._sent -= 1
        return offsets

    def end(self) -> None:
        """Let the stream go; what has no answer may have been applied or not."""
        if self._exchange is not None:
            self._exchange.end()

    def _break(self, error: BaseException) -> None:
        """An answer is that to the first, and after an error nothing more is served. If there is none, each of them may
        have been applied."""
        self._exchange = None
        if isinstance(error, Closed) and self._sent:  # here, before anybody waited for the answers
            error = Unreachable(CLOSED_UNDERWAY)
        if isinstance(error, Unreachable | TimedOut):
            for each in self.waiting:
                each.lost.append(error)
        elif isinstance(error, PartialPut):
            self.waiting[0].lost.append(error)


class Stream:
    """Batches that a server streams, each with a page. Confined to one reader; ``cancel`` may come from anywhere."""

    def __init__(self, exchange: Exchange, ticket: pa.Buffer, deadline: Deadline) -> None:
        self._exchange = exchange
        exchange.send(ticket, deadline)

    def next(self, seconds: float) -> tuple[pa.RecordBatch, m.Page] | None:
        """The next batch; None at the end."""
        try:
            chunk = self._exchange.read(seconds)
        except Unreachable as error:
            if isinstance(error.__cause__, StopIteration):
                return None
            raise
        return chunk.data, m.decode_page(chunk.app_metadata)

    def cancel(self) -> None:
        """End the stream, also for a reader that waits."""
        self._exchange.end()


class ChangeStream:
    """See ``ChangePages``. Goes on at its offsets when the connection breaks."""

    def __init__(
        self,
        open_at: Callable[[Mapping[str, int], Deadline], Stream],
        starts: Mapping[str, int],
        retry: Retry,
        schema_of: Callable[[int], Schema],
    ) -> None:
        self._open_at = open_at
        self._schema_of = schema_of
        self._offsets = dict(starts)
        self._retry = retry
        self._stream: Stream | None = None
        self._closed = False

    def next(self, seconds: float) -> tuple[str, ChangelogPage] | PartitionEvent | None:
        """See ``ChangePages``; the server decides how long it waits, which is about a second."""
        if self._closed:
            return None
        try:
            found = self._retry.run(self._attempt)
        except KolkError:
            if self._closed:
                return None
            raise
        batch, page = (None, _NOTHING) if found is None else found
        if page.event is not None:
            self._offsets = after(page.event, self._offsets)
            return page.event
        if page.bucket is None:
            return None
        if page.rows:
            batch = self._of_another_version(page)
        self._offsets[page.bucket] = page.next_offset
        shown = batch if batch is not None and batch.num_rows else None
        return page.bucket, ChangelogPage(shown, page.next_offset, page.schema_id)

    def close(self) -> None:
        """See ``ChangePages``."""
        self._closed = True
        if self._stream is not None:
            self._stream.cancel()

    def _of_another_version(self, page: m.Page) -> pa.RecordBatch:
        """The changes of a page that are not of the stream's version: which one that is may have to be asked for."""
        try:
            schema = changelog_schema(self._schema_of(page.schema_id))
        except BaseException:
            # The page is taken from the stream and not handed out, so the next call reads it again.
            if self._stream is not None:
                self._stream.cancel()
                self._stream = None
            raise
        return read_answer(pa.py_buffer(page.rows), schema)

    def _attempt(self, deadline: Deadline) -> tuple[pa.RecordBatch, m.Page] | None:
        if self._closed:
            raise Closed("this changelog is closed")
        is_new = self._stream is None
        if self._stream is None:
            self._stream = self._open_at(self._offsets, deadline)
        try:
            # Only the opening has a deadline: signs of life come by the second, whatever the timeout of calls is.
            found = self._stream.next(deadline.seconds_left if is_new else _SILENCE_SECONDS)
        except TimedOut as error:
            self._stream = None
            raise Unreachable(str(error)) from error
        except KolkError:
            self._stream = None
            raise
        if found is None:
            self._stream = None
        return found


def result(answer: m.Answer) -> Any:
    """What an answer holds; raised if it is an error."""
    if answer.error is not None:
        raise decode_error(answer.error)
    return answer.result


def typed(error: Exception, address: Address) -> KolkError:
    """What a failure of Flight means."""
    if isinstance(error, KolkError):
        return error
    inside: bytes | None = getattr(error, "extra_info", None)
    if inside:
        return decode_error(inside)
    text = str(error).partition(". gRPC client debug context")[0].partition(". Detail: ")[0].partition("with message: ")
    said = text[2] or text[0]
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(said)
    if isinstance(error, flight.FlightUnauthorizedError):
        return PermissionDenied(said)
    if isinstance(error, flight.FlightTimedOutError):
        return TimedOut(f"{address} did not answer in time; retry, or give a longer timeout")
    if isinstance(error, StopIteration):
        said = "the server ended the connection"
    return Unreachable(
        f"{address} does not answer ({said}); is the server running there? `kolk serve FOLDER` starts one"
    )
