"""Output folders and machines that cannot be used: refused, and nothing is touched."""

from __future__ import annotations

import os

import pytest

# ---- output --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        ("a file", ["is a file", "choose another output"]),
        ("a file/below/it", ["cannot be written", "choose another output"]),
        ("/proc/raysim/run", ["cannot be written", "choose another output"]),
        ("notes", ["not empty and not a run directory", "choose another output"]),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--force",)], ids=["", "force"])
def test_an_output_that_cannot_be_used_is_refused(
    cli, refused, base, picture, tmp_path, output, parts, flags
):
    (tmp_path / "a file").write_text("precious")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("precious")
    before = picture(tmp_path)

    said = cli("run", *base, f"output={tmp_path / output}", *flags)

    refused(said, 2, ["output", str(tmp_path / output), *parts])
    assert picture(tmp_path) == before


@pytest.mark.parametrize("where", ["", "run"], ids=["new run", "old run with --force"])
def test_a_read_only_output_folder_is_refused(command, refused, base, picture, old, where):
    folder, output = old.parent, old if where else old.parent / "new"
    prefix = ()
    if os.geteuid():
        folder.chmod(0o555)
        old.chmod(0o555)
    else:  # permission bits do not hold root back, a read-only mount does
        mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        prefix = ("unshare", "--mount", "sh", "-c", mount, str(folder))
    before = picture(folder)

    said = command("run", *base, f"output={output}", *(["--force"] if where else []), prefix=prefix)

    refused(
        said, 2, ["output", str(output), "cannot be written", "writable or choose another output"]
    )
    assert picture(folder) == before
    folder.chmod(0o755)
    old.chmod(0o755)


def test_a_finished_run_is_not_replaced_without_force(command, refused, base, picture, old):
    before = picture(old)

    said = command("run", *base, f"output={old}")

    refused(said, 2, ["output", str(old), "holds a finished run", "--force"])
    assert picture(old) == before


def test_a_folder_in_use_is_refused(cli, refused, base, picture, old):
    from filelock import FileLock

    (old / "result.json").unlink()
    with FileLock(old / ".lock"):
        before = picture(old)
        said = cli("run", *base, f"output={old}", "--resume")

        refused(said, 2, ["output", str(old), "in use by another process", "choose another output"])
        assert picture(old) == before


@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_resuming_with_another_config_names_key_and_both_values(
    cli, refused, base, picture, old, state
):
    if state == "unfinished":
        (old / "result.json").unlink()
    before = picture(old)

    said = cli("run", *base, f"output={old}", "--resume", "seed=7", "train.lr=0.125")

    refused(said, 2, ["seed", "7", "train.lr", "0.125", "0.05", "--force"])
    assert picture(old) == before


def test_resume_and_force_together_are_refused(cli, refused, base, picture, old):
    before = picture(old)

    refused(
        cli("run", *base, f"output={old}", "--resume", "--force"),
        2,
        ["--resume", "--force", "one of"],
    )
    assert picture(old) == before


def test_resuming_nothing_is_refused(cli, refused, base, picture, tmp_path):
    said = cli("run", *base, f"output={tmp_path / 'none'}", "--resume")

    refused(said, 2, ["--resume", str(tmp_path / "none"), "holds no run", "without --resume"])
    assert picture(tmp_path) == {}


# ---- machines ------------------------------------------------------------------------------

RAY = ("quickstart", "train.rounds=2", "runtime.kind=ray")


@pytest.mark.ray
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["runtime.actors=9"],
            [
                "asked for 9 client actors",
                "runtime.actors",
                "room for 8",
                "lower runtime.actors to 8",
            ],
        ),
        (
            ["runtime.actors=13"],
            ["runtime.actors is 13", "12 clients", "lower runtime.actors to 12"],
        ),
        (
            ["runtime.per_actor.gpus=0.5"],
            ["0.5 GPUs each", "runtime.per_actor", "0 GPUs", "set runtime.per_actor.gpus to 0"],
        ),
        (
            ["runtime.per_actor.cpus=9"],
            ["9 CPUs", "runtime.per_actor", "room for 0", "lower runtime.per_actor.cpus to 8"],
        ),
    ],
    ids=["actors", "more actors than clients", "GPUs", "CPUs"],
)
def test_what_does_not_fit_is_refused(
    cli, refused, base, picture, old, ray_session, overrides, parts
):
    before = picture(old)

    refused(cli("run", *RAY, f"output={old}", "--force", *overrides), 3, parts)
    assert picture(old) == before


@pytest.mark.ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nosuchhost.invalid:6379", "nonsense"])
def test_an_address_without_a_cluster_is_refused_soon(
    command, refused, base, picture, old, address
):
    before = picture(old)

    said = command("run", *RAY, f"output={old}", "--force", f"runtime.address={address}")

    refused(said, 3, ["runtime.address", repr(address), "ray start --head", "correct the address"])
    assert picture(old) == before


@pytest.mark.ray
def test_a_ray_address_of_the_environment_without_a_cluster_is_refused_too(
    command, refused, picture, old
):
    before, nobody = picture(old), "127.0.0.1:1"

    said = command(
        "run", *RAY, f"output={old}", "--force", "runtime.address=auto", RAY_ADDRESS=nobody
    )

    refused(said, 3, ["RAY_ADDRESS", nobody, "ray start --head", "correct the address"])
    assert picture(old) == before
