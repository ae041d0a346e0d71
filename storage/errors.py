"""Defines errors whose text is safe to show: it names files, columns, rows and options, never a record's content."""


class StorageError(Exception):
    """Reports stored data that is missing, damaged, locked or full; the text says what to do."""


class InputError(StorageError):
    """Reports a fault in the user's input; the text names the file, column, row or option and what to do."""
