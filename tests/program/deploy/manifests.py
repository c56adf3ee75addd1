"""What every folder of deploy/ renders to is valid by the schemas of Kubernetes and of the Prometheus operator, and the Helm
chart renders to the same, but for the labels that name a release.

Run by tests/program/deploy.rs with the rendered folders: NAME=FILE ... CHART"""

import re
import sys

import yaml
import kubernetes_validate
from cloudcoil.models.prometheus_operator import v1 as operator
from helm_python import Chart

NEWEST = "1.37"
# With the controller of budgets over many nodes.
CONTROLLED = {"capping": {"enabled": True, "resources": "recommend"}, "controller": {"enabled": True}}
# Values of the chart for each folder.
VALUES = {
    "base": {},
    "overlays/capping": {"capping": {"enabled": True}},
    "overlays/gpu-nodes": {"gpu": {"enabled": True}},
    "overlays/gpu-capping": {"capping": {"enabled": True}, "gpu": {"enabled": True, "capping": True}},
    "overlays/kubelet": {"pods": {"source": "kubelet"}},
    "overlays/kube-prometheus": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "overlays/kube-prometheus-tls": {
        "webConfig": {"certificateSecret": "energy-agent-tls"},
        "podMonitor": {
            "enabled": True,
            "tlsConfig": {
                "ca": {"secret": {"name": "energy-agent-tls", "key": "ca.crt"}},
                "serverName": "energy-agent.energy-agent.svc",
            },
        },
        "prometheusRule": {"enabled": True},
    },
    "overlays/tls": {"webConfig": {"certificateSecret": "energy-agent-tls"}},
    "overlays/network-policy": {"networkPolicy": {"enabled": True}},
    "overlays/priority-quota": {"priorityQuota": True},
    "overlays/kind": {"image": {"pullPolicy": "Never"}},
    "overlays/resources": {"capping": {"enabled": True, "resources": "recommend"}},
    "overlays/controller": CONTROLLED,
    "overlays/climatik": {**CONTROLLED, "controller": {"enabled": True, "climatik": {"bridge": True}}},
    "overlays/controller-network-policy": {**CONTROLLED, "networkPolicy": {"enabled": True}},
    "overlays/controller-kube-prometheus": {
        **CONTROLLED,
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
}
# Labels of a chart's objects alone.
RELEASE = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
}


def key(document):
    return document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"]


def comparable(document):
    """The order of variables and mounts means nothing here, that of arguments does. Labels of a release are left out."""
    document = without_release(document)
    if document["kind"] == "DaemonSet":
        pod = document["spec"]["template"]["spec"]
        pod["volumes"].sort(key=lambda volume: volume["name"])
        pod["containers"][0]["volumeMounts"].sort(key=lambda mount: mount["mountPath"])
        pod["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    return document


def without_release(value):
    if isinstance(value, dict):
        return {name: without_release(inner) for name, inner in value.items() if name not in RELEASE}
    return [without_release(inner) for inner in value] if isinstance(value, list) else value


def documents(text):
    loaded = [document for document in yaml.safe_load_all(text) if document]
    by_key = {key(document): comparable(document) for document in loaded}
    assert len(by_key) == len(loaded), "an object is there twice"
    return by_key


def differences(left, right, path="", names=("kustomize", "Helm")):
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys(), key=str):
            yield from differences(left.get(name), right.get(name), f"{path}/{name}", names)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, both in enumerate(zip(left, right)):
            yield from differences(*both, f"{path}/{index}", names)
    elif left != right:
        yield f"{path}: {names[0]} {left!r}, {names[1]} {right!r}"


def oldest(chart):
    """The first version of Kubernetes that the chart may be installed in."""
    with open(f"{chart}/Chart.yaml", encoding="utf-8") as text:
        wanted = yaml.safe_load(text)["kubeVersion"]
    return re.fullmatch(r">=(\d+\.\d+)\.0-0", wanted)[1]


def faults(document, versions):
    """What the document's schema has against it. An unknown field is a fault."""
    if document["apiVersion"] != "monitoring.coreos.com/v1":
        for version in versions:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{error.message} at {error.path}, in Kubernetes {version}"
        return
    # Classes made from the operator's CustomResourceDefinitions. They leave out what they do not know.
    try:
        taken = getattr(operator, document["kind"]).model_validate(document)
    except ValueError as error:
        yield str(error)
        return
    known = taken.model_dump(mode="json", by_alias=True, exclude_unset=True)
    yield from differences(document, known, names=("given", "by the schema"))


def main():
    *folders, chart = sys.argv[1:]
    folders = dict(folder.split("=", 1) for folder in folders)
    assert folders.keys() == VALUES.keys(), f"folders {sorted(folders)}, values {sorted(VALUES)}"
    failures = []
    for name, file in folders.items():
        with open(file, encoding="utf-8") as text:
            by_kustomize = documents(text.read())
        for document in by_kustomize.values():
            failures += [f"{name} {key(document)}: {text}" for text in faults(document, [oldest(chart), NEWEST])]
        values = {"namespace": {"create": True}, **VALUES[name]}
        by_helm = documents(render(chart, values))
        for missing in by_kustomize.keys() ^ by_helm.keys():
            failures.append(f"{name} {missing}: only by {'kustomize' if missing in by_kustomize else 'Helm'}")
        for both in by_kustomize.keys() & by_helm.keys():
            failures += [f"{name} {both}{text}" for text in differences(by_kustomize[both], by_helm[both])]
    print("\n".join(failures) or f"{len(folders)} folders")
    sys.exit(1 if failures else 0)


def render(chart, values):
    """The objects of the chart as text, without its notes."""
    rendered = Chart.load(chart).render(values, name="energy-agent", namespace="energy-agent")
    return "\n---\n".join(text for path, text in rendered.items() if not path.endswith("NOTES.txt"))


if __name__ == "__main__":
    main()
