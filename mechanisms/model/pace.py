"""When a fit writes a checkpoint: by time, not by epoch.

A checkpoint of a whole encoder with its optimiser is a gigabyte, for which the fit waits until the
disk has confirmed it. One per epoch would be a hundred gigabytes in a fit that resumes once, if at
all.
"""

import time

CHECKPOINT_SECONDS = 300.0
"""Least time between two checkpoints of a fit. An interruption costs this much work and an
epoch.
"""


class Pace:
    """Says when the next checkpoint is due: `seconds` after the last one, or after the start.

    >>> Pace(0).is_due(), Pace(3600).is_due()
    (True, False)
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._seconds

    def restart(self) -> None:
        """Counts from now, when a checkpoint has been written."""
        self._last = time.monotonic()
