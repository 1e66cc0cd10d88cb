"""A method of your own: groups from label histograms, then FedAvg inside each group.

Every client sends how often it holds each label, the server puts similar histograms together.
A yardstick for groupings that never look at a label: here wrong labels can mislead.

    raysim run quickstart --import my_methods method.name=label_groups
    raysim compare quickstart name=own --import my_methods --methods fb_nll,label_groups,single
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from raysim import METHODS, cluster
from raysim.protocols import Client, Context, Stage, State, Tree
from raysim.settings import check, settings
from raysim.steps.group_training import train_round


def histogram_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """On the client: leave its memory as it is, reply with the share of each given label."""
    counts = np.bincount(client.record.labels, minlength=arguments["classes"])
    return memory, (counts / counts.sum()).astype(np.float32)


@METHODS.register("label_groups")
@settings
class LabelGroups:
    """Groups by label histograms: clients with similar given labels train together."""

    groups: int | None = None
    """Number of groups; null: as many as the partition has tasks."""
    privileges: ClassVar[tuple[str, ...]] = ()  # no true task, no true label
    uses: ClassVar[tuple[str, ...]] = ()  # no features

    def __post_init__(self) -> None:
        ok = self.groups is None or self.groups >= 1
        check(ok, "groups", "must be at least 1, or null", got=self.groups)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse more groups than clients, before anything starts."""
        count, clients = self.count(config), config.data.partition.clients
        rule = f"must be at most data.partition.clients ({clients})"
        check(count <= clients, "method.groups", rule, got=count, do="lower it")

    def count(self, config: Any) -> int:
        """Return the number of groups."""
        return int(config.data.partition.groups if self.groups is None else self.groups)

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Group once, then train for train.rounds rounds."""
        return (Stage("group", 1, self.group), Stage("train", config.train.rounds, train_round))

    def group(self, context: Context, state: State) -> State:
        """On the server: cluster the histograms by 1 - total variation distance."""
        replies = context.federation.map(histogram_task, classes=context.classes)
        shares = np.stack(list(replies.values()))
        context.sent("up", "histogram", shares.nbytes)
        distance = np.abs(shares[:, None] - shares[None]).sum(axis=2) / 2
        labels = cluster(1.0 - distance, self.count(context.config))
        groups = dict(zip(replies, labels.tolist(), strict=True))
        context.observe_groups(groups)  # scored against the true tasks, for the record only
        return replace(state, groups=groups)
