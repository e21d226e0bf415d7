"""How many files this process may have open, raised as far as the system lets us.

A bucket has about eight. Systems commonly start a process with 1,024 and allow it far more for the asking, which is
what databases do.
"""

import resource

WANTED = 65_536


def file_handles() -> int:
    """The number of files that this process may have open from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return WANTED
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        return soft
    return wanted
