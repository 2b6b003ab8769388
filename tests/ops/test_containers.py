"""The files for Kubernetes and Compose: taken by Kubernetes' and Compose's own rules, with commands that are Hapax's.

There is no cluster and no Docker here. tests/packages/image runs the image itself.
"""
import os
import pathlib
import re
import subprocess

import pytest
import yaml

from conftest import BUILD, ROOT

PODS = sorted((ROOT / "ops/kubernetes").glob("*.yaml"))
COMPOSE = ROOT / "ops/container/compose.yml"
SECRETS = {"POSTGRES_PASSWORD": "a", "REDIS_PASSWORD": "b"}
CHECK = ROOT / "tests/ops/containers"


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """The rules as programs, by name."""
    least = re.search(r"^go 1\.(\d+)", (CHECK / "go.mod").read_text(), re.M)[1]
    found = re.search(r"go1\.(\d+)", subprocess.run(["go", "version"], capture_output=True, text=True).stdout)
    if int(found[1]) < int(least):
        pytest.skip(f"Kubernetes' rules need Go 1.{least}")
    out = tmp_path_factory.mktemp("rules")
    where = os.environ.get("HAPAX_CONTAINERS", str(BUILD / "containers"))
    subprocess.run(["go", "build", "-o", f"{out}/", "./..."], cwd=CHECK, check=True,
                   env={**os.environ, "GOPATH": where, "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"})
    return lambda name, *files: subprocess.run([out / name, *files], capture_output=True, text=True,
                                               env={**os.environ, **SECRETS})


def test_kubernetes_takes_them_and_they_are_restricted(rules):
    done = rules("kubernetes", *PODS, ROOT / "examples/ingress/kubernetes.yaml")
    assert done.returncode == 0, done.stdout
    for kind in "Deployment hapax-gate", "Deployment worker", "StatefulSet payments", "NetworkPolicy hapax-gate", \
            "Ingress orders":
        assert kind in done.stdout


@pytest.mark.parametrize("was, now, said", [
    ("terminationGracePeriodSeconds", "terminationGracePeriod", "unknown field"),
    ("runAsNonRoot: true", "runAsNonRoot: false", "restricted"),
    ("path: /health, port: metrics}", "path: /health, port: metric_s}", "port"),
    ("drop: [ALL]", "drop: []", "unrestricted capabilities"),
    ("matchLabels: {app: hapax-gate}", "matchLabels: {app: other}", "selector"),
    ("maxUnavailable: 0, maxSurge: 1", "maxUnavailable: 0, maxSurge: 0", "may not be 0"),
])
def test_kubernetes_refuses_a_mistake(rules, tmp_path, was, now, said):
    text = (ROOT / "ops/kubernetes/gate.yaml").read_text()
    assert was in text
    (tmp_path / "gate.yaml").write_text(text.replace(was, now, 1))
    done = rules("kubernetes", tmp_path / "gate.yaml")
    assert done.returncode == 1 and said in done.stdout, done.stdout


def test_compose_takes_it_and_refuses_a_mistake(rules, tmp_path):
    done = rules("compose", COMPOSE)
    assert done.returncode == 0, done.stdout
    (tmp_path / "compose.yml").write_text(COMPOSE.read_text().replace("read_only", "readonly", 1))
    assert rules("compose", tmp_path / "compose.yml").returncode == 1


# A container that joined another one's network stays in the old one when that is started again.
def test_the_api_of_compose_is_reached_through_its_gate_alone():
    compose = yaml.safe_load(COMPOSE.read_text())
    services = compose["services"]
    api = services["api"]
    assert compose["networks"]["behind"]["internal"] and not {"ports", "network_mode"} & {*api}
    assert [name for name, service in services.items() if "behind" in service.get("networks", ())] == ["gate", "api"]
    assert [*api["networks"]] == ["behind"]
    upstream = services["gate"]["command"][services["gate"]["command"].index("--upstream") + 1]
    assert upstream == f"http://{api['networks']['behind']['ipv4_address']}:{api['command'][-1].rpartition(':')[2]}"


