"""The sides of ``bench similarity``: the exchange of raysim, the matrix product, the linkage."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.feature_world import GROUPS, FeatureSpec, client_features
from benchmarks.sides import Channel, serve


class ExchangeSide:
    """A federation of feature clients on two Ray actors or in this process."""

    def __init__(self, *, runtime: str, clients: int, samples: int, dim: int, rank: int) -> None:
        from raysim.config import load_config
        from raysim.steps.grouping import GroupingSettings

        where = {"kind": runtime, **({"actors": 2} if runtime == "ray" else {})}
        self._config = load_config({"runtime": where, "method": "fb_nll_minus"})
        self._spec = FeatureSpec(samples, dim)
        self._how = GroupingSettings(groups=GROUPS, rank=rank)
        self._federation = self._make(runtime, clients)
        self._similarity = np.zeros((0, 0))

    def spectra(self) -> dict[str, Any]:
        """Have every client compute its spectrum, which the timed exchange then finds."""
        from raysim.steps.relevance import offered_rank_task

        started = time.perf_counter()
        self._federation.map(offered_rank_task, how=self._how, arrays=self._config.arrays)
        return {"seconds": time.perf_counter() - started}

    def exchange(self) -> dict[str, Any]:
        """Time raysim's exchange from given spectra to R."""
        from raysim.steps.grouping import exchange

        context: Any = SimpleNamespace(
            federation=self._federation,
            config=self._config,
            sent=lambda direction, message, nbytes: None,
            record=lambda **values: None,
        )
        self._similarity = np.zeros((0, 0))  # the last R must not count as memory of this one
        started = time.perf_counter()
        self._similarity, rank = exchange(context, self._how)
        seconds = time.perf_counter() - started
        digest = hashlib.sha256(np.ascontiguousarray(self._similarity).data).hexdigest()
        return {"seconds": seconds, "rank": rank, "digest": digest}

    def cluster(self) -> dict[str, Any]:
        """Time raysim's clustering of the last R."""
        from raysim.core.clustering import cluster

        started = time.perf_counter()
        labels = cluster(self._similarity, GROUPS, linkage=self._how.linkage)
        seconds = time.perf_counter() - started
        truth = np.arange(len(labels)) % GROUPS
        return {"seconds": seconds, "right": bool(np.array_equal(labels, truth))}

    def save(self, path: str) -> dict[str, Any]:
        """Write the last R to ``path``."""
        np.save(path, self._similarity)
        return {}

    def check(self, pairs: int) -> dict[str, Any]:
        """Return the largest difference to the float64 loop over random pairs of clients."""
        from benchmarks.similarity_loop import similarity

        rng = np.random.default_rng(0)
        count, rank = len(self._similarity), int(self._how.rank)
        worst = 0.0
        for _ in range(pairs):
            k, j = (int(i) for i in rng.choice(count, 2, replace=False))
            exact = similarity(client_features(self._spec, k), client_features(self._spec, j), rank)
            worst = max(worst, abs(exact - float(self._similarity[k, j])))
        return {"difference": worst}

    def _make(self, runtime: str, clients: int) -> Any:
        from raysim.protocols import ClientRecord

        samples = self._spec.samples
        records = [
            ClientRecord(k, np.arange(k * samples, (k + 1) * samples), np.zeros(samples, np.int64))
            for k in range(clients)
        ]
        if runtime == "local":
            from raysim.runtime.local import LocalFederation

            return LocalFederation(records, self._spec)
        from raysim.runtime.ray.federation import RayFederation

        return RayFederation(records, self._spec, self._config.runtime)


def gemm_rates(size: int, threads: int) -> dict[str, Any]:
    """Return FLOP/s of NumPy and of torch; the peak is the larger one."""
    from benchmarks.gemm import numpy_rate, torch_rate

    found = {f.__name__: f(size, threads=threads) for f in (numpy_rate, torch_rate)}
    return {**found, "peak": max(found.values())}


def linkage_seconds(path: str, method: str) -> dict[str, Any]:
    """Return the seconds of SciPy's own linkage on 1 - R of ``path``."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    condensed = squareform(1.0 - np.load(path).astype(np.float64), checks=False)
    started = time.perf_counter()
    linkage(condensed, method=method)
    return {"seconds": time.perf_counter() - started}


def main(settings: Mapping[str, Any]) -> None:
    """Serve one side."""
    channel = Channel()
    if settings["kind"] == "exchange":
        one = ExchangeSide(**settings["exchange"])
        names = ("spectra", "exchange", "cluster", "save", "check")
        serve(channel, {name: getattr(one, name) for name in names})
    serve(channel, {"gemm": gemm_rates, "linkage": linkage_seconds})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
