"""``--import``: methods outside the package, as configs/examples/my_methods.py has one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from raysim.config import config_yaml, dump_config, load_config
from raysim.config.plugins import import_modules, module_files, module_names
from raysim.errors import ConfigError, EnvironmentNotFit

EXAMPLE = Path(__file__).resolve().parents[2] / "configs" / "examples" / "my_methods.py"
SHORT = ("quickstart", "train.rounds=2", "train.epochs=1", "runtime.kind=local")
CONTRACT = """
import json
from raysim.config import load_config
from raysim.experiment import Experiment

TINY = (
    "data.partition={kind: tasks, clients: 13, groups: 3, split: dirichlet, alpha: 2.0}",
    "train.rounds=3", "train.epochs=1", "method=label_groups",
)

def run(folder, *more, **options):
    overrides = [*TINY, "runtime.kind=local", f"output={folder}", *more]
    config = load_config("quickstart", overrides, imports=["my_methods"])
    return Experiment(config).run(**options).summary

def stop(event):
    if event.kind == "round" and event.stage == "train" and event.round == 2:
        raise KeyboardInterrupt

told = {"local": run("local")}
try:
    run("stopped", listeners=[stop])
except KeyboardInterrupt:
    told["resumed"] = run("stopped", resume=True)
told["ray"] = run("ray", "runtime={kind: ray, actors: 2}")
one = "data.partition={kind: tasks, clients: 1, groups: 1, impurity_rate: 0.0}"
told["one"] = run("one", one, "data.noise={kind: uniform, rho: 1.0}")
saved = load_config("local/config.yaml", ["output=again"])
told["saved"] = Experiment(saved).run().summary
actors = json.load(open("ray/environment.json"))["actors"]
told["actors"] = [row["clients"] for row in actors if row["role"] == "clients"]
print(json.dumps(told))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder; what is imported from it is forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in sys.modules.keys() - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def told(_own_cache, tmp_path_factory):
    """What the runs of the contract say about the example's method."""
    where = tmp_path_factory.mktemp("contract")
    shutil.copy(EXAMPLE, where)
    done = subprocess.run(
        [sys.executable, "-c", CONTRACT], cwd=where, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ---- the example keeps the contract ----------------------------------------------------------


@pytest.mark.ray
@pytest.mark.parametrize("other", ["ray", "resumed", "saved"])
def test_the_example_has_the_same_bits_however_it_runs(told, other):
    assert told[other]["digest"] == told["local"]["digest"]


@pytest.mark.ray
def test_its_tasks_ran_on_two_actors(told):
    assert sorted(told["actors"]) == [6, 7]


@pytest.mark.ray
def test_it_groups_by_labels_and_counts_what_clients_send(told):
    local = told["local"]

    assert len(set(local["groups"])) == 3
    assert local["messages"]["up"]["histogram"] == 13 * 10 * 4  # clients, classes, float32
    assert len(told["one"]["accuracy"]["per_client"]) == 1


# ---- from the command line -------------------------------------------------------------------


def test_the_commands_of_the_example_work_as_written(command, tmp_path):
    shutil.copy(EXAMPLE, tmp_path)
    lines = [x.split() for x in EXAMPLE.read_text().splitlines() if x.startswith("    raysim ")]

    done = command(*lines[0][1:], *SHORT[1:])
    compared = command(*lines[1][1:], "train.rounds=1", "name=words")

    assert [line[1] for line in lines] == ["run", "compare"]
    assert compared.code == 0, compared.err
    assert (tmp_path / "runs/words/comparison/report.html").is_file()

    assert done.code == 0, done.err
    assert "label_groups" in done.out
    saved = tmp_path / "runs/quickstart/label_groups/seed0/config.yaml"
    assert yaml.safe_load(saved.read_text())["imports"] == ["my_methods"]
    unnamed = command("run", saved, "--resume")
    assert (unnamed.code, "add --import my_methods" in unnamed.err) == (2, True)
    assert command("run", saved, "--resume", "--import", "my_methods").code == 0
    changed = command("run", saved, "--resume", "imports=[my_methods, json]")
    assert changed.code == 2
    assert "imports (now ['my_methods', 'json'], was ['my_methods'])" in changed.err
    exported = command("data", "export", saved, "split.npz", "--import", "my_methods")
    assert (exported.code, "written to split.npz" in exported.out) == (0, True)
    listed = command("ls", "methods", "--import", "my_methods")
    assert re.search(r"^label_groups +Groups by label histograms", listed.out, re.MULTILINE)
    plan = command("show", "--plan", *SHORT, "method=label_groups", "--import", "my_methods")
    assert "12 clients in this process" in plan.out


def test_a_wrong_setting_of_an_own_method_is_named(command, tmp_path):
    shutil.copy(EXAMPLE, tmp_path)
    own = (*SHORT, "--import", "my_methods", "method.name=label_groups")

    misspelled, too_many = (command("run", *own, x) for x in ("method.group=2", "method.groups=99"))

    assert (misspelled.code, too_many.code) == (2, 2)
    assert "method.group is not a setting; did you mean groups?" in misspelled.err
    assert "method.groups must be at most data.partition.clients (12), got 99" in too_many.err


def test_a_name_that_is_taken_is_refused(command, tmp_path):
    text = EXAMPLE.read_text().replace('"label_groups"', '"single"')
    (tmp_path / "mine.py").write_text(text)

    said = command("run", *SHORT, "--import", "mine", "method=single")

    assert said.code == 2
    assert "method 'single' is registered twice" in said.err
    assert "mine.LabelGroups" in said.err
    assert "raysim.methods.baselines.Single" in said.err


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("absent", None, ["there is no module 'absent'", "{folder}", "absent.py, or install it"]),
        ("my_method", None, ["there is no module 'my_method'", "did you mean my_methods?"]),
        ("own_a", "import not_here\n", ["'own_a' raised", "No module named 'not_here'", "line 1"]),
        ("own_b", "x = 1\ny = 1 / 0\n", ["'own_b' raised ZeroDivisionError", "own_b.py, line 2"]),
        (
            "own_r",
            "import numpy\nfrom raysim.core.clustering import cluster\ncluster(numpy.eye(3), 7)\n",
            ["'own_r' raised", "own_r.py, line 3"],
        ),
        ("own_c", "def f(:\n", ["'own_c' raised SyntaxError", "own_c.py"]),
        ("own_d", "import sys\nsys.exit(3)\n", ["'own_d' raised SystemExit: 3"]),
        ("my_methods.py", None, ["got 'my_methods.py'", "write my_methods"]),
        ("a/b.py", None, ["got 'a/b.py'", "write b and run raysim in its folder"]),
        ("", None, ["got ''", "name one"]),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(cli, folder, refused, name, content, parts):
    (folder / "my_methods.py").write_text("")
    if content is not None:
        (folder / f"{name}.py").write_text(content)

    said = cli("run", *SHORT, "--import", name)

    refused(said, 2, [part.format(folder=folder) for part in parts])
    assert not (folder / "runs").exists()


def test_an_unknown_method_says_how_to_bring_one(cli, refused):
    refused(cli("run", *SHORT, "method=mine"), 2, ["unknown method 'mine'", "--import MODULE"])


# ---- in a config -----------------------------------------------------------------------------


def test_the_option_adds_to_the_configs_imports(folder):
    for name in ("own_one", "own_two"):
        (folder / f"{name}.py").write_text("")
    (folder / "c.yaml").write_text("base: quickstart\nimports: own_one\n")

    config = load_config("c.yaml", imports=["own_two", "own_one"])

    assert config.imports == ("own_one", "own_two")
    assert load_config(yaml.safe_load(config_yaml(config))) == config
    assert load_config("quickstart").imports == ()


@pytest.mark.parametrize("value", ["{a: b}", "3", "[3]", "[[a]]"])
def test_imports_that_are_no_names_are_refused(value):
    with pytest.raises(ConfigError, match="imports must be"):
        load_config("quickstart", [f"imports={value}"])


def test_names_come_once_and_in_order():
    assert module_names(["b", "a"], ["b", "c.d"]) == ("b", "a", "c.d")
    assert module_names(None) == ()


# ---- to a cluster ----------------------------------------------------------------------------


def test_own_files_are_sent_and_installed_ones_are_not(folder):
    package = folder / "own_package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "x.pyc").write_bytes(b"old")
    (package / "__init__.py").write_text("import own_helper\n")
    (package / "inner.py").write_text("x = 1\n")
    (package / "table.bin").write_bytes(b"\xff\x00")
    (folder / "own_helper.py").write_text("import json\n")
    (folder / "unused.py").write_text("x = 1\n")
    names = ("own_package.inner", "yaml", "raysim.errors")

    import_modules(names)
    files = module_files(names)

    assert files.keys() == {
        *("own_package/__init__.py", "own_package/inner.py", "own_package/table.bin"),
        "own_helper.py",
    }
    assert files["own_package/table.bin"] == b"\xff\x00"


def test_what_submit_sends_runs_by_itself(tmp_path):
    from raysim.runtime.ray.jobs import packed

    plain = dump_config(load_config("quickstart", [f"output={tmp_path / 'run'}"]))
    config = yaml.safe_dump({**plain, "imports": ["my_methods"], "method": "label_groups"})

    with packed({"my_methods.py": EXAMPLE.read_bytes(), "config.yaml": config}) as sent:
        done = subprocess.run(
            [sys.executable, "-m", "raysim", "run", "config.yaml", *SHORT[1:], "--json"],
            cwd=sent,
            capture_output=True,
            text=True,
        )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["method"] == "label_groups"


@pytest.mark.ray
def test_workers_that_cannot_find_the_module_say_what_to_do(ray_session, folder):
    import ray
    from ray.exceptions import ActorDiedError, RayTaskError

    from raysim.runtime.ray.failures import original
    from raysim.runtime.ray.processes import ClientActor
    from raysim.runtime.ray.servers import ParameterServer

    (folder / "own_task.py").write_text("def task():\n    return 1\n")
    import_modules(["own_task"])
    task = sys.modules["own_task"].task
    server = ray.remote(ParameterServer).options(num_cpus=0).remote()
    client = ray.remote(ClientActor).options(num_cpus=0).remote([], task, gpus=0)

    for call, kind in (
        (server.run.remote(task, {}, ""), RayTaskError),
        (client.describe.remote(), ActorDiedError),
    ):
        with pytest.raises(kind) as caught:
            ray.get(call)
        found = original(caught.value)
        assert isinstance(found, EnvironmentNotFit)
        assert str(found).startswith("Ray's workers cannot import 'own_task'; start raysim")
    ray.kill(server)


# ---- installed -------------------------------------------------------------------------------


def install(folder: Path, module: str) -> str:
    """Make a package with an entry point; return the path that finds it, and the example."""
    info = folder / "site" / "plugged-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[raysim.plugins]\nmine = {module}\n")
    shutil.copy(EXAMPLE, info.parent)
    return os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")])


def test_an_installed_plugin_is_found_by_its_entry_point(command, tmp_path):
    path = install(tmp_path, "my_methods")

    assert "label_groups" in command("ls", "methods", PYTHONPATH=path).out


def test_a_broken_plugin_is_named(command, tmp_path):
    said = command("ls", "methods", PYTHONPATH=install(tmp_path, "no_such_module"))

    assert said.code == 2
    assert "plugin 'mine' (no_such_module) of the installed package plugged" in said.err
