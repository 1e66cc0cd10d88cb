"""What the methods share: the registry, the base class, and what methods may refuse.

A method is its settings (the fields of a frozen class) and what it does differently from FedAvg:
``stages`` if it has other stages, ``round`` if its rounds differ, ``train`` if its clients do.
The settings travel to the clients with the task, so ``train`` reads them from ``self``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from raysim.core.threads import one_thread, torch_device
from raysim.errors import ConfigError
from raysim.models.sessions import Session, open_session
from raysim.protocols import (
    Client,
    ClientId,
    Context,
    Contribution,
    GroupId,
    MethodLike,
    Stage,
    State,
    Tree,
    Where,
)
from raysim.settings import In, Registry, settings
from raysim.steps.correction import CorrectionSettings, correct_labels
from raysim.steps.group_training import chosen_clients, evaluated, train_groups_by
from raysim.steps.grouping import GroupingSettings, group_by_similarity
from raysim.steps.local_training import client_stream, current_labels, train_task
from raysim.steps.server import ServerSettings
from raysim.steps.sessions import received_model

METHODS: Registry[MethodLike] = Registry(
    "method",
    key="name",
    home="raysim.methods",
    other_names={
        "fedavg": "single",
        "fedprox": "single with train.proximal",
        "fednova": "single with server.optimizer fednova",
        "fedadam": "single with server.optimizer fedadam",
        "local": "local_only",
    },
)
Refusal = Callable[[Any, str], None]
"""``refuse(config, title)`` raises a ``ConfigError`` for what the method cannot work with."""


@dataclass(frozen=True)
class Repair:
    """FB-NLL's label correction as a part of a method."""

    before: str
    """The stage in front of which labels are repaired."""
    how: CorrectionSettings


