"""Human labels: read without running code, given to the right samples, refused for others."""

from __future__ import annotations

import os

import numpy as np
import pytest
from noise_checks import check_noise

from raysim.data.datasets import DATASETS, data_root
from raysim.data.datasets.cifar_n import find_human_labels, read_human_labels
from raysim.data.datasets.classes import CIFAR100_SUPERCLASSES
from raysim.data.noise import Human
from raysim.data.partition import PARTITIONS, Split
from raysim.data.world import CleanSetSettings, DataSettings, DriverData
from raysim.errors import ConfigError, DataError
from raysim.seeding import stream

CLEAN = np.arange(30) % 10


def write_labels(folder, **columns):
    np.savez(folder / "cifar10n.npz", clean_label=CLEAN.astype(np.uint8), **columns)
    return folder / "cifar10n.npz"


def two_clients(*ids):
    return Split(
        clients=tuple(np.array(own) for own in ids),
        tasks=(tuple(range(10)),),
        task_of=np.zeros(len(ids), int),
        server_ids=np.empty(0, int),
    )


def corrupt(noise, labels=CLEAN, split=None, classes=10):
    split = split or two_clients(range(0, 10), range(10, 30))
    return noise.corrupt(labels, split, classes=classes, rngs=lambda k: stream(0, "noise", k))


def test_each_client_gets_the_labels_of_its_samples(tmp_path):
    # Sample 3 is called 8 and sample 29 is called 0: 1 of 10 and 1 of 20 labels are wrong.
    worse = CLEAN.copy()
    worse[[3, 29]] = [8, 0]
    write_labels(tmp_path, worse_label=worse.astype(np.uint8))

    split = two_clients(range(0, 10), range(10, 30))
    noisy = corrupt(Human(path=str(tmp_path)), split=split)

    check_noise(noisy, CLEAN, split, classes=10)
    assert [given.tolist() for given in noisy.given] == [worse[:10].tolist(), worse[10:].tolist()]
    assert noisy.realised.tolist() == [0.1, 0.05]
    assert noisy.is_noisy.tolist() == [True, True]


def test_a_client_whose_labels_are_all_right_is_clean(tmp_path):
    worse = CLEAN.copy()
    worse[0] = 5
    path = write_labels(tmp_path, worse_label=worse)

    noisy = corrupt(Human(path=str(path)))  # the file itself

    assert noisy.is_noisy.tolist() == [True, False]


def test_labels_are_looked_for_beside_the_images(tmp_path, own_cache, small_arrays):
    # data.root holds both; 12 training images with labels 0..9, 0, 1.
    arrays = small_arrays((32, 32, 3))
    np.savez(tmp_path / "cifar10.npz", **arrays)
    given = (arrays["y_train"] + 1) % 10
    np.savez(tmp_path / "cifar10n.npz", clean_label=arrays["y_train"], worse_label=given)
    settings = DataSettings(
        dataset=DATASETS.get("cifar10")(),
        root=str(tmp_path),
        partition=PARTITIONS.get("iid")(clients=2),
        noise=Human(),
        server=CleanSetSettings(per_class=0),
    )

    data = DriverData(settings, seed=0)

    for ids, labels in zip(data.split.clients, data.noisy.given, strict=True):
        np.testing.assert_array_equal(labels, given[ids])
    assert data.noisy.realised.tolist() == [1.0, 1.0]


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError) as error:
        corrupt(Human(path=str(tmp_path)))

    assert str(error.value) == (
        f"human labels cifar10n are not in {tmp_path}; expected there: cifar10n.npz or "
        "CIFAR-10_human.pt; run `raysim data fetch cifar10n`, or set data.noise.path to their "
        "folder"
    )


def test_labels_of_other_images_are_refused(tmp_path):
    # Sorted, only samples 0, 14, 15 and 29 have the label i mod 10 = floor(i / 3).
    write_labels(tmp_path, worse_label=CLEAN)
    noise = Human(path=str(tmp_path))

    with pytest.raises(DataError, match=r"got 30 images \(26 true labels differ\); set data.data"):
        corrupt(noise, labels=np.sort(CLEAN))
    with pytest.raises(DataError, match=r"got 29 images \(another number\)"):
        corrupt(noise, labels=CLEAN[:29])


@pytest.mark.parametrize(
    ("variant", "classes", "text"),
    [
        ("worse", 7, "human has labels for data.dataset cifar10 and cifar100 only, got a dataset "),
        ("noisy", 10, "must be one of aggre, random1, random2, random3, worse for 10 classes, got"),
        ("worse", 100, "must be one of noisy for 100 classes, got worse"),
    ],
)
def test_a_dataset_without_such_labels_is_refused(variant, classes, text):
    with pytest.raises(ConfigError, match=text):
        corrupt(Human(variant=variant), classes=classes)


