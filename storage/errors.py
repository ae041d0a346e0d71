"""Errors whose text is safe to show: it names files, columns, rows and options, never a record's content."""


class StorageError(Exception):
    """Something kept is missing, damaged, locked or full; the text says what to do."""


class InputError(StorageError):
    """The user's input is at fault; the text names the file, column, row or option and what to do."""
