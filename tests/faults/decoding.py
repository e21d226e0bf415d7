"""A process that feeds damaged messages to what serves requests, without a network between: most of them, at speed.

Run as ``python -m tests.faults.decoding FOLDER SEED MESSAGES HEADS``. It prints how often each error was the answer;
whatever is no typed error stops it. It is a process of its own because what is tested here are crashes.
"""

import faulthandler
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
from tests.faults.mutations import Mutations
from tests.faults.targets import Targets

from kolk.client.database import Database
from kolk.config import EngineConfig
from kolk.engine.database import Engine
from kolk.errors import InternalError, KolkError
from kolk.model.grant import EVERYONE
from kolk.runtime.disk import OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.server.api import SIGN_OF_LIFE, Api
from kolk.server.watch import Served
from kolk.wire import messages as m
from kolk.wire.rows import encode_rows


class Server:
    """What a transport does with bytes that came."""

    def __init__(self, engine: Engine) -> None:
        self._api = Api(engine, dict)

    def call(self, message: bytes) -> None:
        """Serve a message of an exchange."""
        head, rows = m.split(pa.py_buffer(message))
        call = m.decode_call(head)
        if isinstance(call, m.Get):
            encode_rows(self._api.get(EVERYONE, call, rows, Served("Get", 0.0)))
        else:
            self._api.put(EVERYONE, call, rows, Served("Put", 0.0))

    def act(self, body: bytes) -> None:
        """Serve an action."""
        msgspec.msgpack.encode(self._api.act(EVERYONE, m.decode_action(body), Served("Action", 0.0)))

    def stream(self, ticket: bytes) -> None:
        """Serve a ticket: what comes before the first wait."""
        _, schema, pages = self._api.stream(EVERYONE, m.decode_ticket(ticket))
        try:
            for place, (batch, page) in enumerate(pages):
                assert batch.schema.equals(schema)
                m.encode(page)
                if place == 2 or (place and page is SIGN_OF_LIFE):
                    break
        finally:
            pages.close()


def feed(serve: Callable[[bytes], None], draw: Callable[[], bytes], count: int, answers: Counter[str]) -> None:
    """Serve so many damaged requests."""
    for _ in range(count):
        request = draw()
        try:
            serve(request)
            answers["served"] += 1
        except Exception as error:
            if isinstance(error, InternalError) or not isinstance(error, KolkError):
                print(f"the request was {request!r}", file=sys.stderr)
                raise
            answers[type(error).__name__] += 1


def main() -> None:
    faulthandler.enable()
    folder, seed, messages, heads = sys.argv[1:]
    engine = Engine(Folder(Path(folder), OsDisk()), EngineConfig(durability="process"))
    with Database(engine, engine.close, Rng()) as db:
        targets, server, answers = Targets.make(db), Server(engine), Counter[str]()
        feed(server.call, Mutations(int(seed), targets.messages()).message, int(messages), answers)
        feed(server.act, Mutations(int(seed), targets.actions()).head, int(heads), answers)
        # A stream that waits for changes does so for a second, so there are fewer of them.
        feed(server.stream, Mutations(int(seed), targets.tickets()).head, int(heads) // 4, answers)
        targets = Targets.make(db)
        assert db.table("rows").get(targets.keys).num_rows == targets.keys.num_rows
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
