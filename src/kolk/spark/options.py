"""The options of the Spark source and sink: one table, read once at the edge.

Spark hands over a mapping of texts whose names it has put into small letters. Every name that Kolk knows is in
``OPTIONS``, from which the page of the docs is checked; a name that nobody knows is an error, since an option that is
silently passed over is a wrong result. Dashes and underlines do not count: ``exactly-once`` is ``exactlyOnce``.

Nothing here asks the server, so nothing here is checked against a table.
"""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kolk.errors import InvalidArgument
from kolk.model.durations import seconds_of


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name as people write it, who reads it, what it is when nobody says, and what it is for."""

    name: str
    used_by: str
    default: str
    text: str


_CONNECTION = (
    Option("url", "all", "`KOLK_URL`", "the server, such as `kolk://127.0.0.1:9123`"),
    Option("table", "all", "what `load()` was given", "the table, such as `web.pages`"),
    Option("token", "all", "`KOLK_TOKEN`", "who you are, where the server asks"),
    Option("tls-ca", "all", "", "a file with the authority of the server's certificate, on every machine of Spark"),
    Option("tls-cert", "all", "", "your own certificate, where the server wants one"),
    Option("tls-key", "all", "", "the key of your certificate"),
    Option("allow-plaintext", "all", "`false`", "send a token to another machine without TLS"),
    Option("timeout", "all", "`30s`", "how long a call to the server may take, with all its retries"),
)
_READ: tuple[Option, ...] = (
    Option("columns", "read", "all of them", "the columns to read, `page,pv`: others do not travel"),
    Option(
        "where",
        "read",
        "every row",
        "which rows, in SQL, decided by the server: `pv > 100 AND day = '2026-11-15'`; of changes, which partitions",
    ),
    Option("limit", "batch read", "every row", "so many rows at most; of a log table the last ones"),
    Option(
        "source",
        "batch read",
        "`live`",
        "what is read: the rows as they are now (`live`), the newest `snapshot`, the snapshots that a lease keeps"
        " (`lease:ID`), or the `changelog`",
    ),
    Option(
        "start",
        "read",
        "`full` of a stream, `earliest` of a changelog",
        'where changes begin: `earliest`, `latest`, a time as `2026-11-15T08:00:00Z`, or offsets, `{"0": 17}`; a stream'
        " also has `full` (all rows, then every change), and goes on where it was when it is restarted",
    ),
    Option("stop", "batch read", "`latest`", "where a changelog ends, which is no longer read: as `start`"),
    Option(
        "changes",
        "read",
        "`rows` of a stream, `cdc` of a changelog",
        "`cdc`: every change, with `_change_type`, `_commit_version`, `_commit_timestamp`, `_bucket`; `upserts`: the"
        " row that each change leaves or takes away, with `_change_type`; `rows`: the table's columns alone, and a"
        " deletion is an error",
    ),
    Option("parallelism", "read", "2 for each core of the driver", "the most tasks that read at once"),
    Option("cut-ttl", "batch read", "`10m`", "how long the server keeps what a query reads while nobody reads it"),
    Option("cut-linger", "batch read", "`2m`", "the same after all of it was read, for tasks that are tried again"),
)
_STREAM = (
    Option("maxRowsPerTrigger", "readStream", "all there is", "the most rows of a micro-batch"),
    Option("maxBytesPerTrigger", "readStream", "all there is", "about how many bytes a micro-batch has: an estimate"),
    Option("lease-ttl", "readStream", "`1h`", "how long a query may be down while it reads its first rows (`full`)"),
    Option("follower", "readStream", "a name of its own", "in whose name the query holds the log that it has to read"),
    Option(
        "dropped-partitions",
        "read",
        "`fail`",
        "what to do about a partition that was dropped before it was read: `fail`, or `ignore` what is lost",
    ),
)
_WRITE = (
    Option(
        "exactly-once",
        "write",
        "`transaction`",
        "`transaction` shows a batch once it is complete; `undo` shows rows at once, and takes back what fails",
    ),
    Option("columns", "write", "all", "a partial update of these columns; the others keep their values"),
    Option(
        "change-column",
        "write",
        "`_change_type`, if there is one",
        "the column that says what becomes of a row: `insert`, `update_postimage`, `delete` ..., `+I -U +U -D`, or true"
        " for rows to delete",
    ),
    Option("merge-mode", "write", "`accumulate`", "`overwrite` bypasses the merge engine; `merge_state` takes states"),
    Option(
        "preaggregate",
        "write",
        "`auto`",
        "let tasks aggregate rows before they are sent: `auto` if that halves them, `true` or `false`",
    ),
    Option("txnAppId", "write", "the query's id", "the name that versions are counted under; a batch write has none"),
    Option("txnVersion", "write", "the batch's id", "grows from write to write; one that was committed is passed over"),
    Option("txn.on-old", "write", "`fail`", "`drop` passes over a batch that is older than the last one committed"),
    Option("txn.on-different", "write", "`answer`", "`fail` if a batch comes again with other rows; the first stand"),
    Option(
        "new-query",
        "write",
        "`append`",
        "what the first batch of a new checkpoint does: `append` its rows, or `replace` all that are there, at once, as"
        " a full refresh of a pipeline wants; for a table that this query alone fills",
    ),
)
_UNDO = (
    Option(
        "owner",
        "write, undo",
        "`txnAppId`, else the `checkpointLocation`",
        "who locks the columns that are written, the same whenever the query starts",
    ),
    Option("lock-ttl", "write, undo", "`5m`", "how long the columns stay locked after the last task or batch"),
    Option("undo", "write, undo", "`always`", "`none` for columns that a replay does not change, such as max and min"),
)
OPTIONS = (*_CONNECTION, *_READ, *_STREAM, *_WRITE, *_UNDO)
OF_SPARK = {"path", "checkpointlocation", "queryname", "outputmode"}
"""What Spark adds by itself."""
EVERY_BATCH = "everybatch"
"""What ``kolk.spark.sink`` adds, which people do not write: that this is the write of a query that leaves no batch
out."""
_UNLISTED = {*OF_SPARK, EVERY_BATCH}
_OF_BATCHES, _OF_STREAMS = "batch read", "readStream"
_FLAGS = {"true": True, "false": False}
_WHICH_ROWS = ("where", "limit", "source", "start", "stop")
"""What says which rows are read, so that who gives it means these and no others."""


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_KNOWN = {_plain(option.name): option.name for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Options:
    """What somebody asked for, by the names of ``OPTIONS``. Frozen; goes to the workers of Spark as it is."""

    given: Mapping[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def parse(given: Mapping[str, str]) -> "Options":
        """The options as Spark hands them over; the environment of the driver says what they leave open."""
        found: dict[str, str] = {}
        for name, value in given.items():
            plain = _plain(name)
            if plain in _KNOWN:
                found[_KNOWN[plain]] = value
            elif plain in _UNLISTED:
                found[plain] = value
            else:
                near = difflib.get_close_matches(plain, _KNOWN, n=1)
                hint = f"did you mean {_KNOWN[near[0]]!r}?" if near else "docs/spark.md has the table of options"
                raise InvalidArgument(f"kolk has no option {name!r}; {hint}")
        for name, variable in (("url", "KOLK_URL"), ("token", "KOLK_TOKEN")):
            if name not in found and os.environ.get(variable):
                found[name] = os.environ[variable]
        if "table" not in found and found.get("path"):
            found["table"] = found["path"]
        return Options(found)

    def text(self, name: str) -> str | None:
        """A text; None if it was not given, or is empty."""
        return self.given.get(name) or None

    def required(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if value is None:
            example = {"url": "kolk://127.0.0.1:9123", "table": "web.pages"}.get(name, "...")
            raise InvalidArgument(f"say which {name}: .option({name!r}, {example!r})")
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names with commas between them; None if they were not given."""
        value = self.text(name)
        if value is None:
            return None
        return tuple(part.strip() for part in value.split(",") if part.strip())

    def number(self, name: str) -> int | None:
        """A whole number from 1 on; None if it was not given."""
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdecimal() or len(value) > 18 or int(value) < 1:
            raise InvalidArgument(f"the option {name!r} is a whole number from 1 on, not {value[:60]!r}")
        return int(value)

    def is_on(self, name: str, *, default: bool = False) -> bool:
        """A yes or a no."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _FLAGS:
            raise InvalidArgument(f"the option {name!r} is true or false, not {value[:60]!r}")
        return _FLAGS[value.lower()]

    def choice(self, name: str, words: Sequence[str]) -> str:
        """One of some words; the first of them if it was not given."""
        value = self.text(name)
        if value is None:
            return words[0]
        if value.lower() not in words:
            raise InvalidArgument(f"the option {name!r} is one of {', '.join(words)}, not {value[:60]!r}")
        return value.lower()

    def seconds(self, name: str, default: str) -> float:
        """A time, such as ``10m`` or a number of seconds."""
        return seconds_of(_duration(self.text(name) or default), f"the option {name!r}")


def check_read(options: Options, *, is_stream: bool) -> None:
    """Refuse what only the other kind of read looks at: who says where a stream stops would read past it."""
    own, other = (_OF_STREAMS, _OF_BATCHES) if is_stream else (_OF_BATCHES, _OF_STREAMS)
    for option in (*_READ, *_STREAM):
        value = options.text(option.name)
        if option.used_by != other or value is None:
            continue
        if option.name == "source" and value.lower() == "changelog":
            continue  # so it is, and it is read: a stream shows changes then in the form that a changelog has
        raise InvalidArgument(f"the option {option.name!r} is for a {other} alone, and this is a {own}: leave it out")


def option_named(name: str) -> str | None:
    """The option of Kolk that somebody names, however it is spelled; None if it is none."""
    return _KNOWN.get(_plain(name))


def passes_over_dropped(options: Options) -> bool:
    """Whether a read goes on without what a partition had that was dropped before it was read."""
    return options.choice("dropped-partitions", ("fail", "ignore")) == "ignore"


def replaces_first(options: Options) -> bool:
    """Whether the first batch of a query takes the place of all rows."""
    return options.choice("new-query", ("append", "replace")) == "replace"


def check_write(options: Options) -> None:
    """Refuse a write that is told which rows to read: one that passed over it would reach others than are meant, as an
    ``INSERT OVERWRITE`` through a view of some rows would replace all of them. What else a view says is no harm."""
    for name in _WHICH_ROWS:
        value = options.text(name)
        if value is not None and (name, value.lower()) != ("source", "live"):
            raise InvalidArgument(
                f"the option {name!r} says which rows are read, and a write reaches the whole table: write without it,"
                " in SQL through a view that has none, and choose what is written with df.where(...) and the like"
            )


def version_of(text: str, digits: int) -> int:
    """A ``txnVersion`` of at most so many digits."""
    if not text.isascii() or not text.isdecimal() or len(text) > digits:
        raise InvalidArgument(f"txnVersion is a whole number from 0 on, not {text[:60]!r}")
    return int(text)


def _duration(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
