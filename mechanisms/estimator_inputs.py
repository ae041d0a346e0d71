"""Validates the arguments of `PrivateClassifier` before texts are encoded. No message quotes a
cell.
"""

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Mechanism, kinds

_COLUMN = "Give one column, such as table['text']."


def mechanism_of(given: Any) -> Mechanism:
    """Resolves a mechanism instance, a class, or a name such as "dp-sgd". None means prior
    descent.
    """
    if given is None:
        given = "prior-descent"
    if isinstance(given, str):
        available = kinds()
        if given not in available:
            close = difflib.get_close_matches(given, available, n=1) or ["prior-descent"]
            raise MechanismError(
                f"mechanism: unknown mechanism. Did you mean {close[0]!r}?",
                kind="misspelled-mechanism",
            )
        given = available[given]
    if isinstance(given, type) and issubclass(given, Mechanism):
        given = given.model_validate({})
    if not isinstance(given, Mechanism):
        raise MechanismError(
            'mechanism: pass a name such as "dp-sgd", or a mechanism such as DpSgd().',
            kind="unknown-mechanism",
        )
    if "features" not in given.reads:
        raise MechanismError(
            f"mechanism `{given.kind}` does not read features. Use another one.",
            kind="no-feature-mechanism",
        )
    return given


def require_settings(
    mechanism: Mechanism,
    *,
    epsilon: Any,
    delta: Any,
    bounds: Any,
    records_per_unit: Any,
    key: Any,
    classes: Any,
) -> None:
    if (
        mechanism.needs_target_epsilon
        and epsilon is None
        and getattr(mechanism, "target_epsilon", None) is None
    ):
        raise MechanismError(
            f"mechanism `{mechanism.kind}` needs a target. Pass epsilon=1, for example.",
            kind="no-target",
        )
    if not mechanism.needs_target_epsilon and epsilon is not None:
        raise MechanismError(
            f"mechanism `{mechanism.kind}` takes no target. Leave epsilon out.",
            kind="superfluous-target",
        )
    if epsilon is not None and not (_is_number(epsilon) and 0 < epsilon <= 1000):
        raise MechanismError(
            "epsilon must be a number above 0 and at most 1000, such as epsilon=1.",
            kind="epsilon-out-of-range",
        )
    if not (_is_number(delta) and 0 < delta < 1):
        raise MechanismError(
            "delta must be a number between 0 and 1, such as delta=1e-5.",
            kind="delta-not-a-probability",
        )
    if not isinstance(records_per_unit, Integral) or int(records_per_unit) < 1:
        raise MechanismError(
            "records_per_unit must be a whole number of at least 1.", kind="units-out-of-range"
        )
    if key is not None and not (isinstance(key, bytes) and len(key) == 32):
        raise MechanismError(
            "key must have 32 bytes. Leave it out except in tests.", kind="key-length"
        )
    if isinstance(classes, str):
        raise MechanismError(
            "classes is one string. Pass a list of labels.", kind="classes-as-string"
        )
    if bounds is not None:
        try:
            low, high = (np.asarray(bound, dtype=np.float64) for bound in bounds)
            ordered = bool(
                np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
            )
        except (TypeError, ValueError):
            ordered = False
        if not ordered:
            raise MechanismError(
                "bounds must be two finite numbers or arrays, (lowest, highest), in this order.",
                kind="bounds-out-of-range",
            )


def require_delta_below(delta: float, records: int) -> None:
    if records and delta >= 1 / records:
        raise MechanismError(
            f"delta must be far below 1/n: with {records} records below {1 / records:.3g}.",
            kind="delta-too-large",
        )


def texts_of(X: Any) -> list[str] | None:
    """The texts of a flat sequence of strings; None if X has numbers, which scikit-learn
    validates.
    """
    if isinstance(X, str | bytes):
        raise MechanismError("X is one string. Pass a list of texts.", kind="texts-as-string")
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        if any(_has_text(X.iloc[:, place]) for place in range(X.shape[1])):
            raise MechanismError(f"X is a table with text in it. {_COLUMN}", kind="table-with-text")
        return None
    if not hasattr(X, "__len__") or hasattr(X, "tocsr"):
        return None
    if len(getattr(X, "shape", (0,))) > 1:
        if getattr(X, "dtype", np.dtype(float)).kind in "OUS" and _has_text(np.asarray(X).ravel()):
            raise MechanismError(
                f"X has {len(X.shape)} dimensions and text in it. {_COLUMN}", kind="nested-text"
            )
        return None
    if not _has_text(X):
        if isinstance(X, list | tuple) and any(
            _has_text(row) for row in X if isinstance(row, list | tuple)
        ):
            raise MechanismError(f"X has rows with text in them. {_COLUMN}", kind="rows-with-text")
        return None
    not_texts = [place for place, text in enumerate(X) if not isinstance(text, str)]
    if not_texts:
        raise MechanismError(
            f"X: {len(not_texts)} of {len(X)} records are not text, the first at "
            f'position {not_texts[0]}. Leave them out, or replace them with "".',
            kind="not-texts",
        )
    return [str(text) for text in X]


def require_labels(y: Any, records: int, classes: Any) -> None:
    """Refuses labels that are missing, of mixed types, wrong in number, or not among the public
    classes.
    """
    if isinstance(y, str | bytes):
        raise MechanismError("y is one string. Pass a list of labels.", kind="labels-as-string")
    if y is None or not hasattr(y, "__len__"):
        raise MechanismError(
            "y is missing: requires y to be passed, but the target y is None. "
            "Pass a label per record.",
            kind="no-labels",
        )
    if len(y) != records:
        raise MechanismError(
            f"X and y have inconsistent numbers of samples: {records} and {len(y)}.",
            kind="numbers-differ",
        )
    flat = np.asarray(y, dtype=object).ravel().tolist()
    missing = sum(label is None or label != label for label in flat)
    if missing:
        raise MechanismError(
            f"y: {missing} of {len(flat)} labels are missing (NaN or None). Leave those records "
            "out.",
            kind="missing-labels",
        )
    words = sum(isinstance(label, str) for label in flat)
    if 0 < words < len(flat):
        raise MechanismError(
            f"y: {words} labels are text and {len(flat) - words} are numbers. Make them alike.",
            kind="mixed-labels",
        )
    if classes is not None:
        allowed = set(np.asarray(classes).tolist())
        listed = np.asarray(y).ravel().tolist()
        outside = sum(label not in allowed for label in listed)
        if outside and all(str(label) in set(map(str, allowed)) for label in listed):
            raise MechanismError(
                "y and classes are of different types, such as the number 1 and "
                "the text '1'. Pass both as text, or both as numbers.",
                kind="labels-of-other-type",
            )
        if outside:
            raise MechanismError(
                f"y: {outside} of {len(flat)} records have a label outside classes. Add it to "
                "classes.",
                kind="labels-outside-classes",
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _has_text(cells: Sequence[Any] | Any) -> bool:
    return any(isinstance(cell, str) for cell in cells)
