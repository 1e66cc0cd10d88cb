"""Whatever reads an npz says which file is damaged; nobody sees a traceback of zipfile or zlib."""

import re

import numpy as np
import pytest

from raysim.data.datasets import DATASETS
from raysim.data.datasets.cifar_n import read_human_labels
from raysim.data.datasets.pictures import Changed, Wanted, list_sources, read_blocks
from raysim.data.features.feature_files import find_files, read_features
from raysim.data.split_file import read_split
from raysim.errors import DataError
from raysim.methods.clipfl import labelled_images
from raysim.seeding import stream


def pictures(path):
    wanted = Wanted((8, 8, 1), "uint8", ("a", "b"))
    return list(read_blocks(list_sources([str(path)], wanted), wanted, Changed()))


READERS = {
    "cifar10": ("cifar10.npz", lambda path: DATASETS.get("cifar10")().load(path.parent)),
    "cifar100_subset": (
        "cifar100_subset.npz",
        lambda path: DATASETS.get("cifar100_subset")().load(path.parent),
    ),
    "client": ("test.npz", lambda path: DATASETS.get("client_files")().load(path.parent)),
    "human": ("cifar10n.npz", read_human_labels),
    "predict": ("own.npz", pictures),
    "validation": ("validation.npz", lambda path: labelled_images(str(path), 2)),
    "split": ("split.npz", read_split),
    "features": ("features.npz", lambda path: read_features(find_files([str(path)])[0])),
}


ARRAYS = dict.fromkeys(
    ("x", "images", "labels", "features", "x_train"),
    stream(0, "test.damaged").integers(0, 40, (40, 8, 8)).astype(np.uint8),
)


def cut_off(path):
    np.savez_compressed(path, **ARRAYS)
    return path.read_bytes()[:-30]


def changed(path):
    np.savez_compressed(path, **ARRAYS)
    content = path.read_bytes()
    return re.sub(rb"(?s)(\.npy.{200}).{200}", rb"\1" + b"\xff" * 200, content)


def compressed_in_a_new_way(path):
    np.savez(path, **ARRAYS)
    return re.sub(rb"(?s)(PK\x01\x02.{6})..", rb"\g<1>" + b"\x63\x00", path.read_bytes())


def one_array(path):
    np.save(path.with_suffix(".npy"), np.ones(3))
    return path.with_suffix(".npy").read_bytes()


def empty(path):
    return b""


@pytest.mark.parametrize("damage", [cut_off, changed, compressed_in_a_new_way, one_array, empty])
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_npz_is_refused_by_name(reader, damage, tmp_path):
    name, read = READERS[reader]
    path = tmp_path / name
    path.write_bytes(damage(path))

    with pytest.raises(DataError, match=name):
        read(path)


def test_an_npy_with_a_damaged_header_is_refused_by_name(tmp_path):
    path = tmp_path / "own.npy"
    np.save(path, np.ones((3, 4)))
    path.write_bytes(path.read_bytes().replace(b"4), }", b"4 , }"))

    with pytest.raises(DataError, match=r"own\.npy"):
        read_features(find_files([str(path)])[0])
