"""Named objects below a root: the same on a disk and behind a URL."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from raysim.config import load_config
from raysim.errors import ConfigError, OutputError, RaysimError
from raysim.storage.objects import Storage, below, open_storage, place


@pytest.fixture(params=["folder", "url"])
def storage(request, tmp_path) -> Storage:
    root = tmp_path / "a" / "b" if request.param == "folder" else f"memory://{uuid.uuid4().hex}/b"
    return open_storage(root)


def test_what_was_written_is_read(storage):
    storage.write("one.json", b"1")
    storage.write("deep/er/two", lambda file: file.write(b"22"))
    storage.write("one.json", b"111")

    assert storage.read("one.json") == b"111"
    assert storage.read("deep/er/two") == b"22"
    with storage.open("one.json") as file:
        assert (file.read(1), file.seek(0), file.read()) == (b"1", 0, b"111")


def test_what_is_not_there_is_not_found(storage):
    with pytest.raises(FileNotFoundError):
        storage.read("one.json")
    assert not storage.exists("one.json")
    assert storage.names() == storage.names("deep") == storage.find("one.json") == []


def test_a_folder_is_not_an_object(storage):
    storage.write("deep/one", b"1")

    assert not storage.exists("deep")


def test_names_are_those_directly_below(storage):
    for name in ("b", "a", "deep/c", "deep/er/d", "deeper"):
        storage.write(name, b"")

    assert storage.names() == ["a", "b", "deep", "deeper"]
    assert storage.names("deep") == ["c", "er"]


def test_runs_are_found_at_any_depth(storage):
    for name in ("x/config.yaml", "x/checkpoint/a.json", "y/z/config.yaml", "my-config.yaml"):
        storage.write(name, b"")

    roots = storage.find("config.yaml")

    assert roots == [f"{storage.root}/x", f"{storage.root}/y/z"]
    assert all(open_storage(root).exists("config.yaml") for root in roots)


def test_removing_is_harmless_twice(storage):
    for name in ("one", "deep/two", "deep/er/three"):
        storage.write(name, b"")

    for _ in range(2):
        storage.remove("one")
        storage.remove_folder("deep")

    assert storage.names() == []


def test_a_renamed_object_has_its_new_name_only(storage):
    storage.write("old", b"1")

    storage.rename("old", "new")

    assert (storage.names(), storage.read("new")) == (["new"], b"1")


def test_lines_are_appended_to_what_is_there(storage):
    storage.append("lines", b"one\n")
    storage.append("lines", b"two\n")
    storage.write("lines", b"new\n")
    storage.append("lines", b"three\n")
    open_storage(storage.root).append("lines", b"four\n")

    assert storage.read("lines") == b"new\nthree\nfour\n"


def test_a_write_that_fails_leaves_the_old_object_and_nothing_else(storage):
    storage.write("one", b"old")

    def fill(file) -> None:
        file.write(b"half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        storage.write("one", fill)

    assert (storage.names(), storage.read("one")) == (["one"], b"old")


def test_a_check_leaves_nothing_behind(storage):
    storage.check_writable()

    assert storage.names() == []


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "a//b", "", "..", "a\0b", "a b", "a\nb", "a/é"]
)
def test_a_name_cannot_leave_its_root(storage, name):
    for use in (storage.read, storage.exists, storage.remove, lambda n: storage.write(n, b"")):
        with pytest.raises(OutputError, match="is not a name"):
            use(name)


# ---- places --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("runs/one", Path("runs/one")),
        ("file:///data/my%20runs", Path("/data/my runs")),
        ("file://localhost/data", Path("/data")),
        ("s3://bucket/runs/", "s3://bucket/runs"),
        ("gs://bucket/run@2", "gs://bucket/run@2"),
    ],
)
def test_paths_are_folders_and_urls_are_not(text, where):
    assert place(text) == where


def test_only_a_path_is_relative():
    assert below("/base", Path("runs")) == Path("/base/runs")
    assert below("/base", Path("/runs")) == Path("/runs")
    assert below("/base", "s3://bucket/runs") == "s3://bucket/runs"


SECRET = "wJalr/secret+word"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/runs",
        f"s3://key:{SECRET}@bucket/{{unknown}}",
        f"sftp://me:{SECRET}@host/runs",
        f"simplecache::s3://key:{SECRET}@bucket/runs",
        f"https://host/runs?sig={SECRET}",
        f"https://host/runs#{SECRET}",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_repeated(url):
    with pytest.raises(ConfigError, match="environment variables") as caught:
        load_config("quickstart", [f"output={url}"])
    with pytest.raises(ConfigError):
        open_storage(url)

    assert SECRET not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_config_may_name_a_url():
    config = load_config("quickstart", ["output=s3://bucket/{name}/seed{seed}", "seed=3"])

    assert config.run_dir() == "s3://bucket/quickstart/seed3"


def test_a_url_on_another_host_is_no_file():
    with pytest.raises(ConfigError, match="three slashes"):
        place("file://server/runs")


def test_an_unknown_scheme_is_refused_with_a_way_out():
    with pytest.raises(ConfigError, match=r"use a path, s3:// or gs://"):
        open_storage("nosuch://bucket/runs")


@pytest.mark.parametrize(
    ("url", "package", "extra"), [("s3://b/x", "s3fs", "s3"), ("gs://b/x", "gcsfs", "gcs")]
)
def test_a_missing_package_names_the_extra(url, package, extra):
    script = f"""
import sys
sys.modules["{package}"] = None  # importing it now fails
from raysim.errors import EnvironmentNotFit
from raysim.storage.objects import open_storage
try:
    open_storage("{url}")
except EnvironmentNotFit as wrong:
    print(wrong)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert f"output {url} needs a package" in done.stdout, done.stderr
    assert f"pip install 'raysim[{extra}]'" in done.stdout


def test_a_url_that_cannot_be_written_is_refused(tmp_path):
    from raysim.runs.folder import RunFolder

    with pytest.raises(RaysimError, match="cannot be"):
        RunFolder("http://127.0.0.1:9/runs").check(resume=False, force=False)


def test_fsspec_is_not_imported_for_a_folder(tmp_path):
    script = """
import sys
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.storage.checkpoint import write_manifest
folder = RunFolder(sys.argv[1])
folder.check(resume=False, force=False)
folder.open(force=False)
folder.append(RoundRecord.from_json({"round": 1}))
write_manifest(folder.checkpoint, {})
folder.close()
print("fsspec" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True
    )

    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
