"""Keeps files that this process makes from being written by anyone."""

from __future__ import annotations

import os


def forbid_other_writers() -> None:
    """Sets the usual umask where the process has one that lets every user write its files.

    One that shares with a group stays: storage may belong to several users.
    """
    before = os.umask(0o022)
    # guard: test_a_umask_that_lets_everyone_write
    if before & 0o002:
        os.umask(before)
