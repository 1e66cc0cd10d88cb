"""A run taken one round at a time: look at its models, leave when you like, go on later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import DataError, Interrupted, OutputError
from raysim.models.params import layout, load_tree, named_arrays
from raysim.models.zoo import Model
from raysim.protocols import ClientId, Federation, GroupId, Handle, State, Tree
from raysim.runs.record import RoundRecord
from raysim.runs.results import RunResult
from raysim.runtime.coordinator import Coordinator
from raysim.storage.objects import Place

if TYPE_CHECKING:
    import torch


class LeftEarly(Interrupted):
    """The caller left a run before its last round; what was done is committed."""


@dataclass(frozen=True)
class ModelShape:
    """What it takes to turn stored arrays into a network."""

    model: Model
    image_shape: tuple[int, int, int]
    classes: int


@dataclass(frozen=True)
class Progress:
    """A run that goes on: who drives it, where its models are, how it ends."""

    coordinator: Coordinator
    federation: Federation
    shape: ModelShape
    run_dir: Place
    conclude: Callable[[], RunResult]


@dataclass(frozen=True, repr=False)
class Round:
    """What a round left: its record, and the state after it."""

    stage: str
    round: int
    """Counted from 1, in its stage."""
    rounds: int
    """Rounds of the stage."""
    said: RoundRecord
    state: State
    shape: ModelShape
    get: Callable[[Handle], Tree]

    @property
    def record(self) -> Mapping[str, Any]:
        """What the round adds to rounds.jsonl."""
        return self.said.to_json()

    @property
    def accuracy(self) -> float | None:
        """Mean over clients; None where this round did not evaluate."""
        return self.said.accuracy["mean"] if self.said.accuracy is not None else None

    @property
    def loss(self) -> float | None:
        """Mean training loss; None in stages that do not train."""
        return self.said.loss

    @property
    def groups(self) -> dict[ClientId, GroupId]:
        return dict(self.state.groups)

    @property
    def model_names(self) -> list[str]:
        """Names of the models that exist: group/0, group/1, ... or client/0, ..."""
        return sorted(
            (name for name in self.state.models if name.startswith(("group/", "client/"))),
            key=lambda name: (name.split("/")[0], int(name.split("/")[1])),
        )

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return copies of a model's weights by their PyTorch names."""
        shape = self.shape
        tree = self._tree(name)
        found = named_arrays(tree, layout(shape.model, shape.image_shape, shape.classes))
        return {part: np.array(array) for part, array in found.items()}

    def module(self, name: str) -> torch.nn.Module:
        """Return a model as a network of its own, ready to predict."""
        shape = self.shape
        module = shape.model.build(shape.image_shape, shape.classes)
        load_tree(module, self._tree(name))
        return module.eval()

    def _tree(self, name: str) -> Tree:
        if name not in self.model_names:
            known = ", ".join(self.model_names) or "none yet"
            raise DataError(f"after {self} there is no model {name!r}; the models are: {known}")
        return self.get(self.state.models[name])

    def __repr__(self) -> str:
        parts = [f"{self.stage} {self.round}/{self.rounds}"]
        parts += [f"accuracy {self.accuracy:.4f}"] if self.accuracy is not None else []
        parts += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        parts += [f"ARI {self.said.ari:.3f}"] if self.said.ari is not None else []
        if self.said.noise is not None:
            before, after = self.said.noise
            parts.append(f"wrong labels {before:.3f} -> {after:.3f}")
        return f"Round({', '.join(parts)})"


class Rounds(Iterator[Round]):
    """The rounds that are left of a run; ``Experiment.rounds`` makes it."""

    def __init__(self, progress: Progress | None, result: RunResult | None = None) -> None:
        """Without ``progress`` the run was finished before, with ``result``."""
        self._progress, self._result = progress, result
        self._is_open, self._has_ended = True, result is not None

    @property
    def is_finished(self) -> bool:
        """Whether no round is left."""
        return self._progress is None or self._progress.coordinator.is_finished

    @property
    def result(self) -> RunResult:
        """The run's result; before its end, what there is so far."""
        if self._progress is not None and not self.is_finished:
            return RunResult({}, self._progress.run_dir)
        return self._end()

    def __next__(self) -> Round:
        self._refuse_left()
        if self._progress is None or self.is_finished:
            self._end()
            raise StopIteration
        coordinator = self._progress.coordinator
        event = coordinator.next_round()
        return Round(
            stage=event.stage,
            round=event.round,
            rounds=event.rounds,
            said=event.record or RoundRecord(),
            state=coordinator.state,
            shape=self._progress.shape,
            get=self._get,
        )

    def finish(self) -> RunResult:
        """Run all that is left and return the result."""
        self._refuse_left()
        if self._progress is not None:
            self._progress.coordinator.finish()
        return self._end()

    def leave(self) -> None:
        """Commit what was done, and write the result if that was all."""
        self._is_open = False
        if self._progress is not None:
            self._progress.coordinator.leave()
            if self.is_finished and not self._has_ended:
                self._end()

    def refuse_early(self) -> None:
        if self._progress is not None and not self.is_finished:
            done, total = self._progress.coordinator.done, self._progress.coordinator.total
            raise LeftEarly(
                f"left after round {done} of the run's {total}; checkpoint written, go on with "
                "--resume"
            )

    def _get(self, handle: Handle) -> Tree:
        self._refuse_left()
        assert self._progress is not None  # whoever has a round has progress
        return self._progress.federation.get(handle)

    def _end(self) -> RunResult:
        if self._result is None:
            assert self._progress is not None  # a run that was over came with its result
            self._has_ended = True  # tried once: what fails here must not hide behind a second try
            self._result = self._progress.conclude()
        return self._result

    def _refuse_left(self) -> None:
        if not self._is_open:
            raise OutputError(
                "this run was left, and its clients and models with it; go on with "
                "Experiment(config).rounds(resume=True)"
            )

    def __repr__(self) -> str:
        if self._progress is None:
            return "Rounds(finished before)"
        coordinator = self._progress.coordinator
        return f"Rounds({coordinator.done} of {coordinator.total} done)"
