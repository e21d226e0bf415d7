"""Bytes to values and back, pure and vectorised. Each module's docstring is the specification of its format."""
