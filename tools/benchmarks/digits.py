"""The clients of the quickstart as a file, for references that know nothing of raysim."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def digits_file(folder: Path) -> str:
    """Return an npz file with images_k and labels_k of every client of the quickstart."""
    path = folder / "digits.npz"
    if not path.exists():
        from raysim.config import load_config
        from raysim.data.world import DriverData

        config = load_config("quickstart")
        data = DriverData(config.data, config.seed)
        world = data.spec().open()
        arrays = {}
        for record in data.client_records():
            arrays[f"images_{record.id}"] = world.images(record.sample_ids)
            arrays[f"labels_{record.id}"] = record.labels
        np.savez(path, **arrays)
    return str(path)
