"""deploy/rayjob.yaml and its companions, checked for structure.

PyPI holds no schema of KubeRay's resources. So the models below name the fields that these files
use, as in KubeRay's API reference for ray.io/v1 (1.6); a misspelled or misplaced key is refused.
"""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

ROOT = Path(__file__).resolve().parents[2]
PINNED = r"^[a-z0-9./-]+:[0-9][\w.-]*$|@sha256:[0-9a-f]{64}$"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(Strict):
    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?$")  # KubeRay adds a suffix


class Mount(Strict):
    name: str
    mountPath: str


class Claim(Strict):
    claimName: str


class Volume(Strict):
    name: str
    persistentVolumeClaim: Claim


class Resources(Strict):
    limits: dict[str, str]
    requests: dict[str, str]


class ContainerSecurity(Strict):
    allowPrivilegeEscalation: Literal[False]


class Command(Strict):
    command: list[str]


class PreStop(Strict):
    exec: Command


class Lifecycle(Strict):
    preStop: PreStop


class Container(Strict):
    name: str
    image: str = Field(pattern=PINNED)
    imagePullPolicy: Literal["IfNotPresent", "Always"]
    securityContext: ContainerSecurity
    lifecycle: Lifecycle | None = None
    resources: Resources
    volumeMounts: list[Mount]


class PodSecurity(Strict):
    runAsNonRoot: Literal[True]
    runAsUser: int
    fsGroup: int


class Toleration(Strict):
    key: str
    operator: Literal["Exists"]
    effect: Literal["NoSchedule"]


class Pod(Strict):
    automountServiceAccountToken: Literal[False]
    securityContext: PodSecurity
    terminationGracePeriodSeconds: int = Field(30, ge=30)
    tolerations: list[Toleration] = []
    containers: list[Container] = Field(min_length=1, max_length=1)
    volumes: list[Volume]


class Template(Strict):
    spec: Pod


class Head(Strict):
    serviceType: Literal["ClusterIP"]
    rayStartParams: dict[str, str]
    template: Template


class Workers(Strict):
    groupName: str
    replicas: int = Field(ge=1)
    minReplicas: int
    maxReplicas: int
    rayStartParams: dict[str, str]
    template: Template


class Auth(Strict):
    mode: Literal["token"]
    secretName: str


class Cluster(Strict):
    rayVersion: str
    authOptions: Auth
    headGroupSpec: Head
    workerGroupSpecs: list[Workers] = Field(min_length=1)


class Condition(Strict):
    jobStatus: Literal["SUCCEEDED", "FAILED"]
    ttlSeconds: int = Field(ge=0)


class Rule(Strict):
    policy: Literal["DeleteWorkers", "DeleteCluster", "DeleteSelf", "DeleteNone"]
    condition: Condition


class Deletion(Strict):
    deletionRules: list[Rule] = Field(min_length=1)


class Job(Strict):
    entrypoint: str
    submissionMode: Literal["K8sJobMode", "HTTPMode"]
    backoffLimit: int = Field(ge=0)
    deletionStrategy: Deletion
    activeDeadlineSeconds: int = Field(gt=0)
    rayClusterSpec: Cluster


