"""Private mechanisms: each plans its noise, fits, and states the event that its claim follows from; and audits.

Knows no Prefect and no database. Names are imported at their first use, as torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechanisms.comparison import compare as compare
    from mechanisms.dp_sgd import DpSgd as DpSgd
    from mechanisms.errors import MechanismError as MechanismError
    from mechanisms.estimator import PrivateClassifier as PrivateClassifier
    from mechanisms.non_private import NonPrivate as NonPrivate
    from mechanisms.prior_descent import PriorDescent as PriorDescent
    from mechanisms.swag_ppm import SwagPpm as SwagPpm

_FILES = {
    "DpSgd": "dp_sgd",
    "MechanismError": "errors",
    "NonPrivate": "non_private",
    "PriorDescent": "prior_descent",
    "PrivateClassifier": "estimator",
    "SwagPpm": "swag_ppm",
    "compare": "comparison",
}
__all__ = [*_FILES]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module `mechanisms` has no attribute `{name}`")
    return getattr(importlib.import_module(f"mechanisms.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FILES})
