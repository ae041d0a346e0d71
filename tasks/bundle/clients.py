"""Names the versions of published libraries that read a bundle, as `make test-clients` runs them."""

from __future__ import annotations

SUPPORTED = {
    "onnxruntime": "1.17 to 1.32",
    "onnxruntime-web": "1.30",
    "sentence-transformers": "3.4 to 6.2",
    "transformers": "5.23",
}
