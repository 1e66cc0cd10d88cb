"""The yardsticks of both papers: true groups, one model for all, no collaboration at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raysim.methods import METHODS
from raysim.methods.clustered import assign, clustered_stages, one_group, true_groups
from raysim.protocols import Context, Stage, State
from raysim.settings import settings
from raysim.steps.group_training import train_alone


def _own_groups(context: Context, state: State) -> State:
    clients = context.federation.clients
    return assign(context, state, {k: i for i, k in enumerate(clients)})


@METHODS.register("optimum")
@settings
class Optimum:
    """Optimum clustering: the true tasks are given (an upper bound, not a method one could run)."""

    privileges: ClassVar[tuple[str, ...]] = ("tasks",)
    uses: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Fits any data."""

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return given groups, then training."""
        return clustered_stages(config, group=true_groups)


@METHODS.register("single")
@settings
class Single:
    """Single global model: FedAvg over all clients, evaluated per client on its own task."""

    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Fits any data."""

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then training."""
        return clustered_stages(config, group=one_group)


@METHODS.register("local_only")
@settings
class LocalOnly:
    """Local only: every client trains its own model and nothing is shared."""

    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Fits any data."""

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return a group per client, then training."""
        return clustered_stages(config, group=_own_groups, train=train_alone)
