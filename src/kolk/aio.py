"""Kolk for asyncio: for services whose calls must not block their event loop.

    db = await kolk.aio.connect("kolk://127.0.0.1:9123")
    pages = await db.table("web.pages")
    row = await pages.get_one(page="/")

The same database under the same names, awaited; the work is done in ``kolk.client.aio``.
"""

import os
from functools import partial
from typing import Any

import kolk
from kolk.client.aio import AsyncDatabase, AsyncTable, open_database
from kolk.client.aio_lease import AsyncLease
from kolk.client.aio_streams import AsyncBootstrap, AsyncChangelog, AsyncScan
from kolk.client.aio_transaction import AsyncTransaction
from kolk.client.aio_writer import AsyncWriter

__all__ = [
    "AsyncBootstrap",
    "AsyncChangelog",
    "AsyncDatabase",
    "AsyncLease",
    "AsyncScan",
    "AsyncTable",
    "AsyncTransaction",
    "AsyncWriter",
    "connect",
]


async def connect(target: str | os.PathLike[str], **options: Any) -> AsyncDatabase:
    """Open a database as ``kolk.connect`` does; the options are the same."""
    return await open_database(partial(kolk.connect, target, **options))
