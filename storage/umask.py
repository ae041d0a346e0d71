"""Prevents files created by this process from being writable by everyone."""

from __future__ import annotations

import os


def forbid_other_writers() -> None:
    """Sets the usual umask if the current one lets every user write the process's files.

    A umask that grants write access to a group is kept, because storage may belong to several
    users.
    """
    before = os.umask(0o022)
    # guard: test_a_umask_that_lets_everyone_write
    if before & 0o002:
        os.umask(before)