@settings
class Method:
    """FedAvg in one group: what a method does unless it says otherwise."""

    title: ClassVar[str] = ""
    """The method's name in messages."""
    privileges: ClassVar[tuple[str, ...]] = ()
    """Knowledge beyond the protocol: "tasks", "clean"."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Features it needs: "grouping", "correction"."""
    refuses: ClassVar[tuple[Refusal, ...]] = ()
    """What it cannot work with."""
    counted_by: ClassVar[Literal["samples", "uniform"] | None] = None
    """How clients count in a mean; None: as the server section says."""
    stateless: ClassVar[bool] = True
    """Training leaves the client's memory as it is.

    Only then may another actor train a client, and a round go on without it."""

    @property
    def repair(self) -> Repair | None:
        """Where the method itself repairs labels by FB-NLL's correction."""
        return None

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse settings that cannot work with this config and data, before anything starts."""
        for refuse in self.refuses:
            refuse(config, self.title)
        if self.repair is not None:
            self.repair.how.check(config, dimensions["correction"])

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return the grouping, then train.rounds rounds."""
        return (self.grouping_stage(config), Stage("train", config.train.rounds, self.round))

    def grouping_stage(self, config: Any) -> Stage:
        """Return the stage that says who trains together."""
        return Stage("group", 1, one_group)

    def round(self, context: Context, state: State) -> State:
        """Let the chosen clients train, average inside groups, evaluate."""
        return evaluated(context, self.train_groups(context, state)[0])

    def train_groups(
        self,
        context: Context,
        state: State,
        chosen: Sequence[ClientId] | None = None,
        *,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> tuple[State, Mapping[ClientId, Any]]:
        """Train the models of the groups of ``chosen``; return the state and what clients replied.

        What ``each`` and ``shared`` carry is in ``session.sent`` at the client.
        """
        chosen = chosen_clients(context) if chosen is None else chosen
        server: ServerSettings = context.config.server
        if self.counted_by is not None:
            server = replace(server, weights=self.counted_by)
        shared = {"server": server, **shared}
        task = train_task if type(self).train is Method.train else LocalTask(self)
        return train_groups_by(task, context, state, chosen, each=each, **shared)

    def networks(self, received: Tree, memory: Tree, sent: Mapping[str, Any]) -> Sequence[Tree]:
        """Return the weights of the networks that ``train`` works with."""
        return [received]

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train at a client; return its memory and what it sends (``sent_model``)."""
        raise AssertionError("methods without a local step of their own run train_task")


@dataclass(frozen=True)
class LocalTask:
    """A method's own ``train`` as a task of the federation."""

    method: Method

    @property
    def __name__(self) -> str:
        return f"{type(self.method).__name__}.train"

    @property
    def stateless(self) -> bool:
        """Whether other actors may run it for a client, and a round may end without it."""
        return self.method.stateless

    def __call__(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, Contribution]:
        trees = self.method.networks(received_model(arguments), memory, arguments)
        with (
            one_thread("torch"),
            open_session(
                arguments["model"],
                trees,
                client.world.images(client.sample_ids),
                current_labels(client, memory),
                arguments["train"],
                rng=client_stream(arguments, client),
                classes=arguments["classes"],
                device=torch_device(),
                black=client.world.black,
            ) as session,
        ):
            session.sent, session.scratch = arguments, client.scratch
            return self.method.train(session, memory, arguments["where"])


@settings
class WarmedUp(Method):
    """Rounds that trust every label, then rounds in which labels are doubted.

    The centralised methods as FedRN compares them (Kim et al. 2022, section 5.1): FedAvg with
    clients weighted by their samples; what a client learns about its samples stays with it.
    """

    warmup_rounds: Annotated[int | None, In("[0, inf)", do="try null")] = None
    """Rounds that trust every label; null: a fifth of train.rounds (FedRN: 100 of 500)."""
    counted_by: ClassVar[Literal["samples", "uniform"] | None] = "samples"

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse too few rounds for two stages, too."""
        refuse_short(config, self.warmup(config) + 1, f"{self.title}'s warm-up and rounds")
        Method.check(self, config, classes=classes, dimensions=dimensions)

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, the warm-up and the rounds after it."""
        warmup = self.warmup(config)
        return (
            self.grouping_stage(config),
            *([Stage("warmup", warmup, self.round)] if warmup else []),
            Stage("train", config.train.rounds - warmup, self.round),
        )

    def warmup(self, config: Any) -> int:
        """Return the number of rounds that trust every label."""
        return share_of_rounds(config.train.rounds, self.warmup_rounds, 5)


# ---- who trains together -----------------------------------------------------------------------


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


@settings
class InGroups(Method):
    """A method that works inside groups which it does not find itself."""

    groups: GroupsSettings = GroupsSettings()

    @property
    def privileges(self) -> tuple[str, ...]:  # type: ignore[override]
        """The true tasks, where they are the groups."""
        return ("tasks",) if self.groups.kind == "tasks" else ()

    @property
    def uses(self) -> tuple[str, ...]:  # type: ignore[override]
        """The features of the grouping, and of the correction where there is one."""
        grouping = ("grouping",) if self.groups.kind == "similarity" else ()
        return grouping if self.repair is None else (*grouping, "correction")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a grouping that does not fit the data, too."""
        if self.groups.kind == "similarity":
            at = "method.groups.similarity"
            self.groups.similarity.check(config, dimensions["grouping"], at=at)
        Method.check(self, config, classes=classes, dimensions=dimensions)

    def grouping_stage(self, config: Any) -> Stage:
        """Return the stage that groups as the settings say."""
        steps = {"one": one_group, "tasks": true_groups}
        step = steps.get(self.groups.kind) or group_by_similarity(self.groups.similarity)
        return Stage("group", 1, step)


# ---- a config's method, with FB-NLL's label correction in front of one of its stages -----------


def stages_of(config: Any) -> tuple[Stage, ...]:
    """Return the stages of the config's method, with the label correction it asks for."""
    stages: tuple[Stage, ...] = config.method.stages(config)
    names = [stage.name for stage in stages]
    repair: Repair | None = getattr(config.method, "repair", None)
    before = config.correct.before
    if before is not None:
        if repair is not None or "correct" in names:
            raise ConfigError(
                f"correct.before is {before!r}, but this method repairs labels itself; leave "
                "correct out, or choose a method without it"
            )
        repair = Repair(before, config.correct.how)
    if repair is None:
        return stages
    if repair.before not in names:
        raise ConfigError(
            f"label correction before stage {repair.before!r}: this method has the stages "
            f"{', '.join(names)}; name one of them"
        )
    at = names.index(repair.before)
    return (*stages[:at], Stage("correct", 1, correct_labels(repair.how)), *stages[at:])


def uses_of(config: Any) -> tuple[str, ...]:
    """Return the features that the method and its label correction need."""
    extra = () if config.correct.before is None else ("correction",)
    return tuple(dict.fromkeys((*config.method.uses, *extra)))


def check_method(config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
    """Refuse what the method, or the correction in front of one of its stages, refuses."""
    config.method.check(config, classes=classes, dimensions=dimensions)
    if config.correct.before is not None:
        stages_of(config)
        config.correct.how.check(config, dimensions["correction"], at="correct.how")


# ---- what methods may refuse -------------------------------------------------------------------


def share_of_rounds(rounds: int, wanted: int | None, part: int) -> int:
    """Return ``wanted`` rounds, or one in ``part`` of ``rounds``, at least one."""
    return max(rounds // part, 1) if wanted is None else wanted


def refuse_short(config: Any, needed: int, stages: str) -> None:
    """Refuse a budget that leaves no round for the last stage."""
    if config.train.rounds < needed:
        raise ConfigError(
            f"train.rounds is {config.train.rounds}, but {stages} need at least {needed}; raise "
            "train.rounds or shorten the method's stages"
        )


def server_optimizers(why: str) -> Refusal:
    """Refuse FedNova and FedAdam where a method has no use for them."""

    def refuse(config: Any, title: str) -> None:
        if config.server.optimizer != "mean":
            raise ConfigError(
                f"server.optimizer is {config.server.optimizer}, but {title} {why}; set "
                "server.optimizer to mean"
            )

    return refuse


def no_clean_images(purpose: str) -> Refusal:
    """Refuse a run without images at the server where the method works with them."""

    def refuse(config: Any, title: str) -> None:
        if config.data.server.per_class < 1:
            raise ConfigError(
                f"data.server.per_class is {config.data.server.per_class}, but {title} {purpose}; "
                "raise data.server.per_class"
            )

    return refuse


def other_training(config: Any, title: str) -> None:
    """Refuse settings that a local training of its own and plain means leave out."""
    if config.train.mixup:
        raise ConfigError(
            f"train.mixup is {config.train.mixup:g}, but {title} judges samples one by one; set "
            "train.mixup to 0"
        )
    server_optimizers("sends its models as they are")(config, title)


def other_steps(config: Any, title: str) -> None:
    """Refuse local optimisers that a method's own plain steps would silently leave out."""
    train = config.train
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "proximal": 0.0}
    for name, wanted in plain.items():
        if (got := getattr(train, name)) != wanted:
            raise ConfigError(
                f"train.{name} is {got}, but {title} takes plain steps of its own; set "
                f"train.{name} to {wanted}"
            )
