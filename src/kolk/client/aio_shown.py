"""How the objects for asyncio show themselves: as what is behind them does, under the names that they have."""


def shown(inner: object) -> str:
    """``<kolk.Scan of ...>`` as ``<kolk.aio.AsyncScan of ...>``."""
    return repr(inner).replace("<kolk.", "<kolk.aio.Async", 1)
