"""Who holds which training sample: the server's clean set, then the clients; a file per kind."""

from raysim.data.partition.file import FilePartition, GivenPartition
from raysim.data.partition.split import (
    PARTITIONS,
    Partition,
    Split,
    check_split,
    clients_per_task,
    floor_share,
)
from raysim.data.partition.tasks import TaskPartition, classes_in_order

__all__ = [
    "PARTITIONS",
    "FilePartition",
    "GivenPartition",
    "Partition",
    "Split",
    "TaskPartition",
    "check_split",
    "classes_in_order",
    "clients_per_task",
    "floor_share",
]
