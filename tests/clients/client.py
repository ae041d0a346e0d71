"""A partner's program: codes the test vectors of a bundle only by published libraries, and prints
how many agree. python client.py onnxruntime BUNDLE
"""

import json
import sys
from typing import Any

way, folder = sys.argv[1:]
with open(folder + "/golden.jsonl", encoding="utf-8") as file:  # noqa: PTH123
    answers = [json.loads(line) for line in file]
texts = [answer["text"] for answer in answers]


def best(narratives: Any) -> Any:
    """Returns the best code of each."""
    from onnxruntime import InferenceSession

    session: Any = InferenceSession(folder + "/model.onnx")
    return session.run(["codes"], {"texts": list(narratives)})[0][:, 0]


if way == "onnxruntime":
    codes = best(texts).tolist()
elif way == "scikit-learn":
    from sklearn.preprocessing import FunctionTransformer

    coder: Any = FunctionTransformer(best)
    codes = coder.fit_transform(texts).tolist()
else:
    from sentence_transformers import SentenceTransformer

    with open(folder + "/labels.json", encoding="utf-8") as file:  # noqa: PTH123
        labels = json.load(file)["codes"]
    scores = SentenceTransformer(folder, device="cpu").float().encode(texts)
    codes = [labels[place] for place in scores.argmax(1)]
print(
    json.dumps(
        [sum(code == answer["codes"][0] for code, answer in zip(codes, answers)), len(answers)]
    )
)
