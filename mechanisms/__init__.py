"""Private mechanisms: each plans its noise, fits, and states the event that its claim follows from; and audits.

Knows no Prefect and no database. Names are imported at their first use, as torch takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechanisms.comparison import compare as compare
    from mechanisms.comparison import curve as curve
    from mechanisms.dp_sgd import DpSgd as DpSgd
    from mechanisms.errors import MechanismError as MechanismError
    from mechanisms.estimator import PrivateClassifier as PrivateClassifier
    from mechanisms.non_private import NonPrivate as NonPrivate
    from mechanisms.prior_descent import PriorDescent as PriorDescent
    from mechanisms.swag_ppm import SwagPpm as SwagPpm
    from mechanisms.tabular.bagging import Bagging as Bagging
    from mechanisms.tabular.bayes_table import BayesTable as BayesTable
    from mechanisms.tabular.ft_transformer import FtTransformer as FtTransformer
    from mechanisms.tabular.gem import Gem as Gem
    from mechanisms.tabular.objective_perturbation import ObjectivePerturbation as ObjectivePerturbation
    from mechanisms.tabular.plain_logistic import PlainLogistic as PlainLogistic
    from mechanisms.tabular.plain_trees import PlainTrees as PlainTrees
    from mechanisms.tabular.privbayes import PrivBayes as PrivBayes
    from mechanisms.tabular.weighted_descent import WeightedDescent as WeightedDescent

_FILES = {
    "Bagging": "tabular.bagging",
    "BayesTable": "tabular.bayes_table",
    "DpSgd": "dp_sgd",
    "FtTransformer": "tabular.ft_transformer",
    "Gem": "tabular.gem",
    "MechanismError": "errors",
    "NonPrivate": "non_private",
    "ObjectivePerturbation": "tabular.objective_perturbation",
    "PlainLogistic": "tabular.plain_logistic",
    "PlainTrees": "tabular.plain_trees",
    "PriorDescent": "prior_descent",
    "PrivBayes": "tabular.privbayes",
    "PrivateClassifier": "estimator",
    "SwagPpm": "swag_ppm",
    "WeightedDescent": "tabular.weighted_descent",
    "compare": "comparison",
    "curve": "comparison",
}
__all__ = [*_FILES]


def __getattr__(name: str) -> Any:
    """Imports a public name's file."""
    if name not in _FILES:
        raise AttributeError(f"module `mechanisms` has no attribute `{name}`")
    return getattr(importlib.import_module(f"mechanisms.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FILES})
