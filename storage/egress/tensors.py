"""Reads a safetensors file by its header alone: names, shapes, types, and not a byte outside the tensors."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from storage.bundle.folder import UnsoundBundle
from storage.egress.documents import strict_json

_MAX_HEADER = 16 << 20
_BYTES = {"F32": 4, "BF16": 2}
"""Types that may leave: position ids and other buffers are not saved by the libraries."""

Shapes = dict[str, tuple[int, ...]]


def read_shapes(name: str, path: Path) -> Shapes:
    """Returns the shape of each tensor by name; refuses other metadata, types or bytes than inference weights need."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise UnsoundBundle(name, "is not a safetensors file")
        header = strict_json(name, file.read(length))
    if not isinstance(header, dict):
        raise UnsoundBundle(name, "is not a safetensors file")
    metadata = header.pop("__metadata__", {})
    if metadata not in ({}, {"format": "pt"}):
        raise UnsoundBundle(name, "its metadata contain more than the format")
    tensors: Shapes = {}
    end = 0
    try:
        for tensor, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            shape = tuple(int(n) for n in entry["shape"])
            if set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] not in _BYTES:
                raise UnsoundBundle(name, f"tensor {tensor[:80]} has another type than float32 or bfloat16")
            if first != end or last - first != _BYTES[entry["dtype"]] * math.prod(shape):
                raise UnsoundBundle(name, "its tensors have gaps or overlap")
            tensors[tensor], end = shape, last
    except (KeyError, TypeError, ValueError):
        raise UnsoundBundle(name, "its header is damaged") from None
    if 8 + length + end != size:
        raise UnsoundBundle(name, "contains bytes outside its tensors")
    return tensors
