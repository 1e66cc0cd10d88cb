"""Images with labels: embedded, downloaded, drawn, or of the user's own; a file per source."""

from raysim.data.datasets.dataset import (
    DATASETS,
    Arrays,
    Dataset,
    channel_statistics,
    checked,
    data_root,
    in_memory,
)

__all__ = [
    "DATASETS",
    "Arrays",
    "Dataset",
    "channel_statistics",
    "checked",
    "data_root",
    "in_memory",
]
