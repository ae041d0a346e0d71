"""What a person imports: `from autocoder import PrivateClassifier, open_bundle`.

Holds no code of its own but `open_bundle`; each name is imported at its first use, as torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from deployments import VERSION as __version__

if TYPE_CHECKING:
    from autocoder.bundles import open_bundle as open_bundle
    from mechanisms import DpSgd as DpSgd
    from mechanisms import MechanismError as MechanismError
    from mechanisms import NonPrivate as NonPrivate
    from mechanisms import PriorDescent as PriorDescent
    from mechanisms import PrivateClassifier as PrivateClassifier
    from mechanisms import SwagPpm as SwagPpm
    from mechanisms import compare as compare
    from mechanisms.own_models import swag_ppm as swag_ppm
    from mechanisms.privacy.events import Claim as Claim

_MODULES = {
    "Claim": "mechanisms.privacy.events",
    "DpSgd": "mechanisms",
    "MechanismError": "mechanisms",
    "NonPrivate": "mechanisms",
    "PriorDescent": "mechanisms",
    "PrivateClassifier": "mechanisms",
    "SwagPpm": "mechanisms",
    "compare": "mechanisms",
    "open_bundle": "autocoder.bundles",
    "swag_ppm": "mechanisms.own_models",
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module `autocoder` has no attribute `{name}`")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