class RayJob(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: Job


@pytest.fixture
def raw(read) -> dict[str, Any]:
    return read("rayjob.yaml")


@pytest.fixture
def cluster(raw) -> Cluster:
    return RayJob.model_validate(raw).spec.rayClusterSpec


def ray_command(verb: str) -> click.Command:
    from ray.scripts.scripts import cli

    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command


def change(raw: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy with one value replaced or added."""
    broken = copy.deepcopy(raw)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place: Any = broken
    for key in parents:
        place = place[key]
    place[last] = value
    return broken


CLUSTER = "spec/rayClusterSpec"
CONTAINER = "template/spec/containers/0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("apiVersion", "ray.io/v1alpha1"),
        ("spec/backoffLimits", 3),
        ("spec/shutdownAfterJobFinishes", True),  # KubeRay: not together with deletion rules
        ("spec/deletionStrategy/deletionRules/0/policy", "DeletePods"),
        (f"{CLUSTER}/authOptions/mode", "disabled"),
        (f"{CLUSTER}/authOptions", None),
        (f"{CLUSTER}/headGroupSpec/serviceType", "LoadBalancer"),
        (f"{CLUSTER}/headGroupSpec/rayStartParams/num-cpus", 0),
        (f"{CLUSTER}/headGroupSpec/{CONTAINER}/image", "raysim:latest"),
        (f"{CLUSTER}/headGroupSpec/{CONTAINER}/image", "raysim"),
        (f"{CLUSTER}/workerGroupSpecs/0/replicas", 0),
        (f"{CLUSTER}/workerGroupSpecs/0/template/spec/securityContext/runAsNonRoot", False),
    ],
)
def test_a_broken_manifest_is_refused(raw, path, value):
    with pytest.raises(ValidationError):
        RayJob.model_validate(change(raw, path, value))


def test_head_takes_no_actors_and_workers_have_gpus(cluster):
    assert cluster.headGroupSpec.rayStartParams["num-cpus"] == "0"
    assert (
        "nvidia.com/gpu" not in cluster.headGroupSpec.template.spec.containers[0].resources.limits
    )
    for group in cluster.workerGroupSpecs:
        (container,) = group.template.spec.containers
        assert int(container.resources.limits["nvidia.com/gpu"]) >= 1
        assert container.resources.limits == container.resources.requests
        assert group.template.spec.tolerations
        # KubeRay refuses to delete the workers alone where an autoscaler counts them.
        assert group.minReplicas == group.replicas == group.maxReplicas


def test_gpus_go_at_once_and_the_head_a_while_later(raw):
    rules = RayJob.model_validate(raw).spec.deletionStrategy.deletionRules
    after = {(r.condition.jobStatus, r.policy): r.condition.ttlSeconds for r in rules}

    for status in ("SUCCEEDED", "FAILED"):
        assert after[status, "DeleteWorkers"] == 0
        assert after[status, "DeleteCluster"] >= 600


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own command line
def test_an_evicted_pod_drains_its_node_before_it_is_killed(cluster):
    for group in cluster.workerGroupSpecs:
        pod = group.template.spec
        assert pod.containers[0].lifecycle is not None
        shell, how, line = pod.containers[0].lifecycle.preStop.exec.command
        drain, _, wait = line.partition(" && ")
        verb, *words = shlex.split(drain)[1:]
        with ray_command(verb).make_context(verb, words) as parsed:
            left_s = parsed.params["deadline_remaining_seconds"]

        assert (shell, how, wait) == ("bash", "-lc", f"sleep {left_s}")
        assert parsed.params["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
        assert left_s < pod.terminationGracePeriodSeconds


def test_every_pod_sees_the_volume_that_the_job_writes_to(raw, cluster, read):
    claim = read("rayjob-storage.yaml")
    pods = [group.template.spec for group in (cluster.headGroupSpec, *cluster.workerGroupSpecs)]
    (output,) = re.findall(r"\boutput=(\S+)", raw["spec"]["entrypoint"])

    for pod in pods:
        (volume,), (mount,) = pod.volumes, pod.containers[0].volumeMounts
        assert volume.name == mount.name
        assert volume.persistentVolumeClaim.claimName == claim["metadata"]["name"]
        assert output.startswith(mount.mountPath + "/")
    assert claim["kind"] == "PersistentVolumeClaim"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_entrypoint_is_a_run_that_raysim_accepts(raw):
    from raysim.config import load_config

    entrypoint = raw["spec"]["entrypoint"]
    python, module, package, verb, name, *overrides, resume = shlex.split(entrypoint)
    config = load_config(name, overrides)

    assert [python, module, package, verb] == ["python", "-m", "raysim", "run"]
    assert (resume, raw["spec"]["backoffLimit"] >= 1) == ("--resume=auto", True)
    assert config.runtime.address == "auto"
    assert not set("'\"|&;<>$`\n") & set(entrypoint)  # KubeRay gives it to a shell unquoted


def test_ray_is_the_same_version_in_manifest_image_and_constraints(cluster):
    pins = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "tools/constraints.txt").read_text(), re.M))
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    images = {
        group.template.spec.containers[0].image
        for group in (cluster.headGroupSpec, *cluster.workerGroupSpecs)
    }

    assert cluster.rayVersion == pins["ray"]
    (image,) = images
    assert image.endswith(f"-ray{pins['ray']}")
    assert f"FROM rayproject/ray:{pins['ray']}-" in dockerfile
    assert f"-t {image} " in dockerfile


def test_dockerfile_copies_files_that_exist():
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    copied = re.findall(r"^COPY --chown=\S+ (.+) \S+$", dockerfile, re.M)

    names = [name for line in copied for name in line.split()]
    assert {"pyproject.toml", "raysim", "configs", "tools/constraints.txt"} <= set(names)
    assert all((ROOT / name).exists() for name in names)
