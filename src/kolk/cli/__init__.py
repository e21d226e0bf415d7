"""The command line: ``kolk``. It is the only package that prints; it has no logic of the database of its own."""
