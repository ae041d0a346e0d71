"""Speed of a SWAG draw against a plain copy of memory, side by side.

Claim: a draw reads each stored vector (mean, standard deviation, K deviations; memory-mapped, in the page cache) once,
at half of the copy bandwidth or more. The bandwidth of a copy is the bytes it reads a second, measured with torch's own
`copy_` of one vector; counted as bytes read plus written, as STREAM does, it is twice that: that ratio is printed too.
With --device cuda the draw ends on the device, its transfer included. Prints one JSON object.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
import workload

from mechanisms.model.seeding import generator
from mechanisms.posterior import swag


def main() -> None:
    """Measures draws and copies in turn."""
    parser = workload.arguments(__doc__, repeats=15)
    parser.add_argument("--parameters", type=int, default=22_713_216, help="P (default: MiniLM-L6)")
    parser.add_argument("--rank", type=int, default=20, help="K (default: 20)")
    parser.add_argument(
        "--folder", type=Path, help="where the posterior is written, (K + 2) * 4 P bytes (default: /tmp)"
    )
    options = parser.parse_args()
    device, size = torch.device(options.device), options.parameters

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        theta = torch.randn(size, generator=torch.Generator().manual_seed(0))
        post = workload.posterior(theta, Path(folder), rank=options.rank)
        out, target = torch.empty(size, device=device), torch.empty(size)
        numbers = itertools.count()

        def draw() -> None:
            swag.sample(post, normal=swag.seeded_normal(generator(0, "benchmark", next(numbers))), out=out)

        times = workload.interleaved(
            {"copy": lambda: target.copy_(theta), "draw": draw}, repeats=options.repeats, device=device
        )
    vectors = post.rank + 2
    read_ratio = round(vectors * workload.ratio(times["copy"], times["draw"]), 3)
    workload.report(
        {
            "benchmark": "swag_draw",
            "device": options.device,
            "parameters": size,
            "rank": post.rank,
            "copy_s": workload.median(times["copy"]),
            "draw_s": workload.median(times["draw"]),
            "draw_read_gb_per_s": round(vectors * 4 * size / workload.median(times["draw"]) / 1e9, 2),
            "copy_read_gb_per_s": round(4 * size / workload.median(times["copy"]) / 1e9, 2),
            "ratio": read_ratio,
            "ratio_counting_the_copys_writes": round(read_ratio / 2, 3),
            "target": ">= 0.5",
            "met": read_ratio >= 0.5,
        },
        options.json,
    )


if __name__ == "__main__":
    main()
