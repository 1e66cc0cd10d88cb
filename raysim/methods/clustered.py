"""The template of all clustered methods.

Group once, correct labels once, then train inside groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from raysim.errors import ConfigError
from raysim.protocols import ClientId, Context, GroupId, Stage, State, Step
from raysim.settings import settings
from raysim.steps.correction import CorrectionSettings, correct_labels
from raysim.steps.group_training import train_round
from raysim.steps.grouping import GroupingSettings, group_by_similarity


def clustered_stages(
    config: Any, *, group: Step, correct: Step | None = None, train: Step = train_round
) -> tuple[Stage, ...]:
    """Return group -> correct -> train; correction is left out where there is none."""
    stages = [Stage("group", 1, group)]
    if correct is not None:
        stages.append(Stage("correct", 1, correct))
    return (*stages, Stage("train", config.train.rounds, train))


def assign(context: Context, state: State, groups: dict[ClientId, GroupId]) -> State:
    """Return the state with these groups, and let the evaluator score them."""
    context.observe_groups(groups)
    return replace(state, groups=groups)


def true_groups(context: Context, state: State) -> State:
    """Put clients of one true task together (a declared privilege)."""
    return assign(context, state, dict(context.privilege("tasks")))


def one_group(context: Context, state: State) -> State:
    """Put everyone together."""
    return assign(context, state, dict.fromkeys(context.federation.clients, 0))


@settings
class GroupsSettings:
    """Who trains together, in methods that do not group clients themselves."""

    kind: Literal["one", "similarity", "tasks"] = "one"
    """One: everybody; similarity: as FB-NLL groups; tasks: the true tasks, an oracle."""
    similarity: GroupingSettings = GroupingSettings()

    @property
    def uses(self) -> tuple[str, ...]:
        """Features it needs."""
        return ("grouping",) if self.kind == "similarity" else ()

    @property
    def privileges(self) -> tuple[str, ...]:
        """Truth it needs."""
        return ("tasks",) if self.kind == "tasks" else ()

    def check(self, config: Any, dimensions: Mapping[str, int]) -> None:
        """Refuse a grouping that does not fit the data."""
        if self.kind == "similarity":
            self.similarity.check(config, dimensions["grouping"], at="method.groups.similarity")

    def stage(self) -> Stage:
        """Return the stage that groups."""
        steps = {"one": one_group, "tasks": true_groups}
        step = steps.get(self.kind) or group_by_similarity(self.similarity)
        return Stage("group", 1, step)


@settings
class InGroups:
    """A method that works inside groups which it does not find itself."""

    groups: GroupsSettings = GroupsSettings()

    @property
    def privileges(self) -> tuple[str, ...]:
        """Those of the grouping."""
        return self.groups.privileges

    @property
    def uses(self) -> tuple[str, ...]:
        """Those of the grouping."""
        return self.groups.uses


def with_correction(
    stages: tuple[Stage, ...], before: str, how: CorrectionSettings
) -> tuple[Stage, ...]:
    """Return the stages with FB-NLL's label correction in front of the one called ``before``."""
    names = [stage.name for stage in stages]
    if before not in names:
        raise ConfigError(
            f"label correction before stage {before!r}: this method has the stages "
            f"{', '.join(names)}; name one of them"
        )
    at = names.index(before)
    return (*stages[:at], Stage("correct", 1, correct_labels(how)), *stages[at:])


def share_of_rounds(config: Any, wanted: int | None, part: int) -> int:
    """Return ``wanted`` rounds, or one in ``part`` of train.rounds, at least one."""
    return max(config.train.rounds // part, 1) if wanted is None else wanted


def refuse_short(config: Any, needed: int, stages: str) -> None:
    """Refuse a budget that leaves no round for the last stage."""
    if config.train.rounds < needed:
        raise ConfigError(
            f"train.rounds is {config.train.rounds}, but {stages} need at least {needed}; raise "
            "train.rounds or shorten the method's stages"
        )


def refuse_server_optimizer(config: Any, method: str, why: str) -> None:
    """Refuse FedNova and FedAdam where a method has no use for them."""
    if config.server.optimizer != "mean":
        raise ConfigError(
            f"server.optimizer is {config.server.optimizer}, but {method} {why}; set "
            "server.optimizer to mean"
        )


def needs_clean_images(config: Any, method: str, purpose: str) -> None:
    """Refuse a run without images at the server where the method works with them."""
    if config.data.server.per_class < 1:
        raise ConfigError(
            f"data.server.per_class is {config.data.server.per_class}, but {method} {purpose}; "
            "raise data.server.per_class"
        )
