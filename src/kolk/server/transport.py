"""Arrow Flight: the one port that clients talk to.

- Actions are requests without rows. Each is one message and one answer; errors are answers too.
- Exchanges are requests with rows: a persistent stream of messages, each answered in order. After an error nothing more
  is served, so that what a client had already sent behind a failed put is not applied before its retry.
- Tickets are changelogs and large scans: an exchange whose only message asks for a stream of batches. Not Flight's own
  ``DoGet``, which waits for the server before there is anything that a client could cancel.

Messages of an exchange travel beside an empty schema, as Flight's application metadata, and not as Flight data: what is
sent as Flight data is decoded before anybody can look at it. A stream with any other schema is refused before its
first batch. Flight gives every call a thread and cannot interrupt one that waits for its client, so calls are counted
(``admission``), and whoever waits for the engine looks up now and then whether the client is still there.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, cast

import pyarrow as pa
import pyarrow.flight as flight

from kolk.errors import AccessDenied, Busy, Closed, InvalidArgument, KolkError, PartialPut, TooLarge
from kolk.model.grant import Principal
from kolk.server.access import Access
from kolk.server.admission import SHUTTING_DOWN, DiskGuard, PutBudget, Streams
from kolk.server.api import SIGN_OF_LIFE, Api
from kolk.server.watch import Served, Watch
from kolk.wire import messages as m
from kolk.wire import transactions as t
from kolk.wire.rows import encode_rows, encode_schema
from kolk.wire.status import encode_error

EMPTY = pa.schema([])
_ERROR_BYTES_MAX = 2_000
"""An error of a stream travels in a header, which has 8 KiB, and grows by a third on its way."""
_MIDDLEWARE = "kolk"
_STREAM_KINDS = {m.ReadScan: "scan", m.Follow: "follow"}
_SERVED = (flight.FlightMethod.DO_ACTION, flight.FlightMethod.DO_EXCHANGE)
"""To calls of other methods Flight would answer with a traceback of ours."""


class Transport(flight.FlightServerBase):
    """Listens, from construction on, until ``shutdown``."""

    def __init__(
        self,
        location: str,
        api: Api,
        access: Access,
        streams: Streams,
        budget: PutBudget,
        commits: PutBudget,
        disk: DiskGuard,
        watch: Watch,
        message_bytes_max: int,
        **tls: Any,
    ) -> None:
        self._api = api
        self._access = access
        self._streams = streams
        self._budget = budget
        self._commits = commits
        self._disk = disk
        self._watch = watch
        self._message_bytes_max = message_bytes_max
        super().__init__(location, middleware={_MIDDLEWARE: _Door(access, watch)}, **tls)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[pa.Buffer]:
        """Serve a request without rows."""
        principal = _principal(context)
        with self._watch.request("Action", principal.name) as served:
            answer = self._answer_action(principal, action.body, served)
        return [pa.py_buffer(m.encode(answer))]

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Serve requests with rows, one after the other, until the client goes or one fails."""
        principal = _principal(context)
        with _as_flight(), self._open("exchange", principal):
            _check_empty(reader)
            is_first = True
            for message in _messages(reader):
                ticket = _ticket(message) if is_first else None
                if ticket is not None:
                    return self._stream(context, principal, ticket, writer)
                if is_first:
                    writer.begin(EMPTY)
                    is_first = False
                answer = self._answer_call(principal, message)
                writer.write_metadata(m.join(*answer))
                if answer[0].error is not None:
                    return _discard(reader)
            return None

    def _answer_action(self, principal: Principal, body: pa.Buffer, served: Served) -> m.Answer:
        try:
            with self._streams.one(principal.name), self._streams.working():
                action = m.decode_action(body)
                served.method = type(action).__name__
                with self._admitted(action):
                    return m.Answer(result=self._api.act(principal, action, served))
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            return m.Answer(error=encode_error(self._failed(served, error)))

    def _answer_call(self, principal: Principal, message: pa.Buffer) -> tuple[m.Answer, pa.Buffer | None]:
        with self._watch.request("Call", principal.name) as served:
            try:
                with self._streams.working():
                    self._access.check(principal)
                    return self._call(principal, message, served)
            except Exception as error:  # noqa: BLE001 - every failure is an answer
                return m.Answer(error=encode_error(self._failed(served, error))), None

    def _call(self, principal: Principal, message: pa.Buffer, served: Served) -> tuple[m.Answer, pa.Buffer | None]:
        if message.size > self._message_bytes_max:
            raise TooLarge(
                f"a message takes at most {self._message_bytes_max:,} bytes, this one has {message.size:,};"
                " send it in pieces"
            )
        head, rows = m.split(message)
        call = m.decode_call(head)
        served.method = type(call).__name__
        if isinstance(call, m.OpenScan | m.NextPage):
            return self._scan_call(principal, call, served)
        if isinstance(call, m.Get):
            found = self._api.get(principal, call, rows, served)
            if found.nbytes > self._message_bytes_max:
                raise TooLarge(
                    f"the rows found have {found.nbytes:,} bytes, and an answer at most {self._message_bytes_max:,};"
                    " ask for fewer at once, or scan"
                )
            return m.Answer(result=encode_schema(found.schema)), encode_rows(found)
        self._disk.check()
        with self._budget.take(message.size):
            served.wait_seconds, served.size_bytes = self._watch.seconds_since(served), message.size
            return m.Answer(result=self._api.write(principal, call, rows, served)), None

    @contextmanager
    def _admitted(self, action: m.Action) -> Iterator[None]:
        """A commit writes what was staged, and merges it in memory: it waits for its turn like a put, not among them,
        because it may take long."""
        if not isinstance(action, t.Commit):
            yield
            return
        self._disk.check()
        with self._commits.take(self._api.transactions.weight(action)):
            yield

    def _scan_call(
        self, principal: Principal, call: m.OpenScan | m.NextPage, served: Served
    ) -> tuple[m.Answer, pa.Buffer | None]:
        scanning = self._api.scanning
        ask = scanning.open if isinstance(call, m.OpenScan) else scanning.next_page
        info, (answer, rows) = ask(principal, call)  # pyright: ignore[reportArgumentType] - each has its own
        served.table = str(info.name)
        if rows is None:
            return m.Answer(result=answer), None
        self._watch.sent(served, rows.num_rows, rows.nbytes)
        return m.Answer(result=answer), encode_rows(rows)

    def _stream(
        self,
        context: flight.ServerCallContext,
        principal: Principal,
        ticket: m.Ticket,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Send pages until there are no more, or nobody takes them."""
        method = type(ticket).__name__
        with self._watch.request(method, principal.name) as served, self._watch.stream(_STREAM_KINDS[type(ticket)]):
            try:
                info, schema, pages = self._api.stream(principal, ticket)
                served.table = str(info.name)
                writer.begin(schema)
                with self._kept_running(ticket), closing(pages):
                    for batch, page in pages:
                        if context.is_cancelled():
                            return
                        self._access.check(principal)
                        if isinstance(ticket, m.Follow) and page is SIGN_OF_LIFE:
                            self._streams.refuse_if_draining()
                        self._watch.sent(served, batch.num_rows, batch.nbytes)
                        writer.write_with_metadata(batch, pa.py_buffer(m.encode(page)))
            except flight.FlightError:
                # A client that has gone is no failure: the write to it was. Flight may notice before the context does.
                return
            except Exception as error:
                if not context.is_cancelled():
                    raise self._failed(served, error) from error

    def _failed(self, served: Served, error: Exception) -> KolkError:
        """The error that the client is told: that a server which stops has closed its engine is no fault of it."""
        if self._streams.is_draining:
            error = _busy_if_closed(error)
        return served.fail(error)

    def _kept_running(self, ticket: m.Ticket) -> AbstractContextManager[None]:
        """A drain waits for scans; followers would go on for ever, and go on at the same place after a restart."""
        return self._streams.working() if isinstance(ticket, m.ReadScan) else nullcontext()

    @contextmanager
    def _open(self, kind: str, principal: Principal) -> Iterator[None]:
        with self._streams.one(principal.name), self._watch.stream(kind):
            yield


def _busy_if_closed(error: Exception) -> Exception:
    """The same for a put some of whose buckets were closed before they had it: it can be completed elsewhere."""
    if isinstance(error, PartialPut):
        failed = {bucket: _busy_if_closed(failure) for bucket, failure in error.failed.items()}
        return PartialPut(error.acknowledged, cast(dict[str, KolkError], failed), error.tag)
    return Busy(SHUTTING_DOWN) if isinstance(error, Closed) else error


class _Door(flight.ServerMiddlewareFactory):
    """Who is calling; whoever may not is turned away before anything of the call is read."""

    def __init__(self, access: Access, watch: Watch) -> None:
        self._access = access
        self._watch = watch

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[Any]]) -> "_Caller":
        if info.method not in _SERVED:
            raise flight.FlightServerError("Kolk does not serve this method of Flight; use kolk.connect")
        try:
            return _Caller(self._access.identify(_bearer(headers)))
        except AccessDenied as error:
            self._watch.refused(error)
            raise flight.FlightUnauthenticatedError(str(error)) from None


class _Caller(flight.ServerMiddleware):
    def __init__(self, principal: Principal) -> None:
        self.principal = principal


def _principal(context: flight.ServerCallContext) -> Principal:
    return context.get_middleware(_MIDDLEWARE).principal


def _bearer(headers: dict[str, list[Any]]) -> str | None:
    """The token of the authorization header; None without one."""
    for name, values in headers.items():
        if name.lower() == "authorization" and values:
            value = values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
            kind, _, token = value.partition(" ")
            return token.strip() if kind.lower() == "bearer" else ""
    return None


def _ticket(message: pa.Buffer) -> m.Ticket | None:
    """The request for a stream that a message holds; None if it is another one, or none."""
    try:
        return m.decode_ticket(m.split(message)[0])
    except KolkError:
        return None


def _check_empty(reader: flight.MetadataRecordBatchReader) -> None:
    """Refuse a stream of Flight data before its first batch, since reading that would decode it."""
    try:
        schema = reader.schema
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument("an exchange begins with an empty Arrow schema") from error
    if len(schema):
        raise InvalidArgument("an exchange has an empty Arrow schema; rows travel in its messages")


def _discard(reader: flight.MetadataRecordBatchReader) -> None:
    """Read on until the client ends the stream, and serve nothing: if we ended it while the client still sends, the
    transport would throw away the answer that says why."""
    deque(_messages(reader), maxlen=0)


def _messages(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.Buffer]:
    """The messages of an exchange, until the client ends it or goes away."""
    while True:
        try:
            chunk = reader.read_chunk()
        except (StopIteration, flight.FlightError):
            return
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument("an exchange carries messages of Kolk's protocol only") from error
        if chunk.app_metadata is None:
            raise InvalidArgument("an exchange carries messages of Kolk's protocol only")
        yield chunk.app_metadata


@contextmanager
def _as_flight() -> Iterator[None]:
    """Errors as Flight carries them: with the typed one inside."""
    try:
        yield
    except KolkError as error:
        text = str(error)
        if len(text.encode()) > _ERROR_BYTES_MAX:
            error.args = (f"{text.encode()[:_ERROR_BYTES_MAX].decode(errors='ignore')}…",)
        # The text is for those who use Flight itself; each character of it that is not ASCII takes up to twelve bytes.
        raise flight.FlightServerError(ascii(text[:200])[1:-1], encode_error(error)) from None
