"""Modules that are imported for what they do when they are imported: register functions.

They are named by whoever starts a program, never by data. As with ``python -m`` the folder that the program was started
in is looked into first.
"""

import importlib
import os
import sys
from collections.abc import Iterable

from kolk.errors import InvalidArgument


def load_modules(names: Iterable[str]) -> None:
    """Import these modules; InvalidArgument, saying why, if one cannot be."""
    for name in names:
        folder = os.getcwd()
        if folder not in sys.path and "" not in sys.path:
            sys.path.insert(0, folder)
        try:
            importlib.import_module(name)
        except Exception as error:
            hint = "; is it installed, or in this folder?" if isinstance(error, ModuleNotFoundError) else ""
            raise InvalidArgument(
                f"the module {name!r} that is to be loaded cannot be imported: {error!r}{hint}"
            ) from error
