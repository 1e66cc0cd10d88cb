"""Short real runs, and run directories written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

SMALL = (
    "train.rounds=3",
    "train.epochs=1",
    "data.partition.clients=6",
    "data.fraction=0.5",
    "runtime.kind=local",
)


@pytest.fixture(scope="session")
def real_runs(_own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of fb_nll and single, seeds 0 and 1, on digits."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    folder = tmp_path_factory.mktemp("runs")
    for method in ("fb_nll", "single"):
        for seed in (0, 1):
            where = f"output={folder}/{method}-{seed}"
            config = load_config(
                "quickstart", [*SMALL, f"method.name={method}", f"seed={seed}", where]
            )
            Experiment(config).run()
    return folder


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run directory of given accuracies."""

    def write(
        method: str,
        seed: int,
        accuracies: Sequence[float],
        *,
        rounds: int | None = None,
        groups: Sequence[int] = (),
        arrays: dict[str, np.ndarray] | None = None,
        data: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / "runs" / f"{method}-{seed}-{len(list(tmp_path.rglob('config.yaml')))}"
        (folder / "artifacts").mkdir(parents=True)
        total = rounds or len(accuracies)
        config = {
            "name": "made",
            "seed": seed,
            "data": {"dataset": {"name": "digits"}, "noise": {"kind": "none"}, **(data or {})},
            "train": {"rounds": total},
            "method": {"name": method, "grouping": {"linkage": "average"}},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "environment.json").write_text('{"python": "3.11"}')
        records = [
            {"stage": "group", "round": 1, "seconds": 1.0, "rank": 2, "groups": list(groups)}
        ]
        records += [
            {
                "stage": "train",
                "round": i + 1,
                "seconds": 0.5,
                "loss": 1.0 / (i + 1),
                "test_loss": 2.0 / (i + 1),
                "accuracy": {"mean": value, "std": 0.1},
                "by_task": {"accuracy": [value, value], "loss": [1.0, 2.0]},
                "bytes": {"up": {"model": 1_000_000}, "down": {"model": 3_000_000}},
                **(extra or {}),
            }
            for i, value in enumerate(accuracies)
        ]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        if len(accuracies) == total:
            result = {"accuracy": {"mean": accuracies[-1], "std": 0.1}, "restarts": 0}
            (folder / "result.json").write_text(json.dumps(result))
        for name, array in (arrays or {}).items():
            np.save(folder / "artifacts" / f"{name}.npy", array)
        return folder

    return write
