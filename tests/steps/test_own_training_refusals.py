"""Methods with local training of their own refuse settings that it would leave out."""

from __future__ import annotations

import pytest

from raysim.config import load_config
from raysim.errors import ConfigError

OWN = ["fedfixer", "cores2_global", "cores2_local", "fedrn", "oracle"]


@pytest.mark.parametrize("method", OWN)
@pytest.mark.parametrize("setting", ["train.mixup=1.0", "server.optimizer=fednova"])
def test_what_no_session_does_is_refused(method, setting):
    refused(method, setting)


@pytest.mark.parametrize("method", OWN[:3])
@pytest.mark.parametrize(
    "setting",
    ["train.momentum=0.5", "train.weight_decay=0.1", "train.proximal=0.1", "train.optimizer=adam"],
)
def test_plain_steps_have_no_other_optimiser(method, setting):
    refused(method, setting)


@pytest.mark.parametrize("method", ["rhfl", "rhfl_fb_nll"])
@pytest.mark.parametrize("optimizer", ["fednova", "fedadam"])
def test_who_averages_nothing_has_no_server_optimiser(method, optimizer):
    refused(method, f"server.optimizer={optimizer}")


def refused(method: str, setting: str) -> None:
    config = load_config("quickstart", [f"method={method}", "train.rounds=20", setting])

    name = setting.partition("=")[0].replace(".", r"\.")
    with pytest.raises(ConfigError, match=rf"{name} is .*; set {name} to"):
        config.method.check(config, classes=10, dimensions={"grouping": 144, "correction": 144})
