"""Installs, upgrades or uninstalls the chart by Helm's library, as the commands of docs/install.md do.

Run by tests/program/deploy.rs: install|upgrade|uninstall KUBECONFIG NAMESPACE CHART VALUES, the last as JSON"""

import json
import sys

from helm_python import Config

RELEASE = "energy-agent"


def main():
    action, kubeconfig, namespace, chart, values = sys.argv[1:]
    with Config(kubeconfig_path=kubeconfig, namespace=namespace) as helm:
        if action == "uninstall":
            helm.uninstall(RELEASE)
        else:
            getattr(helm, action)(chart, RELEASE, json.loads(values), namespace=namespace)


main()
