"""The narrow waist between methods and machines. Read this first.

A *method* is a list of stages made of federated steps; a *federation* runs tasks on clients.
Methods and runtime know each other only through this page. ``local`` and ``ray`` federations give
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

ClientId = int
GroupId = int
Tree = Mapping[str, np.ndarray]
"""Named arrays: a model, a client's memory, a sum of contributions."""


@dataclass(frozen=True)
class Where:
    """How far a run is."""

    stage: str
    round: int
    """Counted from 0."""
    rounds: int
    """Of this stage."""

    def __str__(self) -> str:
        return f"{self.stage} round {self.round + 1}/{self.rounds}"


@dataclass(frozen=True)
class ClientRecord:
    """What an actor is given about one client: small plain values, no true label."""

    id: ClientId
    sample_ids: np.ndarray
    """Rows of the training images that this client holds."""
    labels: np.ndarray
    """The given, partly wrong labels of those rows."""


class World(Protocol):
    """What a node can open by itself.

    Training images and features without labels, and the public test set.
    """

    def images(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return the training images of ``sample_ids``, float32, normalised, (N, C, H, W)."""
        ...

    @property
    def black(self) -> np.ndarray:
        """A black pixel of such an image, (C,)."""
        ...

    def features(self, use: str, sample_ids: np.ndarray) -> np.ndarray:
        """Return the feature rows of ``sample_ids``; ``use`` is "grouping" or "correction"."""
        ...

    def test_set(self, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the test images of ``classes``, prepared like training images, and labels."""
        ...


class WorldSpec(Protocol):
    """A small picklable value from which every node opens the same ``World``."""

    def open(self) -> World:
        """Open the node's memory-mapped arrays, making them first if this node lacks them."""
        ...


@dataclass(frozen=True)
class Client:
    """A client as its tasks see it."""

    record: ClientRecord
    world: World
    scratch: dict[str, Any] = field(default_factory=dict)
    """A cache that may vanish at any time; what must survive goes into returned memory."""

    @property
    def id(self) -> ClientId:
        return self.record.id

    @property
    def sample_ids(self) -> np.ndarray:
        return self.record.sample_ids


Task = Callable[[Client, Tree, Mapping[str, Any]], tuple[Tree, Any]]
"""A module-level function ``(client, memory, arguments) -> (memory, reply)``."""


@dataclass(frozen=True)
class Contribution:
    """A reply for ``reduce``.

    Arrays to be averaged with ``weight``, and what else the step wants to know.
    """

    tree: Tree
    weight: float
    reply: Any = None


@dataclass(frozen=True)
class Stacked:
    """Replies of several clients at once; for ``reduce`` with their arrays stacked on axis 0."""

    ids: tuple[ClientId, ...]
    replies: tuple[Any, ...]
    tree: Tree | None = None
    weights: np.ndarray | None = None


Together = Callable[
    [Sequence[Client], Sequence[Tree], Sequence[Mapping[str, Any]]], "Iterator[Stacked] | None"
]
"""A task over many clients; None: run them one by one. It leaves their memory as it is."""


AnyTask = TypeVar("AnyTask", bound=Callable[..., Any])
"""A task, or a method of a class that is one."""


def stateless(task: AnyTask) -> AnyTask:
    """Declare that a task leaves its clients' memory as it is.

    So another actor may run it for them, and a round may end without the slowest of them.
    """
    task.stateless = True  # type: ignore[attr-defined]
    return task


def stacked(together: Together) -> Callable[[Task], Task]:
    """Give a stateless task a variant that takes many clients of an actor at once."""

    def add(task: Task) -> Task:
        task.together = together  # type: ignore[attr-defined]
        return stateless(task)

    return add


@runtime_checkable
class Handle(Protocol):
    """A stored tree or array that can be passed to tasks without the driver holding it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        ...


class OwnModels(dict[GroupId, Handle]):
    """Models by group, of which a client's task reads only that of its own group.

    So an actor is sent the models of the groups that it hosts in a call, and fetches no others.
    """

    def __init__(
        self, models: Mapping[GroupId, Handle], groups: Mapping[ClientId, GroupId]
    ) -> None:
        super().__init__(models)
        self._groups = groups

    def only(self, clients: Iterable[ClientId]) -> dict[GroupId, Handle]:
        """Return the models of the groups of some clients."""
        return {g: self[g] for g in sorted({self._groups[k] for k in clients})}


@dataclass(frozen=True)
class GroupResult:
    """What ``reduce`` gives for one group that had at least one contribution."""

    mean: Handle
    weight: float


@dataclass(frozen=True)
class Reduced:
    """Result of ``reduce``: means by group, replies by client."""

    groups: Mapping[GroupId, GroupResult]
    replies: Mapping[ClientId, Any]


class Federation(Protocol):
    """Clients somewhere, reached by tasks."""

    clients: Sequence[ClientId]
    where: Where | None
    """The round that goes on, for messages; the coordinator sets it."""

    @property
    def late(self) -> list[ClientId]:
        """Clients left behind in this round; the coordinator empties the list."""
        ...

    @property
    def restarts(self) -> int:
        """Actors rebuilt so far."""
        ...

    def map(
        self,
        task: Task,
        *,
        on: Iterable[ClientId] | None = None,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Any]:
        """Run ``task`` on the clients ``on`` (default all); replies in order of client id."""
        ...

    def reduce(
        self,
        task: Task,
        *,
        groups: Mapping[ClientId, GroupId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Reduced:
        """Run ``task`` on the clients in ``groups`` and average their contributions per group."""
        ...

    def keep(
        self,
        task: Task,
        *,
        on: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Handle]:
        """Run ``task`` on the clients ``on`` and store the tree of each one's contribution.

        Numbers are rounded to the grid of exact sums, as in a mean over one client.
        """
        ...

    def serve(self, task: Callable[..., Any], *, server: int = 0, **shared: Any) -> Any:
        """Run ``task(**shared)`` beside a parameter server; the reply comes back to the caller."""
        ...

    def derive(self, task: Callable[..., Tree], *, server: int = 0, **shared: Any) -> Handle:
        """Run ``task(**shared)`` beside a parameter server; the tree it returns stays stored."""
        ...

    def put(self, tree: Tree) -> Handle:
        """Store a tree once; ``shared`` and ``each`` may carry the handle, tasks see the tree."""
        ...

    def get(self, handle: Handle) -> Tree:
        """Fetch a stored tree to the driver."""
        ...

    def commit(self, folder: str, models: Mapping[str, Handle]) -> dict[str, Any]:
        """Write changed client memory and ``models`` below ``folder``.

        Return what the manifest must remember.
        """
        ...

    @property
    def unsettled(self) -> bool:
        """Whether actors or nodes came or went, so that a commit should be made soon."""
        ...

    def settle(
        self, folder: str, stored: Mapping[str, str], models: Mapping[str, Handle]
    ) -> dict[str, Handle]:
        """After a commit, let clients and models go where they are better off.

        Return new handles of models that moved; ``stored`` are the digests of all.
        """
        ...

    def restore(self, folder: str, manifest: Mapping[str, Any]) -> dict[str, Handle]:
        """Take client memory back from a commit; return handles of its models."""
        ...

    def describe(self) -> list[dict[str, Any]]:
        """One row per actor: id, role, pid, node, share, clients."""
        ...

    def close(self) -> None:
        """End the actors."""
        ...


@dataclass(frozen=True)
class State:
    """Everything a run needs to go on, besides client memory: small values and handles."""

    groups: Mapping[ClientId, GroupId] = field(default_factory=dict)
    models: Mapping[str, Handle] = field(default_factory=dict)
    """Stored models by name: ``group/0``, ``client/7``, ..."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Small JSON values a method carries between rounds."""


class Context(Protocol):
    """What a step may use. Built by the coordinator, one per round."""

    federation: Federation
    config: Any
    """The whole ``RunConfig``."""
    classes: int
    image_shape: tuple[int, int, int]
    where: Where

    @property
    def stage(self) -> str: ...

    @property
    def round(self) -> int:
        """The round of this stage, counted from 0."""
        ...

    @property
    def last(self) -> bool:
        """Whether this is the stage's last round."""
        ...

    @property
    def clean(self) -> tuple[np.ndarray, np.ndarray]:
        """Sample ids and labels of the server's clean images."""
        ...

    def server_features(self, use: str) -> np.ndarray:
        """Features of the server's clean images."""
        ...

    def server_images(self) -> np.ndarray:
        """Return the server's clean images, prepared like training images."""
        ...

    def prepared(self, images: np.ndarray) -> np.ndarray:
        """Return images of the server's own, uint8 (N, H, W, C), prepared like training images."""
        ...

    def privilege(self, name: str) -> Any:
        """Return knowledge that only a method declaring it in ``privileges`` may use.

        "tasks": the true task of every client; "clean": which of its labels are right, those that
        FB-NLL repaired or else the given ones.
        """
        ...

    def record(self, **values: Any) -> None:
        """Add values to this round's record."""
        ...

    def sent(self, direction: str, message: str, nbytes: int) -> None:
        """Count protocol bytes; ``direction`` is "up" or "down"."""
        ...

    def observe_groups(self, groups: Mapping[ClientId, GroupId]) -> None:
        """Let the evaluator score a grouping against the true tasks."""
        ...

    def observe_labels(self, labels: Mapping[ClientId, np.ndarray]) -> None:
        """Let the evaluator score corrected labels against the truth."""
        ...

    def observe_repair(
        self,
        before: Mapping[ClientId, np.ndarray],
        after: Mapping[ClientId, np.ndarray],
        decided: Mapping[ClientId, Mapping[int, int | None]],
    ) -> None:
        """Let the evaluator score FB-NLL's correction; later stages are scored by its labels.

        ``decided`` says which class each local class was renamed to, None for Phase 2.
        """
        ...

    def observe_selection(
        self,
        selected: Mapping[ClientId, np.ndarray],
        *,
        by: Literal["selection", "judged"] = "selection",
    ) -> None:
        """Let the evaluator score which samples are judged to be labelled right.

        ``by`` is the record's name for who judges: the method ("selection"), or its final model the
        given labels ("judged").
        """
        ...

    def observe_noisy(
        self,
        clients: Sequence[ClientId],
        scores: Mapping[ClientId, float] | None = None,
        levels: Mapping[ClientId, float] | None = None,
    ) -> None:
        """Let the evaluator score clients that a method takes for noisy.

        ``scores``, higher for those that look noisier, add an AUROC to the record; ``levels``,
        estimated shares of wrong labels, their correlation with the true ones.
        """
        ...

    def artifact(self, name: str, array: np.ndarray) -> None:
        """Keep a one-time array (the similarity matrix) in the run directory."""
        ...

    def test_classes(self) -> Mapping[ClientId, tuple[int, ...]]:
        """Classes of each client's own task: what it is evaluated on."""
        ...


Step = Callable[[Context, State], State]


@dataclass(frozen=True)
class Stage:
    """``rounds`` repetitions of one step; one-shot work has one round."""

    name: str
    rounds: int
    step: Step


class MethodLike(Protocol):
    """A configured method: frozen settings plus the stages they ask for.

    Ours inherit ``raysim.methods.Method``, which has an answer for each of these; yours may.
    """

    privileges: tuple[str, ...]
    """Knowledge beyond the protocol that this method declares to use."""
    uses: tuple[str, ...]
    """Features it needs: "grouping", "correction"."""

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse settings that cannot work with this data, before anything starts."""
        ...

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return the stages in order; the coordinator owns the loop."""
        ...
