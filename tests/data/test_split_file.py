"""Split files: round trip, same bytes, and what a wrong file says."""

from __future__ import annotations

import os
import time
import zipfile

import numpy as np
import pytest

from raysim import load_config, run
from raysim.data.datasets import DATASETS
from raysim.data.noise import FileNoise, NoisyLabels, NoNoise, Uniform
from raysim.data.partition import FilePartition, TaskPartition
from raysim.data.split_file import export_split, read_split
from raysim.data.store import materialise
from raysim.errors import ConfigError, DataError, OutputError
from raysim.seeding import stream

LABELS = stream(4, "labels").integers(10, size=1003)


@pytest.fixture
def made() -> tuple:
    split = TaskPartition(clients=7, groups=3).make_split(
        LABELS, classes=10, task_table=lambda m: None, per_class=4, rng=stream(0, "partition")
    )
    noisy = Uniform(rho=0.7).corrupt(
        LABELS, split, classes=10, rngs=lambda k: stream(0, "noise", k)
    )
    return split, noisy


def write(path, made, **change):
    split, noisy = made
    values = {"split": split, "noisy": noisy, "dataset": "toy", "digest": "abc", "seed": 5}
    export_split(path, **{**values, **change})
    return path


def rewrite(path, **change):
    """Replace members of a split file; None removes one."""
    with np.load(path) as archive:
        members = {**archive, **change}
    np.savez(path, **{name: value for name, value in members.items() if value is not None})
    return path


def load(path, *, labels=LABELS, per_class=4, digest="abc"):
    return FilePartition(path=str(path)).make_split(
        labels,
        classes=10,
        task_table=lambda m: None,
        per_class=per_class,
        rng=stream(0, "unused"),
        digest=digest,
    )


def test_round_trip_gives_identical_arrays(made, tmp_path):
    split, noisy = made

    stored = read_split(write(tmp_path / "split.npz", made))

    pairs = [
        *zip(split.clients, stored.split.clients, strict=True),
        *zip(noisy.given, stored.given, strict=True),
        (split.task_of, stored.split.task_of),
        (split.server_ids, stored.split.server_ids),
        (noisy.rate, stored.rate),
        (noisy.is_noisy, stored.is_noisy),
        (noisy.target, stored.target),
    ]
    for before, after in pairs:
        assert before.dtype == after.dtype
        assert before.tobytes() == after.tobytes()
    assert stored.split.tasks == split.tasks
    assert (stored.dataset, stored.digest, stored.seed) == ("toy", "abc", 5)


def test_same_content_gives_the_same_bytes_whenever_written(made, tmp_path, monkeypatch):
    one = write(tmp_path / "one.npz", made).read_bytes()
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)

    two = write(tmp_path / "deep" / "two.npz", made).read_bytes()

    assert one == two
    assert one != write(tmp_path / "three.npz", made, seed=6).read_bytes()


def test_true_labels_are_not_in_the_file(made, tmp_path):
    split, noisy = made
    truth = np.concatenate([LABELS[ids] for ids in split.clients])
    assert not np.array_equal(truth, np.concatenate(noisy.given))

    with np.load(write(tmp_path / "split.npz", made)) as archive:
        for name in archive.files:
            assert not np.array_equal(archive[name], truth)
            assert not np.array_equal(archive[name], LABELS[split.server_ids])
        assert "realised" not in archive.files


def test_no_part_file_stays_and_the_old_file_survives_a_failure(made, tmp_path, monkeypatch):
    path = write(tmp_path / "split.npz", made)
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OutputError) as error:
        write(path, made, seed=6)

    assert str(error.value) == (
        f"split file {path} cannot be written, got No space left on device; choose another path"
    )
    assert os.listdir(tmp_path) == ["split.npz"]
    assert path.read_bytes() == before


def test_partition_from_file_knows_its_counts_and_gives_the_split(made, tmp_path):
    path = write(tmp_path / "split.npz", made)
    partition = FilePartition(path=str(path))

    split = load(path)

    assert (partition.clients, partition.groups) == (7, 3)
    assert all(map(np.array_equal, split.clients, made[0].clients))
    assert split.source == str(path)


def test_noise_without_path_reads_the_partitions_file(made, tmp_path):
    split = load(write(tmp_path / "split.npz", made))

    noisy = FileNoise().corrupt(LABELS, split, classes=10, rngs=lambda k: stream(0, "unused"))

    assert all(map(np.array_equal, noisy.given, made[1].given))
    assert np.array_equal(noisy.realised, made[1].realised)


def test_another_dataset_is_refused(made, tmp_path):
    path = write(tmp_path / "split.npz", made)

    for digest in ("xyz", ""):
        with pytest.raises(DataError) as error:
            load(path, digest=digest)
        assert str(error.value) == (
            f"data.partition.path: split file {path} was made from 'toy' with digest 'abc', got a "
            f"dataset with digest {digest!r}; use the dataset it was made from, or export the "
            "split again"
        )


def test_another_number_of_server_images_is_refused(made, tmp_path):
    path = write(tmp_path / "split.npz", made)

    with pytest.raises(ConfigError) as error:
        load(path, per_class=20)

    assert str(error.value) == (
        f"data.server.per_class must be what split file {path} holds, got 20, but class 0 has 4 "
        "clean images there; set per_class to that, or export the split again"
    )


def test_ids_outside_the_training_set_are_refused(made, tmp_path):
    with pytest.raises(DataError, match="is outside the 500 training samples"):
        load(write(tmp_path / "split.npz", made), labels=LABELS[:500])


