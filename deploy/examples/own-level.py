#!/usr/bin/env python3
"""A controller of one's own for one ClusterPowerBudget, which names it: spec.control.controllerName: example.com/share.

Every node may draw the same part of its range, so that their limits never add up to more than the budget. What nodes can draw
is on the page /budgets of energy-agent controller, which goes on to write the status. own-level.yaml has the budget and the roles.

    own-level.py BUDGET http://energy-agent-controller.energy-agent:9103/budgets"""

import datetime, json, os, subprocess, sys, time, urllib.request

BUDGET, PAGE = sys.argv[1:]
NAMESPACE = os.environ.get("NAMESPACE", "energy-agent")
KUBECTL = ["kubectl", "--namespace", NAMESPACE]


def get(*arguments):
    return subprocess.run([*KUBECTL, "get", *arguments], check=True, capture_output=True, text=True).stdout


def apply(version, kind, metadata, spec):
    document = json.dumps({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    # Refused if somebody else owns these fields.
    command = [*KUBECTL, "apply", "--server-side", "--field-manager=example.com/share", "--filename=-"]
    subprocess.run(command, input=document, check=True, text=True)


epoch = 1 + int(get("powerlevel", f"budget.{BUDGET}", "--ignore-not-found", "--output=jsonpath={.spec.epoch}") or 0)
while True:
    budget = json.loads(get("clusterpowerbudget", BUDGET, "--output=json"))
    with urllib.request.urlopen(PAGE + "?format=json", timeout=10) as answer:
        page = json.load(answer)
    names = next((row["nodes"] for row in page["budgets"] if row["name"] == BUDGET), [])
    nodes = [node for node in page["nodes"] if node["name"] in names and node["most_watts"] is not None]
    others = budget["spec"]["unreportedNodeWatts"] * (len(names) - len(nodes))
    floor, most = (sum(node[end] for node in nodes) for end in ("floor_watts", "most_watts"))
    share = (budget["spec"]["watts"] - others - floor) / max(most - floor, 1)
    permille = max(0, min(1000, int(1000 * share)))
    subject = {"kind": "ClusterPowerBudget", "name": BUDGET, "uid": budget["metadata"]["uid"]}
    owner = {"apiVersion": budget["apiVersion"], **subject}
    level = {"levels": [{"tier": "", "permille": permille}], "lowestPermille": permille, "fallbackPermille": permille}
    written = {"for": {**subject, "generation": budget["metadata"]["generation"]}, "epoch": epoch, **level}
    written |= {"leaseName": "example-share", "staleAfterSeconds": 60}
    apply(budget["apiVersion"], "PowerLevel", {"name": f"budget.{BUDGET}", "ownerReferences": [owner]}, written)
    # The sign of life that nodes look at.
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
    apply("coordination.k8s.io/v1", "Lease", {"name": "example-share"}, {"renewTime": now.replace("+00:00", "Z")})
    time.sleep(float(os.environ.get("PAUSE", "10")))
