"""The few errors a person meets.

Each says what is wrong, what was found and what to do, and survives pickling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysim.protocols import Where


class RaysimError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 1


class ConfigError(RaysimError):
    """A setting is unknown, out of range, or does not fit the others."""

    exit_code = 2


class DataError(RaysimError):
    """Files are missing or do not hold what was asked for."""

    exit_code = 2


class OutputError(RaysimError):
    """The run directory cannot be used as asked: finished, unfinished, locked or not writable."""

    exit_code = 2


class OutputLost(OutputError):
    """Somebody deleted, replaced or took over the run directory while the run wrote to it."""

    exit_code = 1


class EnvironmentNotFit(RaysimError):
    """The machine or the Ray cluster cannot hold what the config asks for."""

    exit_code = 3


class CheckpointError(RaysimError):
    """A checkpoint is missing, damaged or belongs to another config."""


class Interrupted(RaysimError):
    """The user asked to stop; what was finished has been written."""

    exit_code = 130


class WorkerLost(RaysimError):
    """An actor died more often than ``runtime.max_restarts`` allows."""


class ModelsLost(RaysimError):
    """A stored model or sum died with its node; the last commit still has what is needed."""


class StaleCall(RaysimError):
    """An actor got a call that a later one has overtaken; its result would count twice."""


class ServerFailed(RaysimError):
    """A function that ran beside a parameter server raised."""

    def __init__(self, task: str, reason: str, where: Where | None = None, trace: str = "") -> None:
        self.task, self.reason, self.where, self.trace = task, reason, where, trace
        place = f" in {where}" if where else ""
        super().__init__(f"the server failed{place} while running {task}: {reason}")

    def __reduce__(self) -> tuple[type[ServerFailed], tuple[object, ...]]:
        """Rebuild from the fields."""
        return type(self), (self.task, self.reason, self.where, self.trace)


class ClientFailed(RaysimError):
    """A client's task raised; carries who, where, and the original traceback."""

    def __init__(
        self,
        client: int,
        task: str,
        reason: str,
        where: Where | None = None,
        trace: str = "",
        node: str = "",
    ) -> None:
        self.client, self.task, self.reason = client, task, reason
        self.where, self.trace, self.node = where, trace, node
        place = (f" in {where}" if where else "") + (f" on node {node}" if node else "")
        super().__init__(f"client {client} failed{place} while running {task}: {reason}")

    def __reduce__(self) -> tuple[type[ClientFailed], tuple[object, ...]]:
        """Rebuild from the fields: the default would pass the message as ``client``."""
        fields = (self.client, self.task, self.reason, self.where, self.trace, self.node)
        return type(self), fields