def test_a_missing_column_is_named(tmp_path):
    write_labels(tmp_path, worse_label=CLEAN)

    with pytest.raises(DataError, match="must have a column aggre_label, got clean_label, worse_"):
        corrupt(Human(variant="aggre", path=str(tmp_path)))


def test_the_authors_own_file_is_read(tmp_path, torch_file):
    content = {"clean_label": CLEAN, "worse_label": CLEAN[::-1].copy()}
    torch_file(tmp_path / "CIFAR-10_human.pt", content)

    columns = read_human_labels(find_human_labels("cifar10n", tmp_path))

    np.testing.assert_array_equal(columns["worse_label"], CLEAN[::-1])
    assert columns["clean_label"].dtype == np.int64


class Evil:
    """A pickle that would call ``os.mkdir`` when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_file_is_not_run(tmp_path, torch_file):
    path = torch_file(tmp_path / "CIFAR-10_human.pt", {"clean_label": Evil(tmp_path / "made")})

    with pytest.raises(
        DataError, match=r"must hold the label columns .* got: .*mkdir, which is no"
    ):
        read_human_labels(path)

    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["cifar10n.npz", "CIFAR-10_human.pt"])
@pytest.mark.parametrize("damage", ["no archive", "a new way to compress"])
def test_a_damaged_file_is_refused(tmp_path, name, damage, torch_file):
    path = torch_file(tmp_path / name, {"clean_label": CLEAN})
    content = path.read_bytes()
    central = content.index(b"PK\x01\x02") + 10
    unknown = content[:central] + b"\x63" + content[central + 1 :]
    path.write_bytes(unknown if damage == "a new way to compress" else b"PK\x03\x04 not really")

    with pytest.raises(DataError, match=r"must hold the label columns of CIFAR-N.*raysim data fet"):
        read_human_labels(tmp_path / name)


PUBLISHED = {  # percent, Wei et al. 2022, Table 1
    ("cifar10n", "aggre"): 9.03,
    ("cifar10n", "random1"): 17.23,
    ("cifar10n", "random2"): 18.12,
    ("cifar10n", "random3"): 17.64,
    ("cifar10n", "worse"): 40.21,
    ("cifar100n", "noisy"): 40.20,
}


@pytest.mark.data
@pytest.mark.parametrize(("name", "variant"), PUBLISHED)
def test_real_human_noise_is_the_published_share(name, variant):
    path = find_human_labels(name, data_root(None))
    if path is None:
        pytest.skip(f"{name} is not in {data_root(None)}; run `raysim data fetch {name}`")
    clean = read_human_labels(path)["clean_label"]
    classes = 10 if name == "cifar10n" else 100
    split = PARTITIONS.get("iid")(clients=100).make_split(
        clean, classes=classes, task_table=lambda m: None, per_class=0, rng=stream(0, "partition")
    )

    noisy = corrupt(Human(variant=variant), labels=clean, split=split, classes=classes)

    # All clients have 500 samples. The printed aggregate of CIFAR-10N, 9.03, is 9.01 in the file.
    assert 100 * noisy.realised.mean() == pytest.approx(PUBLISHED[name, variant], abs=0.021)
    assert noisy.is_noisy.all()


@pytest.mark.data
def test_real_human_labels_belong_to_the_real_images():
    path, cifar10 = find_human_labels("cifar10n", data_root(None)), DATASETS.get("cifar10")()
    if path is None or not cifar10.sources(None):
        pytest.skip("cifar10 and cifar10n are not both here; run `raysim data fetch cifar10n`")

    labels = cifar10.load(None).train_labels

    np.testing.assert_array_equal(read_human_labels(path)["clean_label"], labels)


@pytest.mark.data
def test_superclasses_of_cifar100_are_those_of_the_real_labels():
    path = find_human_labels("cifar100n", data_root(None))
    columns = read_human_labels(path) if path else {}
    if "clean_coarse_label" not in columns:
        pytest.skip("no file with the coarse labels of CIFAR-100 is here")

    pairs = set(zip(columns["clean_coarse_label"], columns["clean_label"], strict=True))

    groups = [tuple(sorted(fine for c, fine in pairs if c == coarse)) for coarse in range(20)]
    assert groups == list(CIFAR100_SUPERCLASSES)
