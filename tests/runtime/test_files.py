"""Files of this machine: whole or not at all, arrays without code, JSON without NaN."""

from __future__ import annotations

import io
import json
import math
import pickle

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.storage.files import json_text, open_arrays, read_array, write_whole


def saved(array, allow_pickle=True) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def packed(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def damaged(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def say(error: str) -> str:
    return f"this is no array ({error}); write it again"


def test_array_is_read_whole_or_mapped(tmp_path):
    (tmp_path / "a.npy").write_bytes(saved(np.arange(4)))

    assert read_array(tmp_path / "a.npy", say).tolist() == [0, 1, 2, 3]
    assert isinstance(read_array(tmp_path / "a.npy", say, mapped=True), np.memmap)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        saved(np.arange(40))[:-8],
        saved(np.array([{}], dtype=object)),
        packed(x=np.arange(3)),
        None,
    ],
    ids=["empty", "text", "cut", "pickle", "npz", "missing"],
)
def test_what_is_no_array_is_said_in_the_callers_words(tmp_path, content, mapped):
    if content is not None:
        (tmp_path / "a.npy").write_bytes(content)

    with pytest.raises(DataError, match=r"this is no array \(.+\); write it again"):
        read_array(tmp_path / "a.npy", say, mapped=mapped)


@pytest.mark.parametrize("read", [read_array, lambda path, say: open_arrays(path, say).__enter__()])
@pytest.mark.parametrize("content", [b"text", pickle.dumps({"x": 1})])
def test_nobody_is_told_to_unpickle_a_file_of_another_kind(tmp_path, content, read):
    (tmp_path / "a").write_bytes(content)

    for source in (tmp_path / "a", io.BytesIO(content)):
        with pytest.raises(DataError, match=r"no array \(a file of another kind\)"):
            read(source, say)


def test_arrays_are_read_by_name(tmp_path):
    (tmp_path / "a.npz").write_bytes(packed(x=np.arange(3), y=np.arange(2)))

    with open_arrays(tmp_path / "a.npz", say) as archive:
        assert archive.files == ["x", "y"]
        assert archive["y"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        packed(x=np.arange(300))[:-8],
        damaged(packed(x=np.random.default_rng(0).random(300))),
        packed(x=np.array([{}], dtype=object)),
        packed(y=np.arange(3)),
        saved(np.arange(3)),
    ],
    ids=["empty", "text", "cut", "damaged", "pickle", "other", "npy"],
)
def test_what_is_no_archive_is_said_in_the_callers_words(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)

    with (
        pytest.raises(DataError, match=r"this is no array \(.+\); write it again"),
        open_arrays(tmp_path / "a.npz", say) as archive,
    ):
        archive["x"]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_write_that_breaks_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "a.txt"
    write_whole(path, b"old")

    def fill(file):
        file.write(b"new")
        raise error

    with pytest.raises(type(error)):
        write_whole(path, fill)

    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json_has_null_and_names_for_what_is_not_finite():
    value = {"loss": math.nan, "accuracy": {"per_client": [0.5, math.inf]}, "rounds": 3}

    plain = json.loads(json_text(value), parse_constant=pytest.fail)

    assert plain == {
        "loss": None,
        "accuracy": {"per_client": [0.5, None]},
        "rounds": 3,
        "not_finite": ["loss", "accuracy.per_client[1]"],
    }
    assert "not_finite" not in json_text({"loss": 1.5})
