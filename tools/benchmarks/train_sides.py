"""The two sides of ``bench train``: raysim (on Ray or in-process) and the plain loop."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.sides import Channel, serve
from benchmarks.workloads import Workload, run_config


class RaysimSide:
    """Runs experiments and hands the turn over between rounds."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def prepare(self, workload: Mapping[str, Any]) -> dict[str, Any]:
        """Write the workload's images to this machine's store."""
        from raysim.data.world import DriverData

        config = run_config(Workload(**workload), rounds=1, runtime="local")
        data = DriverData(config.data, config.seed)
        return {"clients": len(data.split.clients)}

    def run(
        self,
        workload: Mapping[str, Any],
        rounds: int,
        runtime: str,
        output: str,
        turns: Sequence[int],
        weights: str | None = None,
    ) -> dict[str, Any]:
        """Run an experiment; after each round in ``turns`` wait for the parent.

        Answers with seconds (the record's), wall seconds between events and the driver's CPU
        seconds, per training round.
        """
        from raysim.experiment import Experiment

        clock = Clock(self._channel, set(turns))
        config = run_config(Workload(**workload), rounds=rounds, runtime=runtime, output=output)
        started = time.perf_counter()
        result = Experiment(config).run(listeners=[clock.listen])
        total = time.perf_counter() - started
        if weights is not None:
            np.save(weights, final_weights(result))
        return {"total": total, **clock.seen}


class Clock:
    """A listener that keeps times per training round and gives the turn away."""

    def __init__(self, channel: Channel, turns: set[int]) -> None:
        self.seen: dict[str, list[float]] = {"seconds": [], "wall": [], "cpu": []}
        self._channel, self._turns = channel, turns
        self._start()

    def listen(self, event: Any) -> None:
        """Take the times of a round; they exclude the wait for the parent."""
        if event.kind == "round" and event.stage == "train":
            self.seen["seconds"].append(event.record.seconds)
            self.seen["wall"].append(time.perf_counter() - self._wall)
            self.seen["cpu"].append(time.process_time() - self._cpu)
            if event.round in self._turns:
                self._channel.send(turn=event.round)
                self._channel.receive()
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def final_weights(result: Any) -> np.ndarray:
    """Return the trained parameters of the one group, as stored by the run."""
    from raysim.storage.checkpoint import read_object

    digest = result.summary["digest"]["models"]["group/0"]
    return read_object(result.run_dir / "checkpoint", digest)["trainable"]


class PlainSide:
    """The plain loop on the same arrays, initial weights and participants."""

    def __init__(self, workload: Mapping[str, Any]) -> None:
        import torch

        from raysim.data.world import DriverData
        from raysim.models.params import initial_tree

        config = run_config(Workload(**workload), rounds=1, runtime="local")
        data = DriverData(config.data, config.seed)
        world = data.spec().open()
        self._config = config
        self._clients = [
            (torch.tensor(world.images(r.sample_ids)), torch.tensor(r.labels))
            for r in data.client_records()
        ]
        self._module = config.model.build(data.image_shape, data.classes)
        tree = initial_tree(config.model, data.image_shape, data.classes, config.seed)
        assert not tree["buffers"].size  # the loop averages parameters only
        self._initial = torch.from_numpy(tree["trainable"])
        self._weights = self._initial

    def reset(self) -> dict[str, Any]:
        """Go back to the initial weights."""
        self._weights = self._initial
        return {}

    def rounds(
        self, first: int, count: int, threads: int, keep: bool, at_most: int | None = None
    ) -> dict[str, Any]:
        """Run rounds ``first`` to ``first + count - 1``; answer with the seconds of each.

        Unless ``keep``, the weights are then those from before the call.
        """
        import torch

        from benchmarks.plain_loop import train_round
        from raysim.steps.local_training import participants

        torch.set_num_threads(threads)
        train, seed = self._config.train, self._config.seed
        hyper = {"lr": train.lr, "batch_size": train.batch_size, "epochs": train.epochs}
        seconds = []
        before, cpu = self._weights, time.process_time()
        for round_id in range(first, first + count):
            everyone = list(range(len(self._clients)))
            chosen = participants(everyone, train, seed=seed, round_id=round_id)[:at_most]
            clients = [self._clients[k] for k in chosen]
            started = time.perf_counter()
            self._weights = train_round(self._module, self._weights, clients, **hyper)
            seconds.append(time.perf_counter() - started)
        self._weights = self._weights if keep else before
        return {"seconds": seconds, "cpu": time.process_time() - cpu}

    def weights(self, path: str) -> dict[str, Any]:
        """Write the weights to ``path``."""
        np.save(path, self._weights.numpy())
        return {}


def main(settings: Mapping[str, Any]) -> None:
    """Serve one side."""
    channel = Channel()
    if settings["kind"] == "raysim":
        one = RaysimSide(channel)
        serve(channel, {"prepare": one.prepare, "run": one.run})
    other = PlainSide(settings["workload"])
    handlers = {"reset": other.reset, "rounds": other.rounds, "weights": other.weights}
    serve(channel, handlers)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
