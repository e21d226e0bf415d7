"""The public API, over one small service interface that an engine (or, later, a connection) serves."""