# What each needs: a sidecar 1.29, a pause that sleeps 1.30.
@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_each_file_names_the_kubernetes_that_it_needs(path):
    text = path.read_text()
    need = "1.30" if "sleep:" in text else "1.29"
    assert f"Kubernetes {need} or newer" in text.replace("\n#", "")


def pods():
    for path in PODS:
        for what in yaml.safe_load_all(path.read_text()):
            if what["kind"] in ("Deployment", "StatefulSet"):
                yield f"{path.stem}: {what['metadata']['name']}", what["spec"]["template"]["spec"]


def files_of(path):
    """The settings in a ConfigMap, by name."""
    found = {}
    for what in yaml.safe_load_all(path.read_text()):
        if what["kind"] == "ConfigMap":
            found.update(what["data"])
    return found


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def commands():
    """(where, arguments) of each hapax."""
    for name, pod in pods():
        for container in pod.get("initContainers", []) + pod["containers"]:
            if container["image"].startswith("hapax:"):
                yield f"{name}, {container['name']}", container["args"]
    for name, service in yaml.safe_load(COMPOSE.read_text())["services"].items():
        if service.get("image", "").startswith("hapax:"):
            yield f"compose, {name}", service["command"]


@pytest.mark.parametrize("where, words", commands(), ids=lambda given: given if isinstance(given, str) else " ")
def test_each_command_is_hapaxs(hapax, folder, where, words):
    """hapax reads the options, those of the files of settings, too."""
    (folder / "hapax").mkdir()
    for path in PODS:
        for name, text in files_of(path).items():
            (folder / "hapax" / name).write_text(text)
    words = [str(folder / "hapax" / f"{word}.conf") if word == "serve-gate" else word for word in words]
    if words[0] == "init":
        done = hapax("help", "init")
    elif words[0] == "serve":
        done = hapax(*words, "--config-only", HAPAX_STORE="memory:")
    else:
        done = hapax("config", *words)
    assert done.code == 0, done.err


def test_no_effect_happens_twice_behind_the_gate(hapax, folder):
    """hapax check finds nothing in the gate's settings by which a repeat could run."""
    conf = folder / "gate.conf"
    conf.write_text(files_of(ROOT / "ops/kubernetes/gate.yaml")["serve-gate.conf"])
    lines = hapax("check", "--store", "memory:", "--json", "--", "serve", "--config", str(conf)).lines
    assert lines[0]["text"].startswith("no effect happens twice: ")
    assert not [line for line in lines if "--owner" in line["text"]]


@pytest.mark.parametrize("name, pod", pods(), ids=lambda given: given if isinstance(given, str) else " ")
def test_pods_have_the_time_to_end(name, pod):
    """Pause, drain and ten seconds fit into the grace period; a sidecar ends behind what it serves."""
    files = {key: text for path in PODS for key, text in files_of(path).items()}
    drains = {"serve": 30, "door": 10}  # of commands that name none
    need = 10
    for container in pod.get("initContainers", []) + pod["containers"]:
        args = container.get("args", ["other"])
        settings = dict(line.split(" = ") for line in files.get("serve-gate.conf", "").splitlines()) \
            if "serve-gate" in args else {}
        drain = args[args.index("--drain") + 1] if "--drain" in args else settings.get("drain")
        need += seconds(drain) if drain else drains.get(args[0], 0)
        need += container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    for sidecar in pod.get("initContainers", []):
        assert sidecar["restartPolicy"] == "Always"
    assert pod["terminationGracePeriodSeconds"] >= need, name


def test_the_image_is_this_version():
    version = re.search(r"^  version: '(.*)',", (ROOT / "meson.build").read_text(), re.M)[1]
    for path in [*PODS, COMPOSE, pathlib.Path(ROOT / "docs/install.md")]:
        assert {*re.findall(r"\bhapax:(\d[\d.]*\d)", path.read_text())} == {version}, path
