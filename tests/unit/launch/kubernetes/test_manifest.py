"""Manifests: Kubernetes' own schemas accept them, and they say what the command line said."""

from __future__ import annotations

import base64
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from horovod.launch.cli import main as cli

VERSIONS = ["1.27", "1.37"]
IMAGE = "registry.example.com/team/train:1"


@pytest.fixture
def manifest(capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command line prints, read as YAML."""

    def objects(*words: str) -> list[dict[str, Any]]:
        assert cli.main(words, {}) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return list(yaml.safe_load_all(printed.out))

    return objects


def words(*options: str) -> tuple[str, ...]:
    return (*options, "--kubernetes-image", IMAGE, "python", "train.py", "--lr", "$(LR)")


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["template"]["spec"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_accept_all_objects(manifest: Any, version: str) -> None:
    objects = manifest(
        *("--kubernetes", "-np", "5", "--slots-per-host", "2", "--cache-capacity", "7"),
        *("--kubernetes-resources", "cpu=1.5,memory=16Gi,nvidia.com/gpu=2,hugepages-2Mi=64Mi"),
        *("--kubernetes-volume", "data:/data", "--kubernetes-volume", "data:/output"),
        *words(),
    )
    assert [each["kind"] for each in objects] == ["Secret", "Service", "Job"]
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_can_refuse(manifest: Any) -> None:
    job = manifest("--kubernetes", "-np", "2", *words())[-1]
    pod_of(job)["containers"][0]["commands"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


def test_pods_find_pod_0_and_its_secret(manifest: Any) -> None:
    secret, service, job = manifest(
        "--kubernetes", "-np", "5", "--slots-per-host", "2", "--kubernetes-name", "digits", *words()
    )
    pod, spec = pod_of(job), job["spec"]
    (container,) = pod["containers"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["backoffLimit"] == 0
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"] == "digits"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    port = service["spec"]["ports"][0]["port"]
    assert container["command"] == [
        *("python3", "-m", "horovod.launch.kubernetes.pod", "-np", "5", "--slots-per-host", "2"),
        *("--store", f"digits-0.digits:{port}", "--", "python", "train.py", "--lr", "$$(LR)"),
    ]
    reference = container["env"][0]["valueFrom"]["secretKeyRef"]
    assert container["env"][0]["name"] == "_HOROVOD_SECRET_KEY"
    assert reference["name"] == secret["metadata"]["name"]
    assert len(base64.b64decode(secret["stringData"][reference["key"]])) == 32


def test_every_print_has_a_secret_of_its_own(manifest: Any) -> None:
    one, other = (manifest("--kubernetes", "-np", "1", *words())[0] for _ in range(2))
    assert one["stringData"] != other["stringData"]


def test_a_secret_that_is_there_already(manifest: Any) -> None:
    service, job = manifest("--kubernetes", "-np", "1", "--kubernetes-secret", "mine", *words())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    reference = pod_of(job)["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "mine", "key": "secret"}


def test_settings_resources_and_output_options(manifest: Any) -> None:
    job = manifest(
        *("--kubernetes", "-np", "1", "--verbose", "-prefix-timestamp", "--output-filename", "/o"),
        *("--start-timeout", "60", "--kubernetes-resources", "cpu=2,amd.com/gpu=1"),
        *("--kubernetes-volume", "data:/data", *words()),
    )[-1]
    (container,) = pod_of(job)["containers"]
    assert {"name": "HOROVOD_START_TIMEOUT", "value": "60"} in container["env"]
    assert container["resources"] == {"requests": {"cpu": "2"}, "limits": {"amd.com/gpu": "1"}}
    command = container["command"]
    assert command[command.index("--verbose") : command.index("--")] == [
        *("--verbose", "--prefix-output-with-timestamp", "--output-filename", "/o")
    ]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod_of(job)["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "data"}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_mpijob(manifest: Any, version: str) -> None:
    (job,) = manifest(
        *("--kubernetes=mpijob", "-np", "3", "--slots-per-host", "2", "--log-level", "debug"),
        *("--kubernetes-resources", "nvidia.com/gpu=2", "--kubernetes-volume", "d:/d"),
        *words("--verbose"),
    )
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert (spec["slotsPerWorker"], spec["mpiImplementation"]) == (2, "OpenMPI")
    assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for name, count in (("Launcher", 1), ("Worker", 2)):
        replicas = spec["mpiReplicaSpecs"][name]
        assert set(replicas) == {"replicas", "restartPolicy", "template"}
        assert (replicas["replicas"], replicas["restartPolicy"]) == (count, "Never")
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        kubernetes_validate.validate({**pod, **replicas["template"]}, version, strict=True)
    launcher, worker = (
        spec["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0]
        for name in ("Launcher", "Worker")
    )
    assert launcher["command"] == [
        *("horovodrun", "-np", "3", "--hostfile", "/etc/mpi/hostfile", "--verbose", "--"),
        *("python", "train.py", "--lr", "$$(LR)"),
    ]
    assert launcher["env"] == [{"name": "HOROVOD_LOG_LEVEL", "value": "debug"}]
    assert "resources" not in launcher
    assert worker["command"][-1].endswith("exec /usr/sbin/sshd -De")
    assert worker["resources"] == {"limits": {"nvidia.com/gpu": "2"}}


@pytest.mark.parametrize("kind", ["", "=mpijob"])
def test_kubernetes_changes_no_word(manifest: Any, kind: str) -> None:
    given = ["sh", "-c", "$(A) $$ $$(B) $HOME a: b # 'c' \"d\" é \n", ""]
    job = manifest(f"--kubernetes{kind}", "-np", "1", "--kubernetes-image", IMAGE, *given)[-1]
    written = _command(job)
    assert [_expanded(word) for word in written[written.index("--") + 1 :]] == given


def _command(job: dict[str, Any]) -> list[str]:
    spec = job["spec"]
    if "mpiReplicaSpecs" in spec:
        spec = spec["mpiReplicaSpecs"]["Launcher"]
    return spec["template"]["spec"]["containers"][0]["command"]  # type: ignore[no-any-return]


def _expanded(word: str) -> str:
    """As the kubelet reads a word; what it would replace is not to be there."""
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", word)
    return word.replace("$$", "$")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--kubernetes -np 2 python x.py", "--kubernetes needs --kubernetes-image"),
        ("--kubernetes-image i -np 2 python x.py", "--kubernetes-image goes with --kubernetes"),
        ("--kubernetes --kubernetes-image i python x.py", "say with -np how many"),
        ("--kubernetes --kubernetes-image i -np 2", "no command to run"),
        ("--kubernetes --kubernetes-image i -np 2 -H a:2 x", "there are pods instead of hosts"),
        ("--kubernetes --kubernetes-image i -np 2 -p 22 x", "--ssh-port and --kubernetes"),
        ("--kubernetes --kubernetes-image i -np 2 mpijob x", "write --kubernetes=mpijob"),
        ("--kubernetes=pod --kubernetes-image i -np 2 x", "invalid choice: 'pod'"),
        ("--kubernetes --kubernetes-image i --slots-per-host 0 -np 2 x", "'0': expected a number"),
        ("--kubernetes --kubernetes-image i --kubernetes-name 1a -np 2 x", "a letter first"),
        ("--kubernetes --kubernetes-image i --kubernetes-name A -np 2 x", "expected a-z"),
        (
            f"--kubernetes --kubernetes-image i --kubernetes-name {'a' * 62} -np 2 x",
            "at most 61 characters",
        ),
        (
            "--kubernetes --kubernetes-image i --kubernetes-resources cpu:4 -np 2 x",
            "--kubernetes-resources=cpu:4: expected name=amount",
        ),
        (
            "--kubernetes --kubernetes-image i --kubernetes-resources cpu=1,cpu=2 -np 2 x",
            "--kubernetes-resources=cpu=1,cpu=2",
        ),
        (
            "--kubernetes --kubernetes-image i --kubernetes-resources memory=16GB -np 2 x",
            "--kubernetes-resources=memory=16GB",
        ),
        (
            "--kubernetes --kubernetes-image i --kubernetes-resources mem=4Gi -np 2 x",
            "mem is no resource; expected cpu, memory",
        ),
        (
            "--kubernetes --kubernetes-image i --kubernetes-volume data:out -np 2 x",
            "expected CLAIM:PATH",
        ),
        (
            "--kubernetes=mpijob --kubernetes-image i --kubernetes-secret s -np 2 x",
            "an MPIJob has none",
        ),
    ],
)
def test_what_is_refused(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split(), {})
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text in " ".join(printed.err.split())
