"""What every folder of deploy/ renders to is valid by Kubernetes' own schema, and the Helm chart renders to the same.

Run by tests/deploy.rs with the rendered folders: NAME=FILE ... CHART"""

import sys

import yaml
import kubernetes_validate
from helm_python import Chart

VERSION = "1.37"
# Values of the chart for each folder.
VALUES = {
    "base": {},
    "overlays/capping": {"capping": {"enabled": True}},
    "overlays/gpu-nodes": {"gpu": {"enabled": True}},
    "overlays/gpu-capping": {"capping": {"enabled": True}, "gpu": {"enabled": True, "capping": True}},
    "overlays/kubelet": {"pods": {"source": "kubelet"}},
    "overlays/kube-prometheus": {"prometheus": {"podMonitor": True}},
    "overlays/kind": {"image": {"pullPolicy": "Never"}},
}


def key(document):
    return document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"]


def comparable(document):
    """The order of variables and mounts means nothing here, that of arguments does."""
    if document["kind"] == "DaemonSet":
        pod = document["spec"]["template"]["spec"]
        pod["volumes"].sort(key=lambda volume: volume["name"])
        pod["containers"][0]["volumeMounts"].sort(key=lambda mount: mount["mountPath"])
        pod["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    return document


def documents(text):
    loaded = [document for document in yaml.safe_load_all(text) if document]
    by_key = {key(document): comparable(document) for document in loaded}
    assert len(by_key) == len(loaded), "an object is there twice"
    return by_key


def differences(left, right, path=""):
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys(), key=str):
            yield from differences(left.get(name), right.get(name), f"{path}/{name}")
    elif left != right:
        yield f"{path}: kustomize {left!r}, Helm {right!r}"


def main():
    *folders, chart = sys.argv[1:]
    folders = dict(folder.split("=", 1) for folder in folders)
    assert folders.keys() == VALUES.keys(), f"folders {sorted(folders)}, values {sorted(VALUES)}"
    failures = []
    for name, file in folders.items():
        with open(file, encoding="utf-8") as text:
            by_kustomize = documents(text.read())
        for document in by_kustomize.values():
            # The operator's kinds are in no schema of Kubernetes.
            if document["apiVersion"].startswith("monitoring.coreos.com/"):
                continue
            try:
                kubernetes_validate.validate(document, VERSION, strict=True)
            except kubernetes_validate.ValidationError as error:
                failures.append(f"{name} {key(document)}: {error.message} at {error.path}")
        values = {"namespace": {"create": True}, **VALUES[name]}
        by_helm = documents(render(chart, values))
        for missing in by_kustomize.keys() ^ by_helm.keys():
            failures.append(f"{name} {missing}: only by {'kustomize' if missing in by_kustomize else 'Helm'}")
        for both in by_kustomize.keys() & by_helm.keys():
            failures += [f"{name} {both}{text}" for text in differences(by_kustomize[both], by_helm[both])]
    print("\n".join(failures) or f"{len(folders)} folders")
    sys.exit(1 if failures else 0)


def render(chart, values):
    rendered = Chart.load(chart).render(values, name="energy-agent", namespace="energy-agent")
    return "\n---\n".join(rendered.values())


main()
