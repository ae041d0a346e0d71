"""Errors whose text is safe to show: it names options and counts, never a record."""


class MechanismError(ValueError):
    """A setting or an input that a mechanism cannot work with; the text says what to do."""
