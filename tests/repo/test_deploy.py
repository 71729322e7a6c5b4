"""The manifests and scripts of docs/DEPLOY.md can be read by what they are for."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "DEPLOY.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def manifest(kind: str) -> dict:
    """The one manifest of a kind on the page."""
    (found,) = [one for text in blocks("yaml") if (one := yaml.safe_load(text))["kind"] == kind]
    return found


def test_every_manifest_is_one_yaml_document_of_its_own_kind() -> None:
    kinds = [yaml.safe_load(text)["kind"] for text in blocks("yaml")]
    assert kinds == ["PyTorchJob", "NetworkPolicy", "DaemonSet"]
    for kind in kinds:
        assert manifest(kind)["apiVersion"] and manifest(kind)["metadata"]["name"]


def test_the_job_opens_the_port_that_the_script_listens_on_for_both_protocols() -> None:
    (port,) = re.findall(r"register\(model, port=(\d+)\)", PAGE)
    worker = manifest("PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    opened = {(entry.get("protocol"), entry["containerPort"]) for entry in container["ports"]}
    assert {("TCP", int(port)), ("UDP", int(port))} <= opened
    assert container["name"] == "pytorch"
    assert all(isinstance(entry["value"], str) for entry in container["env"])
    (rule,) = manifest("NetworkPolicy")["spec"]["ingress"]
    for protocol in ("TCP", "UDP"):
        (entry,) = [one for one in rule["ports"] if one["protocol"] == protocol]
        assert entry["port"] <= int(port) <= entry["endPort"]


def test_the_labels_of_the_manifests_belong_together() -> None:
    spec = manifest("PyTorchJob")["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    labels = worker["template"]["metadata"]["labels"]
    policy = manifest("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == labels
    assert spec["elasticPolicy"]["minReplicas"] == worker["replicas"]
    daemons = manifest("DaemonSet")["spec"]
    assert daemons["selector"]["matchLabels"] == daemons["template"]["metadata"]["labels"]


@pytest.mark.parametrize("script", blocks("bash"), ids=lambda text: text.split("\n")[0][:40])
def test_every_shell_script_can_be_parsed(script: str) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", blocks("python"))
def test_every_snippet_is_python(script: str) -> None:
    ast.parse(script)


def test_every_option_of_torchrun_is_one() -> None:
    run = pytest.importorskip("torch.distributed.run")
    known = {
        option for action in run.get_args_parser()._actions for option in action.option_strings
    }
    given = [
        option
        for script in blocks("bash")
        for command in re.findall(r"torchrun (.*?train\.py)", script, re.DOTALL)
        for option in re.findall(r"--[a-z-]+", command)
    ]
    assert len(given) > 10
    assert not set(given) - known


def test_the_buffers_are_those_that_the_transport_asks_for() -> None:
    import dblp

    wanted = dblp.TransportConfig().socket_buffer_bytes
    assert set(re.findall(r"net\.core\.[rw]mem_max=(\d+)", PAGE)) == {str(wanted)}
