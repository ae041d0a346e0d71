"""Latency of the service at rising rates, over HTTP, against one forward pass of its model.

    python benchmarks/serve.py --bundle bundles/3f2a9c41d07b65e8

Requests of one narrative arrive at random (Poisson) whatever the answers take. The claim is of the highest rate of
those tried at which every request is answered and the queue does not grow: p99 under 4 x one forward pass of a full
batch, which is what a narrative may have to wait for before its own. p50 in passes of one is given next to it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
import workload

from service.app import Settings, create_app
from storage.demo_data import narratives
from tasks.coding.joint import open_bundle

_BATCH = 16
_FEWEST = 200
"""Requests of a rate, below which a 99th percentile says nothing; `--seconds` has to be long enough."""


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="a released bundle")
    parser.add_argument("--seconds", type=float, default=10, help="of each rate (default: 10)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    coder, texts = open_bundle(options.bundle), narratives(200, seed=5)
    coder.scores(texts[:_BATCH])
    one = float(np.median([_seconds(lambda text=text: coder.scores([text])) for text in texts[:20]]))
    full = float(
        np.median([_seconds(lambda at=at: coder.scores(texts[at : at + _BATCH])) for at in range(0, 160, _BATCH)])
    )
    capacity = _BATCH / full
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = create_app(coder, Settings(narratives_per_minute=10**9))
    server = uvicorn.Server(uvicorn.Config(app, port=port, access_log=False, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    rates: list[dict[str, Any]] = []
    for share in (0.1, 0.25, 0.5, 0.7, 0.85):
        rates.append(asyncio.run(_load(f"http://127.0.0.1:{port}/code", texts, share * capacity, options.seconds)))
    server.should_exit = True
    thread.join()
    held = [rate for rate in rates if rate["sustained"]]
    best = max(held, key=lambda rate: rate["rate"]) if held else None
    within = round(best["p99_s"] / full, 2) if best else None
    workload.report(
        {
            "benchmark": "serve",
            "device": "cpu",
            "pass_of_one_s": round(one, 4),
            "pass_of_a_full_batch_s": round(full, 4),
            "batch": _BATCH,
            "rates": rates,
            "highest_sustained_rate": best and best["rate"],
            "p99_in_full_passes": within,
            "p99_target": "< 4",
            "p50_in_passes_of_one": round(best["p50_s"] / one, 2) if best else None,
            "met": None if within is None else within < 4,
        },
        options.json,
    )


async def _load(url: str, texts: list[str], rate: float, seconds: float) -> dict[str, Any]:
    rng = random.Random(0)
    took: list[float] = []
    failed = 0

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal failed
        start = time.perf_counter()
        answer = await client.post(url, json={"narratives": rng.choice(texts)})
        took.append(time.perf_counter() - start)
        failed += answer.status_code != 200

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=200)) as client:
        requests, start = [], time.perf_counter()
        due = start
        while due < start + seconds:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            requests.append(asyncio.create_task(ask(client)))
        offered = time.perf_counter()
        await asyncio.gather(*requests)
        left = time.perf_counter() - offered
    half = len(took) // 2
    # With a queue that grows, the second half waits longer than the first and much is left over at the end.
    steady = float(np.median(took[half:])) < 2 * float(np.median(took[:half])) and left < 0.1 * seconds
    return {
        "rate": round(rate, 1),
        "requests": len(took),
        "failed": failed,
        "p50_s": round(float(np.percentile(took, 50)), 4),
        "p99_s": round(float(np.percentile(took, 99)), 4),
        "sustained": steady and failed == 0 and len(took) >= _FEWEST,
    }


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
