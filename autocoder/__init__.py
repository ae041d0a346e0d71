"""The public names of the package: `from autocoder import PrivateClassifier, open_bundle`.

Each name is imported when it is first used, because importing torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from deployments import VERSION as __version__

if TYPE_CHECKING:
    from autocoder.bundles import open_bundle as open_bundle
    from mechanisms.audit.bounds import Guesses as Guesses
    from mechanisms.audit.bounds import one_run_bound as one_run_bound
    from mechanisms.comparison import compare as compare
    from mechanisms.dp_sgd import DpSgd as DpSgd
    from mechanisms.errors import MechanismError as MechanismError
    from mechanisms.estimator import PrivateClassifier as PrivateClassifier
    from mechanisms.fit_module import swag_ppm as swag_ppm
    from mechanisms.model.config import OptimiserPhase as OptimiserPhase
    from mechanisms.non_private import NonPrivate as NonPrivate
    from mechanisms.prior_descent import PriorDescent as PriorDescent
    from mechanisms.privacy.events import Claim as Claim
    from mechanisms.swag_ppm import SwagPpm as SwagPpm

_MODULES = {
    "Claim": "mechanisms.privacy.events",
    "DpSgd": "mechanisms.dp_sgd",
    "Guesses": "mechanisms.audit.bounds",
    "MechanismError": "mechanisms.errors",
    "NonPrivate": "mechanisms.non_private",
    "OptimiserPhase": "mechanisms.model.config",
    "PriorDescent": "mechanisms.prior_descent",
    "PrivateClassifier": "mechanisms.estimator",
    "SwagPpm": "mechanisms.swag_ppm",
    "compare": "mechanisms.comparison",
    "one_run_bound": "mechanisms.audit.bounds",
    "open_bundle": "autocoder.bundles",
    "swag_ppm": "mechanisms.fit_module",
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module `autocoder` has no attribute `{name}`")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from tasks.running.installation import refusal_of

        refusal = refusal_of(error)
        if refusal is None:
            raise
        raise ModuleNotFoundError(f"`{name}`: {refusal}", name=error.name) from error


def __dir__() -> list[str]:
    return sorted(__all__)
