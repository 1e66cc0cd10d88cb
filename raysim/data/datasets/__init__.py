"""Images with labels: embedded, downloaded, drawn, or of the user's own; a file per source."""

from raysim.data.datasets.dataset import (
    DATASETS,
    Arrays,
    Dataset,
    NewArray,
    channel_statistics,
    checked,
    data_root,
    in_memory,
    missing_files,
)

__all__ = [
    "DATASETS",
    "Arrays",
    "Dataset",
    "NewArray",
    "channel_statistics",
    "checked",
    "data_root",
    "in_memory",
    "missing_files",
]