def export_half_tested(folder):
    """Export a split of a dataset whose test images are all of even digits."""
    rng = stream(0, "test.images")
    evens = np.array([0, 2, 4, 6, 8])
    np.savez(
        folder / "mnist.npz",
        x_train=rng.integers(0, 256, (60, 28, 28), np.uint8),
        y_train=np.arange(60) % 10,
        x_test=rng.integers(0, 256, (10, 28, 28), np.uint8),
        y_test=np.repeat(evens, 2),
    )
    labels = np.arange(60) % 10
    split = TaskPartition(clients=2, groups=1, impurity_rate=0.0).make_split(
        labels, classes=10, task_table=lambda m: None, per_class=1, rng=stream(0, "partition")
    )
    noisy = NoNoise().corrupt(labels, split, classes=10, rngs=lambda k: stream(0, "noise", k))
    digest = materialise(DATASETS.get("mnist")(), str(folder)).digest
    path = folder / "split.npz"
    export_split(path, split=split, noisy=noisy, dataset="mnist", digest=digest, seed=0)
    return path


def config_of(path, folder):
    return load_config(
        "quickstart",
        [
            "data.dataset=mnist",
            f"data.root={folder}",
            f"data.partition={{kind: file, path: {path}}}",
            "data.noise=file",
            "data.server.per_class=1",
            "method=single",
            "train.rounds=1",
            "runtime.kind=local",
            f"output={folder / 'run'}",
        ],
    )


@pytest.mark.parametrize(
    ("second_task", "says"),
    [
        (
            [1, 3],
            "data.partition.path: split file {path} gives client 1 the classes 1, 3, of which "
            "dataset 'mnist' has no test image; add test images, or use other tasks",
        ),
        (
            [4, 57],
            "data.partition.path: split file {path} names class 57, got a dataset with the "
            "classes 0 to 9; export the split again",
        ),
    ],
)
def test_tasks_without_test_images_are_refused_before_the_start(
    own_cache, tmp_path, second_task, says
):
    path = export_half_tested(tmp_path)
    tasks = np.array([0, 2, *second_task])
    rewrite(path, tasks=tasks, task_offsets=np.array([0, 2, 4]), task_of=np.array([0, 1]))

    with pytest.raises(DataError) as error:
        run(config_of(path, tmp_path))

    assert str(error.value) == says.format(path=path)
    assert not (tmp_path / "run").exists()


def test_a_class_without_test_images_may_share_a_task_with_one_that_has_some(own_cache, tmp_path):
    path = export_half_tested(tmp_path)
    tasks = np.array([0, 1, 2, 3])
    rewrite(path, tasks=tasks, task_offsets=np.array([0, 2, 4]), task_of=np.array([0, 1]))

    result = run(config_of(path, tmp_path))

    assert 0.0 <= result.accuracy <= 1.0


def test_missing_file(tmp_path):
    path = tmp_path / "none.npz"

    for read in (lambda: read_split(path), lambda: FilePartition(path=str(path)).clients):
        with pytest.raises(DataError) as error:
            read()
        assert str(error.value).endswith(
            f"split file {path} must exist, got no file there; export it or correct the path"
        )


def test_file_of_another_kind(tmp_path):
    path = tmp_path / "split.npz"
    with path.open("wb") as file:
        np.save(file, np.arange(3))

    with pytest.raises(DataError) as error:
        read_split(path)

    assert str(error.value) == (
        f"split file {path} must be an npz of plain arrays, got a single array instead of an npz "
        "archive; export it again"
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"rate": None, "given": None}, "must have all members, got none called given, rate;"),
        (
            {"format": np.array("raysim-split-9")},
            "must have format raysim-split-1, got 'raysim-spl",
        ),
        ({"ids": np.array([0.5])}, "must have ids as in the layout, got float64 with shape (1,)"),
        ({"seed": np.array([1, 2])}, "must have seed as in the layout, got int64 with shape (2,)"),
        ({"offsets": np.array([0, 5, 3])}, "must have offsets rising from 0 to the end of ids"),
        (
            {"given": np.array([1])},
            "rising from 0 to the end of given, got 8 offsets for 1 entries",
        ),
        (
            {"task_offsets": np.array([0])},
            "must have task_offsets rising from 0 to the end of tasks",
        ),
        ({"rate": np.array([0.5])}, "must have one rate per client, got 1 for 7 clients; export"),
        (
            {"ids": np.array([{}], object)},
            "must be an npz of plain arrays, got Object arrays cannot",
        ),
    ],
)
def test_damaged_member(made, tmp_path, change, found):
    path = rewrite(write(tmp_path / "split.npz", made), **change)

    with pytest.raises(DataError) as error:
        read_split(path)

    assert found in str(error.value)
    assert str(error.value).startswith(f"split file {path} ")
    assert str(error.value).endswith("; export it again")


def test_flipped_bit_is_found_by_the_checksum(made, tmp_path):
    path = write(tmp_path / "split.npz", made)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("given.npy").header_offset
    content = bytearray(path.read_bytes())
    content[start + 1000] ^= 1
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"must be an npz of plain arrays, got Bad CRC-32"):
        read_split(path)


def test_one_client_one_task(tmp_path):
    labels = np.array([1, 0, 1])
    split = TaskPartition(clients=1, groups=1, impurity_rate=0.0).make_split(
        labels, classes=2, task_table=lambda m: None, per_class=0, rng=stream(0, "partition")
    )
    noisy = NoisyLabels(
        given=(labels,),
        rate=np.zeros(1),
        realised=np.zeros(1),
        is_noisy=np.zeros(1, bool),
        target=np.array([-1]),
    )

    stored = read_split(write(tmp_path / "split.npz", (split, noisy)))

    assert stored.split.clients[0].tolist() == [0, 1, 2]
    assert stored.split.server_ids.shape == (0,)
