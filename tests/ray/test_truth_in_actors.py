"""True training labels stay with the driver: real actors are searched for them."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from raysim.config import load_config
from raysim.data.world import DriverData
from raysim.experiment import experiment, make_federation

pytestmark = pytest.mark.ray
LOGISTIC = ("train.rounds=1", "train.epochs=1", "runtime={kind: ray, actors: 2}")


def digests_task(client, memory, arguments):
    """Reply with the sha256 of every integer array or list that this process can reach."""
    import gc
    import hashlib
    import sys

    import numpy as np

    def digest(values):
        return hashlib.sha256(np.ascontiguousarray(values, dtype=np.int64).tobytes()).hexdigest()

    found = set()
    stack = [*gc.get_objects(), *sys._current_frames().values()]
    stack = [held for holder in stack for held in gc.get_referents(holder)]
    while stack:
        item = stack.pop()
        if isinstance(item, np.ndarray) and item.dtype.kind in "iu" and 1 < item.size < 10**6:
            found.add(digest(item))
        if isinstance(item, list | tuple) and len(item) in arguments["sizes"]:
            found |= {digest(item)} if all(type(value) is int for value in item) else set()
        if isinstance(item, dict | tuple) and not gc.is_tracked(item):
            stack.extend(gc.get_referents(item))  # the collector skips containers of plain values
    return memory, found


def pid_task(client, memory, arguments):
    return memory, os.getpid()


def search(federation, data):
    """Return every digest found on any actor, one search per actor."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    sizes = {len(data.true_labels), *(len(ids) for ids in data.split.clients)}
    first = {pid: k for k, pid in federation.map(pid_task).items()}
    return set().union(*federation.map(digests_task, on=first.values(), sizes=sizes).values())


def digest(values):
    import hashlib

    return hashlib.sha256(np.ascontiguousarray(values, dtype=np.int64).tobytes()).hexdigest()


def truths(data):
    """The whole truth, and the part of every client."""
    return [data.true_labels, *(data.true_labels[ids] for ids in data.split.clients)]


@pytest.mark.parametrize(
    ("method", "stage"), [("fb_nll", "group"), ("fb_nll_minus", "train"), ("optimum", "train")]
)
def test_no_actor_can_reach_a_true_label(ray_session, tmp_path, monkeypatch, method, stage):
    # Not after correction: labels that were all repaired equal the truth, and rightly so.
    config = load_config(
        "quickstart", [*LOGISTIC, f"method={method}", f"output={tmp_path / 'run'}"]
    )
    data = DriverData(config.data, config.seed)
    federations, found = [], set()

    def keep(*arguments):
        federations.append(make_federation(*arguments))
        return federations[0]

    def look(event):
        if event.kind == "round" and event.stage == stage:
            found.update(search(federations[0], data))

    monkeypatch.setattr(experiment, "make_federation", keep)
    experiment.Experiment(config).run(listeners=[look])

    assert {digest(given) for given in data.noisy.given} <= found  # the search does find labels
    assert not {digest(true) for true in truths(data)} & found


def test_an_actor_that_made_the_images_itself_keeps_no_label(ray_session, tmp_path, monkeypatch):
    # The driver has a cache of its own, so that the actors' machine lacks these images.
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path))
    new = "data.dataset={name: synthetic, per_class: 60, data_seed: 4711}"
    config = load_config("quickstart", [*LOGISTIC, new])
    data = DriverData(config.data, config.seed)
    federation = make_federation(config, data)
    try:
        found = search(federation, data)
    finally:
        federation.close()

    assert {digest(given) for given in data.noisy.given} <= found
    assert not {digest(true) for true in truths(data)} & found


def test_actors_are_made_from_small_values_without_truth(ray_session, monkeypatch):
    from ray import cloudpickle

    from raysim.runtime.ray.federation import RayFederation

    sent = []
    monkeypatch.setattr(RayFederation, "_wait_for_start", lambda self: [])
    config = load_config("quickstart", LOGISTIC)
    data = DriverData(config.data, config.seed)

    class Spy:
        """Stands in for an actor class and its actors; keeps what they would be made from."""

        def __getattr__(self, _):
            return self

        def options(self, **_):
            return self

        def remote(self, *arguments, **named):
            sent.append(cloudpickle.dumps((arguments, named)))
            return self

    for module in ("hosts", "servers"):
        monkeypatch.setattr(f"raysim.runtime.ray.{module}._Remote", Spy())
    make_federation(config, data)

    blob = b"".join(sent)
    assert all(given.tobytes() in blob for given in data.noisy.given)
    for true in truths(data):
        for kind in (np.int64, np.int32, np.int16, np.uint8):
            assert true.astype(kind).tobytes() not in blob
    assert len(blob) < 3 * 8 * len(data.true_labels)  # ids and labels; no image, no feature
