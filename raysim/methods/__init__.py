"""One file per method of the papers; ``METHODS`` finds them all."""

from raysim.protocols import Method
from raysim.settings import Registry

METHODS: Registry[Method] = Registry(
    "method",
    key="name",
    home="raysim.methods",
    other_names={
        "fedavg": "single",
        "fedprox": "single with train.proximal",
        "fednova": "single with server.optimizer fednova",
        "fedadam": "single with server.optimizer fedadam",
        "local": "local_only",
    },
)
