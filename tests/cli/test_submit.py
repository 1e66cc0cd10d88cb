"""``raysim submit`` and ``status``: what is refused before anything is sent, names, what goes."""

from __future__ import annotations

import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import yaml

from raysim.cli.main import main
from raysim.cli.status import last_progress
from raysim.cli.submit import for_cluster
from raysim.config import config_yaml, load_config
from raysim.errors import ConfigError


@pytest.fixture
def cli(capsys):
    """Return a function that runs ``raysim ARGUMENTS...``: (exit code, output, errors)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        return int(left.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def nobody() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


# ---- where the run goes ----------------------------------------------------------------------


def test_the_job_runs_on_its_cluster_below_the_storage():
    config = load_config("quickstart", ["seed=3", "runtime.kind=local"])

    sent = for_cluster(config, "/mnt/shared/")

    again = load_config(yaml.safe_load(config_yaml(sent)))
    assert again == sent
    assert (sent.runtime.kind, sent.runtime.address) == ("ray", "auto")
    assert str(sent.run_dir()) == "/mnt/shared/runs/quickstart/fb_nll/seed3"


def test_a_url_stays_one():
    config = load_config("quickstart")

    sent = for_cluster(config, "s3://bucket/mine")

    assert sent.run_dir() == "s3://bucket/mine/runs/quickstart/fb_nll/seed0"


def test_an_absolute_output_needs_no_storage():
    sent = for_cluster(load_config("quickstart", ["output=/mnt/{name}"]), None)

    assert str(sent.run_dir()) == "/mnt/quickstart"


@pytest.mark.parametrize(
    ("output", "storage", "part"),
    [
        ("runs/{name}", None, "give --storage"),
        ("~/runs", None, "give --storage"),
        ("runs/{name}", "shared", "must be an absolute path"),
        ("runs/{name}", "~/shared", "must be an absolute path"),
        ("/mnt/{name}", "/mnt", "does not lie below"),
        ("../{name}", "/mnt", "does not lie below"),
        ("a/../../{name}", "/mnt", "does not lie below"),
    ],
)
def test_an_output_that_means_something_else_elsewhere_is_refused(output, storage, part):
    config = load_config("quickstart", [f"output={output}"])

    with pytest.raises(ConfigError, match=part):
        for_cluster(config, storage)


SECRETS = ["s3://me:hunter2@bucket/runs", "s3://KEY:hun/ter2@bucket/x", "s3://b/x?token=hunter2"]


@pytest.mark.parametrize("storage", SECRETS)
@pytest.mark.parametrize("output", ["runs/{name}", "/mnt/{name}"])
def test_a_password_in_the_storage_is_refused_and_not_repeated(storage, output):
    config = load_config("quickstart", [f"output={output}"])

    with pytest.raises(ConfigError, match="--storage is a s3:// URL with credentials") as wrong:
        for_cluster(config, storage)

    assert "ter2" not in str(wrong.value)


@pytest.mark.parametrize("storage", SECRETS)
def test_the_doctor_sends_no_password_to_the_cluster(cli, nobody, storage):
    code, out, err = cli("doctor", "--cluster", "--address", nobody, "--storage", storage)

    assert code == 2
    assert "URL with credentials" in err
    assert "ter2" not in out + err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["quickstart", "train.round=3"], "did you mean"),
        (["nothing-of-the-kind"], "neither a file nor a bundled config"),
        (["quickstart", "--resume", "--force"], "contradict each other"),
        (["quickstart", "--retries", "2", "--force"], "contradict each other"),
        (["quickstart"], "give --storage"),
    ],
)
def test_a_wrong_config_is_refused_before_the_cluster_is_asked(cli, nobody, arguments, part):
    code, out, err = cli("submit", *arguments, "--address", nobody)

    assert (code, out) == (2, "")
    assert part in err


# ---- whom to ask -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb", [["submit", "quickstart", "--storage", "/mnt"], ["status"], ["fetch", "some-job-1"]]
)
def test_an_address_where_nobody_answers_is_refused(cli, nobody, verb):
    code, out, err = cli(*verb, "--address", nobody)

    assert (code, out) == (3, "")
    assert nobody in err
    assert "correct --address" in err
    assert "Traceback" not in err


class _Stranger(BaseHTTPRequestHandler):
    """Some web server that is no Ray; ``status`` is what it answers."""

    status = 200

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (200, "does not answer as one of Ray's"),
        (500, "does not answer as one of Ray's"),
        (401, "asks for a token and got none"),
        (403, "refused this machine's token"),
    ],
)
def test_a_server_that_does_not_let_us_in_is_named(cli, monkeypatch, status, part):
    handler = type("Handler", (_Stranger,), {"status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    code, _, err = cli("status", "--address", f"http://127.0.0.1:{server.server_port}")
    server.shutdown()

    assert code == 3
    assert part in err


@pytest.mark.parametrize(
    "address", ["127.0.0.1:6379", "ray://host:10001", "http://", "http://a/b", "file:///x", ""]
)
def test_an_address_that_is_no_url_of_a_dashboard_is_refused(cli, address):
    code, _, err = cli("status", "--address", address)

    assert code == 2
    assert "URL of the cluster's dashboard" in err


def test_the_address_comes_from_the_argument_then_rays_variables(monkeypatch):
    from raysim.runtime.ray.jobs import find_address

    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = [find_address(None)]
    monkeypatch.setenv("RAY_ADDRESS", "http://b:2/")
    found.append(find_address(None))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://a:1")
    found.append(find_address(None))
    found.append(find_address("https://c:3"))

    assert found == ["http://127.0.0.1:8265", "http://b:2", "http://a:1", "https://c:3"]


def test_a_variable_that_is_no_url_is_named(monkeypatch):
    from raysim.runtime.ray.jobs import find_address

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "10.0.0.1:6379")

    with pytest.raises(ConfigError, match="RAY_API_SERVER_ADDRESS must be the URL"):
        find_address(None)


@pytest.mark.parametrize("joined", ["10.0.0.1:6379", "auto", "local", "ray://host:10001"])
def test_a_cluster_to_join_says_nothing_about_the_dashboard(monkeypatch, joined):
    from raysim.runtime.ray.jobs import DEFAULT_ADDRESS, find_address

    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", joined)

    assert find_address(None) == DEFAULT_ADDRESS


# ---- names and what is shipped ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["quickstart", "Größe $(rm -rf /)", "../../etc", "", "-", "a" * 500, "x;y", "日本"]
)
def test_a_job_id_is_plain_short_and_its_own(name):
    from raysim.runtime.ray.jobs import is_job_id, new_job_id

    first, second = new_job_id(name), new_job_id(name)

    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,48}", first)
    assert first != second
    assert is_job_id(first)


@pytest.mark.parametrize("text", ["", "a/b", "../x", "a?b", "a b", "-a", "a" * 200, "a\n", "é"])
def test_what_cannot_be_a_job_never_gets_into_a_url(text):
    from raysim.runtime.ray.jobs import is_job_id

    assert not is_job_id(text)


def test_the_shipped_folder_runs_by_itself_and_holds_no_leftovers(tmp_path):
    import subprocess

    from raysim.runtime.ray.jobs import packed

    with packed({"config.yaml": "name: x\n"}) as folder:
        names = [path.name for path in folder.rglob("*")]
        done = subprocess.run(
            [sys.executable, "-c", "import raysim; print(raysim.__file__)"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        inside = done.stdout.startswith(str(folder))

    assert inside, done.stderr
    assert "config.yaml" in names
    assert not [n for n in names if n == "__pycache__" or n.endswith(".pyc") or n.startswith(".")]
    assert not folder.exists()


def test_the_last_round_is_the_progress():
    log = (
        "Running entrypoint\ngroup 1/1  ARI 1.00  0.2 s\ntrain 2/9  acc 80.1 ± 2  0.1 s\nraysim: x"
    )

    assert last_progress(log).startswith("train 2/9")
    assert last_progress("one\ntwo\n\n") == "two"
    assert last_progress("") == ""


def test_follow_and_stop_need_a_job(cli):
    for flag in ("--follow", "--stop"):
        code, _, err = cli("status", flag)

        assert code == 2
        assert "need a job" in err


def test_a_mistyped_path_is_no_matter_for_a_cluster(tmp_path, monkeypatch):
    from raysim.cli.fetch import _bring
    from raysim.errors import DataError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="'not/there' is no run directory here"):
        _bring("not/there", None, tmp_path, models=False)


@pytest.mark.parametrize("readable", [True, False])
def test_a_job_that_wrote_to_a_url_is_copied_where_that_can_be_read(
    tmp_path, monkeypatch, readable
):
    import fsspec

    from raysim.cli import fetch
    from raysim.runtime.ray import jobs

    class OneJob:
        def __init__(self, address):
            pass

        def get(self, job_id):
            return SimpleNamespace(run_dir="memory://bucket/run")

    asked = []
    monkeypatch.setattr(jobs, "Jobs", OneJob)
    monkeypatch.setattr(fetch, "_through_cluster", lambda *given, models: asked.append(given[1]))
    files = fsspec.filesystem("memory")
    if readable:
        files.pipe_file("/bucket/run/config.yaml", b"name: one\n")

    fetch._bring(jobs.new_job_id("run"), None, tmp_path, models=False)

    assert asked == ([] if readable else ["memory://bucket/run"])
    assert (tmp_path / "config.yaml").exists() == readable
    files.store.clear()
