"""What each value of the chart changes, and what is refused: read by chart.py.

A case: values, other names of release and namespace, and pairs of an object with a path in it and what is there. None: nothing;
a list that begins with `...`: the rest is among its items. Without a path: whether the object is there."""

AGENT = "DaemonSet", "energy-agent"
GPU = "DaemonSet", "energy-agent-gpu"
CONTROLLER = "Deployment", "energy-agent-controller"
SITE = "Deployment", "site-energy-agent-controller"
CONTROLLED = {"capping": {"enabled": True, "resources": "recommend"}, "controller": {"enabled": True}}
POD = "spec/template/spec/"
BOX = POD + "containers/0/"
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "db", "effect": "NoSchedule"}
CLASS = {"key": "class", "operator": "In", "values": ["a", "b"]}
REQUIRED = "nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
ASKED = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "other"}}}
        ]
    },
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [CLASS]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]},
            ]
        }
    },
}
NO_GPU = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
FROM_CONTROLLER = {
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/name": "energy-agent-controller",
            "app.kubernetes.io/instance": "energy-agent",
        }
    }
}
DASHBOARDS = ["agent-health", "capping", "cluster-budgets", "energy-cost", "gpu-health", "pod-energy"]
POLICIES = {
    "version": 1,
    "policies": [{"name": "a", "mode": "Recommend", "selector": {"selectAll": True}, "budget": {"watts": 300}}],
}
DIGEST = "sha256:" + "0123456789abcdef" * 4
WEB = {"existingSecret": "my-web"}
MONITORED = {
    "enabled": True,
    "namespace": "monitoring",
    "labels": {"release": "stack"},
    "interval": "30s",
    "scrapeTimeout": "10s",
    "tlsConfig": {"serverName": "a"},
    "basicAuth": {"username": {"name": "login", "key": "user"}, "password": {"name": "login", "key": "password"}},
    "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
    "metricRelabelings": [{"action": "labeldrop", "regex": "source"}],
}


def monitor(kind, value, endpoints):
    """The two kinds of monitors have the same settings."""
    name, first = (kind, "energy-agent"), f"spec/{endpoints}/0/"
    relabelings = [
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
        {"targetLabel": "job", "replacement": "energy-agent"},
    ]
    selected = {"app.kubernetes.io/name": "energy-agent", "app.kubernetes.io/instance": "energy-agent"}
    return [
        (
            {value: {"enabled": True}},
            {},
            [
                ((*name, "metadata/namespace"), "energy-agent"),
                ((*name, "spec/selector/matchLabels"), selected),
                ((*name, "spec/namespaceSelector"), None),
                ((*name, first + "port"), "metrics"),
                ((*name, first + "scheme"), None),
                ((*name, first + "interval"), "15s"),
                ((*name, first + "honorLabels"), True),
                ((*name, first + "relabelings"), relabelings),
            ],
        ),
        (
            {value: MONITORED, "webConfig": WEB},
            {},
            [
                ((*name, "metadata/namespace"), "monitoring"),
                ((*name, "metadata/labels/release"), "stack"),
                ((*name, "spec/namespaceSelector/matchNames"), ["energy-agent"]),
                ((*name, first + "scheme"), "https"),
                ((*name, first + "interval"), "30s"),
                ((*name, first + "scrapeTimeout"), "10s"),
                ((*name, first + "tlsConfig"), MONITORED["tlsConfig"]),
                ((*name, first + "basicAuth"), MONITORED["basicAuth"]),
                ((*name, first + "relabelings"), relabelings + MONITORED["relabelings"]),
                ((*name, first + "metricRelabelings"), MONITORED["metricRelabelings"]),
            ],
        ),
    ]


CASES = [
    # Names and labels.
    (
        {},
        {"name": "site", "namespace": "power"},
        [
            (("DaemonSet", "site-energy-agent", "metadata/namespace"), "power"),
            (
                ("DaemonSet", "site-energy-agent", "metadata/labels"),
                {
                    "app.kubernetes.io/name": "energy-agent",
                    "app.kubernetes.io/instance": "site",
                    "app.kubernetes.io/version": "0.1.0",
                    "app.kubernetes.io/managed-by": "Helm",
                    "app.kubernetes.io/component": "node",
                    "helm.sh/chart": "energy-agent-0.1.0",
                },
            ),
            (
                ("DaemonSet", "site-energy-agent", "spec/selector/matchLabels"),
                {
                    "app.kubernetes.io/name": "energy-agent",
                    "app.kubernetes.io/instance": "site",
                    "app.kubernetes.io/component": "node",
                },
            ),
            (
                ("DaemonSet", "site-energy-agent", "spec/template/metadata/labels"),
                {
                    "app.kubernetes.io/name": "energy-agent",
                    "app.kubernetes.io/instance": "site",
                    "app.kubernetes.io/component": "node",
                },
            ),
            (
                ("Service", "site-energy-agent", "spec/selector"),
                {"app.kubernetes.io/name": "energy-agent", "app.kubernetes.io/instance": "site"},
            ),
            (
                ("ClusterRoleBinding", "site-energy-agent", "subjects/0"),
                {"kind": "ServiceAccount", "name": "site-energy-agent", "namespace": "power"},
            ),
            (("ConfigMap", "site-energy-agent-policies"), True),
        ],
    ),
    (
        {"nameOverride": "joules", "commonLabels": {"team": "green"}},
        {},
        [
            (("DaemonSet", "energy-agent-joules", "metadata/labels/app.kubernetes.io~1name"), "joules"),
            (("DaemonSet", "energy-agent-joules", "metadata/labels/team"), "green"),
            (("DaemonSet", "energy-agent-joules", "spec/template/metadata/labels/team"), "green"),
            (("DaemonSet", "energy-agent-joules", "spec/selector/matchLabels/team"), None),
            (("ServiceAccount", "energy-agent-joules", "metadata/labels/team"), "green"),
        ],
    ),
    (
        {"fullnameOverride": "joules", "capping": {"enabled": True}},
        {"name": "site"},
        [
            (("DaemonSet", "joules", BOX + "args/2"), "--capping.configmap=$(POD_NAMESPACE)/joules-policies"),
            (("Role", "joules", "rules/0/resourceNames"), ["joules-policies"]),
            (("ClusterRole", "joules-events"), True),
        ],
    ),
    (
        {"namespace": {"create": True}},
        {"namespace": "power"},
        [(("Namespace", "power", "metadata/labels/pod-security.kubernetes.io~1enforce"), "privileged")],
    ),
    # Image.
    (
        {"image": {"repository": "registry.example/energy-agent", "tag": "1.2.3", "pullPolicy": "Always"}},
        {},
        [
            ((*AGENT, BOX + "image"), "registry.example/energy-agent:1.2.3"),
            ((*AGENT, BOX + "imagePullPolicy"), "Always"),
            ((*AGENT, POD + "imagePullSecrets"), None),
        ],
    ),
    (
        {"image": {"tag": "1.2.3", "digest": DIGEST, "pullSecrets": [{"name": "registry"}]}},
        {},
        [
            ((*AGENT, BOX + "image"), f"localhost/energy-agent@{DIGEST}"),
            ((*AGENT, POD + "imagePullSecrets"), [{"name": "registry"}]),
        ],
    ),
    # Account and rights.
    (
        {"serviceAccount": {"name": "meter", "annotations": {"a": "b"}}},
        {},
        [
            (("ServiceAccount", "meter", "metadata/annotations"), {"a": "b"}),
            ((*AGENT, POD + "serviceAccountName"), "meter"),
            (("ClusterRoleBinding", "energy-agent", "subjects/0/name"), "meter"),
        ],
    ),
    (
        {"serviceAccount": {"create": False}},
        {},
        [(("ServiceAccount", "energy-agent"), False), ((*AGENT, POD + "serviceAccountName"), "default")],
    ),
    (
        {"rbac": {"create": False}, "capping": {"enabled": True}, "gpu": {"enabled": True}},
        {},
        [
            (("ClusterRole", "energy-agent"), False),
            (("ClusterRoleBinding", "energy-agent"), False),
            (("Role", "energy-agent"), False),
            (("RoleBinding", "energy-agent"), False),
            (("ClusterRole", "energy-agent-events"), False),
            (("ClusterRole", "energy-agent-resource-slices"), False),
        ],
    ),
    (
        {"pods": {"source": "kubelet"}},
        {},
        [
            ((*AGENT, BOX + "env"), [..., {"name": "ENERGY_AGENT_PODS_SOURCE", "value": "kubelet"}]),
            (("ClusterRole", "energy-agent", "rules/0/resources"), ["nodes/pods", "nodes/proxy"]),
        ],
    ),
    # Capping and policies.
    (
        {"capping": {"enabled": True}, "policies": POLICIES},
        {},
        [
            ((*AGENT, BOX + "args/1"), "--capping=on"),
            (
                ("ConfigMap", "energy-agent-policies", "data/policies.yaml"),
                "policies:\n- budget:\n    watts: 300\n  mode: Recommend\n  name: a\n"
                "  selector:\n    selectAll: true\nversion: 1\n",
            ),
        ],
    ),
    (
        {"capping": {"enabled": True}, "policies": "# mine\nversion: 1\npolicies: []\n"},
        {},
        [
            (
                ("ConfigMap", "energy-agent-policies", "data/policies.yaml"),
                "# mine\nversion: 1\npolicies: []\n",
            )
        ],
    ),
    (
        {"capping": {"enabled": True, "existingConfigMap": "budgets"}},
        {},
        [
            (("ConfigMap", "energy-agent-policies"), False),
            (("Role", "energy-agent", "rules/0/resourceNames"), ["budgets"]),
            ((*AGENT, BOX + "args/2"), "--capping.configmap=$(POD_NAMESPACE)/budgets"),
        ],
    ),
    # Objects of the cluster, and the controller.
    (
        {"capping": {"enabled": True, "resources": "enforce"}, "serviceAccount": {"name": "meter"}},
        {"namespace": "power"},
        [
            ((*AGENT, BOX + "env"), [..., {"name": "ENERGY_AGENT_CAPPING_RESOURCES", "value": "enforce"}]),
            (("ClusterRoleBinding", "energy-agent-resources", "subjects/0/name"), "meter"),
            (("Role", "energy-agent-resources", "metadata/namespace"), "power"),
            (
                ("ClusterRole", "energy-agent-policies-edit", "metadata/labels/rbac.authorization.k8s.io~1aggregate-to-edit"),
                "true",
            ),
            (("ClusterRoleBinding", "energy-agent-policies-edit"), False),
            (
                ("FlowSchema", "energy-agent", "spec/rules/0/subjects/0/serviceAccount"),
                {"name": "meter", "namespace": "power"},
            ),
            (("PriorityLevelConfiguration", "energy-agent"), True),
            (CONTROLLER, False),
        ],
    ),
    (
        {
            **CONTROLLED,
            "controller": {
                "enabled": True,
                "replicas": 3,
                "extraArgs": ["--log.level=debug"],
                "extraEnv": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"memory": "1Gi"}},
                "nodeSelector": {"pool": "system"},
                "tolerations": [TOLERATION],
                "affinity": ASKED,
                "priorityClassName": "important",
                "podAnnotations": {"a": "1"},
                "podLabels": {"b": "2"},
                "serviceAccount": {"name": "judge", "annotations": {"c": "3"}},
            },
        },
        {"name": "site", "namespace": "power"},
        [
            ((*SITE, "spec/replicas"), 3),
            (
                (*SITE, BOX + "args"),
                ["controller", "--controller.service=site-energy-agent", "--log.level=debug"],
            ),
            ((*SITE, BOX + "env"), [..., {"name": "A", "value": "b"}]),
            ((*SITE, BOX + "resources/limits"), {"memory": "1Gi"}),
            ((*SITE, POD + "nodeSelector"), {"pool": "system"}),
            ((*SITE, POD + "tolerations"), [TOLERATION]),
            ((*SITE, POD + "affinity"), ASKED),
            ((*SITE, POD + "priorityClassName"), "important"),
            # The Service of the agents does not find it.
            (
                (*SITE, "spec/template/metadata/labels"),
                {"app.kubernetes.io/name": "energy-agent-controller", "app.kubernetes.io/instance": "site", "b": "2"},
            ),
            ((*SITE, "spec/selector/matchLabels/b"), None),
            ((*SITE, "spec/template/metadata/annotations"), {"a": "1"}),
            ((*SITE, POD + "serviceAccountName"), "judge"),
            (("ServiceAccount", "judge", "metadata/annotations"), {"c": "3"}),
            (("ServiceAccount", "site-energy-agent-controller"), False),
            (
                ("RoleBinding", "site-energy-agent-controller", "subjects/0"),
                {"kind": "ServiceAccount", "name": "judge", "namespace": "power"},
            ),
            (("PodDisruptionBudget", "site-energy-agent-controller", "spec/maxUnavailable"), 1),
        ],
    ),
    (
        {**CONTROLLED, "controller": {"enabled": True, "serviceAccount": {"create": False}}},
        {},
        [
            (("ServiceAccount", "energy-agent-controller"), False),
            ((*CONTROLLER, POD + "serviceAccountName"), "default"),
            (("ClusterRoleBinding", "energy-agent-controller", "subjects/0/name"), "default"),
        ],
    ),
    (
        {**CONTROLLED, "controller": {"enabled": True, "climatik": {"bridge": True}}},
        {"name": "site", "namespace": "power"},
        [
            ((*SITE, BOX + "env"), [..., {"name": "ENERGY_AGENT_CLIMATIK_BRIDGE", "value": "true"}]),
            (("ClusterRole", "site-energy-agent-climatik"), True),
            (
                ("ClusterRoleBinding", "site-energy-agent-climatik", "subjects/0"),
                {"kind": "ServiceAccount", "name": "site-energy-agent-controller", "namespace": "power"},
            ),
            (
                (
                    "CustomResourceDefinition",
                    "nodefrequencies.climatik.io",
                    "metadata/annotations/helm.sh~1resource-policy",
                ),
                "keep",
            ),
        ],
    ),
    (
        {**CONTROLLED, "controller": {"enabled": True, "climatik": {"bridge": True, "kinds": False}}},
        {},
        [
            (("ClusterRole", "energy-agent-climatik"), True),
            (("CustomResourceDefinition", "powercappingpolicies.climatik.io"), False),
        ],
    ),
    (
        {**CONTROLLED, "rbac": {"create": False}, "serviceMonitor": MONITORED, "networkPolicy": {"enabled": True}},
        {},
        [
            (("ClusterRole", "energy-agent-controller"), False),
            (("Role", "energy-agent-resources"), False),
            (("PodMonitor", "energy-agent-controller", "metadata/namespace"), "monitoring"),
            (("PodMonitor", "energy-agent-controller", "spec/namespaceSelector/matchNames"), ["energy-agent"]),
            (("PodMonitor", "energy-agent-controller", "metadata/labels/release"), "stack"),
            (
                ("NetworkPolicy", "energy-agent-controller", "spec/ingress/0/from"),
                [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            ),
        ],
    ),
    # GPUs.
    (
        {"gpu": {"enabled": True, "runtimeClassName": ""}},
        {},
        [
            ((*GPU, POD + "runtimeClassName"), None),
            ((*GPU, POD + "nodeSelector"), {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}),
            ((*GPU, BOX + "securityContext/capabilities/add"), ["BPF", "PERFMON"]),
        ],
    ),
    (
        {"gpu": {"enabled": True, "capping": True, "runtimeClassName": "nvidia-cdi"}, "capping": {"enabled": True}},
        {},
        [
            ((*GPU, POD + "runtimeClassName"), "nvidia-cdi"),
            ((*GPU, BOX + "securityContext/capabilities/add"), ["BPF", "PERFMON", "SYS_ADMIN"]),
            ((*GPU, BOX + "securityContext/allowPrivilegeEscalation"), None),
            ((*AGENT, BOX + "securityContext/capabilities/add"), ["BPF", "PERFMON"]),
            ((*AGENT, BOX + "securityContext/allowPrivilegeEscalation"), False),
        ],
    ),
    (
        {
            "gpu": {
                "enabled": True,
                "nodeLabel": {"name": "accelerator", "value": "nvidia"},
                "kubeletPath": "/var/snap/kubelet/pod-resources",
                "resources": {"limits": {"memory": "1Gi"}},
                "nodeSelector": {"pool": "gpus"},
                "tolerations": [TOLERATION],
                "affinity": ASKED,
            }
        },
        {},
        [
            (
                (*GPU, POD + "nodeSelector"),
                {"kubernetes.io/os": "linux", "accelerator": "nvidia", "pool": "gpus"},
            ),
            (
                (*GPU, POD + "volumes"),
                [..., {"name": "pod-resources", "hostPath": {"path": "/var/snap/kubelet/pod-resources"}}],
            ),
            ((*GPU, BOX + "resources"), {"limits": {"memory": "1Gi"}}),
            ((*GPU, POD + "tolerations"), [TOLERATION]),
            ((*GPU, POD + "affinity/podAntiAffinity"), ASKED["podAntiAffinity"]),
            ((*GPU, POD + f"affinity/{REQUIRED}/0/matchExpressions/0"), CLASS),
            ((*GPU, POD + f"affinity/{REQUIRED}/0/matchExpressions/1/key"), "nvidia.com/gpu.deploy.client"),
            ((*GPU, POD + f"affinity/{REQUIRED}/1/matchExpressions/0/key"), "nvidia.com/gpu.deploy.client"),
            # The other DaemonSet has its own, and stays off the nodes with that label.
            ((*AGENT, POD + "nodeSelector"), {"kubernetes.io/os": "linux"}),
            (
                (*AGENT, POD + f"affinity/{REQUIRED}"),
                [{"matchExpressions": [{"key": "accelerator", "operator": "NotIn", "values": ["nvidia"]}]}],
            ),
            ((*AGENT, POD + "tolerations"), [{"operator": "Exists"}]),
            ((*AGENT, BOX + "resources/limits/memory"), "256Mi"),
        ],
    ),
    # The pods.
    (
        {"extraArgs": ["--log.level=debug"], "extraEnv": [{"name": "ENERGY_AGENT_INTERVAL", "value": "5s"}]},
        {},
        [
            ((*AGENT, BOX + "args"), ["run", "--log.level=debug"]),
            ((*AGENT, BOX + "env"), [..., {"name": "ENERGY_AGENT_INTERVAL", "value": "5s"}]),
        ],
    ),
    (
        {
            "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
        },
        {},
        [
            ((*AGENT, POD + "volumes"), [..., {"name": "ca", "secret": {"secretName": "ca"}}]),
            ((*AGENT, BOX + "volumeMounts"), [..., {"name": "ca", "mountPath": "/etc/ca", "readOnly": True}]),
        ],
    ),
    (
        {"resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "512Mi", "cpu": "1"}}},
        {},
        [
            ((*AGENT, BOX + "resources/limits"), {"memory": "512Mi", "cpu": "1"}),
            ((*AGENT, BOX + "resources/requests"), {"cpu": "50m", "memory": "64Mi"}),
        ],
    ),
    (
        {"nodeSelector": {"pool": "batch"}, "tolerations": [TOLERATION], "affinity": ASKED},
        {},
        [
            ((*AGENT, POD + "nodeSelector"), {"kubernetes.io/os": "linux", "pool": "batch"}),
            ((*AGENT, POD + "tolerations"), [TOLERATION]),
            ((*AGENT, POD + "affinity"), ASKED),
        ],
    ),
    # Both alternatives that the user names keep off GPU nodes.
    (
        {"affinity": ASKED, "gpu": {"enabled": True}},
        {},
        [
            ((*AGENT, POD + f"affinity/{REQUIRED}/0/matchExpressions"), [CLASS, NO_GPU]),
            ((*AGENT, POD + f"affinity/{REQUIRED}/1/matchExpressions"), [NO_GPU]),
            ((*AGENT, POD + f"affinity/{REQUIRED}/1/matchFields/0/key"), "metadata.name"),
            ((*AGENT, POD + f"affinity/{REQUIRED}/2"), None),
            ((*GPU, POD + f"affinity/{REQUIRED}/0/matchExpressions/0"), CLASS),
        ],
    ),
    ({"tolerations": []}, {}, [((*AGENT, POD + "tolerations"), None)]),
    (
        {"priorityClassName": "important", "priorityQuota": True},
        {},
        [
            ((*AGENT, POD + "priorityClassName"), "important"),
            (("ResourceQuota", "energy-agent", "spec/scopeSelector/matchExpressions/0/values"), ["important"]),
        ],
    ),
    ({"priorityClassName": ""}, {}, [((*AGENT, POD + "priorityClassName"), None)]),
    (
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}, "terminationGracePeriodSeconds": 60},
        {},
        [
            ((*AGENT, "spec/updateStrategy"), {"type": "OnDelete"}),
            ((*AGENT, POD + "terminationGracePeriodSeconds"), 60),
        ],
    ),
    (
        {"livenessProbe": {"periodSeconds": 30}, "readinessProbe": {"initialDelaySeconds": 2}},
        {},
        [
            (
                (*AGENT, BOX + "livenessProbe"),
                {
                    "httpGet": {"path": "/healthz", "port": "metrics"},
                    "periodSeconds": 30,
                    "timeoutSeconds": 5,
                    "failureThreshold": 6,
                },
            ),
            (
                (*AGENT, BOX + "readinessProbe"),
                {
                    "httpGet": {"path": "/readyz", "port": "metrics"},
                    "initialDelaySeconds": 2,
                    "periodSeconds": 5,
                    "timeoutSeconds": 5,
                },
            ),
        ],
    ),
    (
        {"securityContext": {"seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"}}},
        {},
        [
            ((*AGENT, BOX + "securityContext/seLinuxOptions/type"), "spc_t"),
            ((*AGENT, BOX + "securityContext/seccompProfile/type"), "Unconfined"),
            ((*AGENT, BOX + "securityContext/readOnlyRootFilesystem"), True),
            ((*AGENT, BOX + "securityContext/capabilities/drop"), ["ALL"]),
        ],
    ),
    (
        {
            "daemonSetAnnotations": {"a": "1"},
            "podAnnotations": {"b": "2"},
            "podLabels": {"c": "3"},
            "scrapeAnnotations": True,
        },
        {},
        [
            ((*AGENT, "metadata/annotations"), {"a": "1"}),
            (
                (*AGENT, "spec/template/metadata/annotations"),
                {
                    "kubectl.kubernetes.io/default-container": "energy-agent",
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": "9102",
                    "prometheus.io/path": "/metrics",
                    "prometheus.io/scheme": "http",
                    "b": "2",
                },
            ),
            ((*AGENT, "spec/template/metadata/labels/c"), "3"),
        ],
    ),
    # The Service.
    ({"service": {"enabled": False}}, {}, [(("Service", "energy-agent"), False)]),
    (
        {"service": {"port": 80, "annotations": {"a": "1"}, "labels": {"b": "2"}}},
        {},
        [
            (("Service", "energy-agent", "spec/ports/0/port"), 80),
            (("Service", "energy-agent", "spec/ports/0/targetPort"), "metrics"),
            (("Service", "energy-agent", "metadata/annotations"), {"a": "1"}),
            (("Service", "energy-agent", "metadata/labels/b"), "2"),
        ],
    ),
    # TLS and users.
    (
        {"webConfig": WEB, "scrapeAnnotations": True},
        {},
        [
            ((*AGENT, BOX + "livenessProbe/httpGet/scheme"), "HTTPS"),
            ((*AGENT, BOX + "readinessProbe/httpGet/scheme"), "HTTPS"),
            ((*AGENT, "spec/template/metadata/annotations/prometheus.io~1scheme"), "https"),
            (
                (*AGENT, BOX + "env"),
                [..., {"name": "ENERGY_AGENT_WEB_CONFIG_FILE", "value": "/etc/energy-agent/web/web.yaml"}],
            ),
            (
                (*AGENT, POD + "volumes"),
                [..., {"name": "web", "projected": {"defaultMode": 256, "sources": [{"secret": {"name": "my-web"}}]}}],
            ),
            (("Secret", "energy-agent-web"), False),
        ],
    ),
    (
        {"webConfig": {"certificateSecret": "tls"}},
        {},
        [
            ((*AGENT, BOX + "livenessProbe/httpGet/scheme"), "HTTPS"),
            (("Secret", "energy-agent-web", "type"), "Opaque"),
            ((*AGENT, POD + "volumes/5/projected/sources/0/secret/name"), "energy-agent-web"),
            ((*AGENT, POD + "volumes/5/projected/sources/1/secret/name"), "tls"),
        ],
    ),
    (
        {"webConfig": {"existingSecret": "my-web", "certificateSecret": "tls", "probes": "tcpSocket"}},
        {},
        [
            ((*AGENT, BOX + "livenessProbe/tcpSocket"), {"port": "metrics"}),
            ((*AGENT, BOX + "livenessProbe/httpGet"), None),
            ((*AGENT, BOX + "livenessProbe/failureThreshold"), 6),
            ((*AGENT, POD + "volumes/5/projected/sources/1/secret/name"), "tls"),
            (("Secret", "energy-agent-web"), False),
        ],
    ),
    (
        {
            "webConfig": {
                "existingSecret": "my-web",
                "scheme": "HTTP",
                "probeHeaders": [{"name": "Authorization", "value": "Basic cHJvYmU6cHJvYmU="}],
            },
            "podMonitor": {"enabled": True},
        },
        {},
        [
            (
                (*AGENT, BOX + "livenessProbe/httpGet"),
                {
                    "path": "/healthz",
                    "port": "metrics",
                    "httpHeaders": [{"name": "Authorization", "value": "Basic cHJvYmU6cHJvYmU="}],
                },
            ),
            (("PodMonitor", "energy-agent", "spec/podMetricsEndpoints/0/scheme"), None),
        ],
    ),
    # Prometheus and Grafana.
    *monitor("PodMonitor", "podMonitor", "podMetricsEndpoints"),
    *monitor("ServiceMonitor", "serviceMonitor", "endpoints"),
    (
        {"prometheusRule": {"enabled": True, "namespace": "monitoring", "labels": {"release": "stack"}}},
        {},
        [
            (("PrometheusRule", "energy-agent", "metadata/namespace"), "monitoring"),
            (("PrometheusRule", "energy-agent", "metadata/labels/release"), "stack"),
            (("PrometheusRule", "energy-agent", "spec/groups/0/name"), "energy-agent.power"),
        ],
    ),
    (
        {
            "dashboards": {
                "enabled": True,
                "namespace": "grafana",
                "labels": {"grafana_dashboard": "yes"},
                "annotations": {"grafana_folder": "Energy"},
            }
        },
        {},
        [
            (("ConfigMap", "energy-agent-pod-energy", "metadata/namespace"), "grafana"),
            (("ConfigMap", "energy-agent-pod-energy", "metadata/labels/grafana_dashboard"), "yes"),
            (("ConfigMap", "energy-agent-pod-energy", "metadata/annotations"), {"grafana_folder": "Energy"}),
            *(((("ConfigMap", f"energy-agent-{name}")), True) for name in DASHBOARDS),
        ],
    ),
    (
        {"networkPolicy": {"enabled": True, "namespace": "observability"}},
        {},
        [
            (
                ("NetworkPolicy", "energy-agent", "spec/ingress/0/from"),
                [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}, FROM_CONTROLLER],
            )
        ],
    ),
    (
        {"networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
        {},
        [
            (
                ("NetworkPolicy", "energy-agent", "spec/ingress/0/from"),
                [{"ipBlock": {"cidr": "10.0.0.0/8"}}, FROM_CONTROLLER],
            )
        ],
    ),
]

# Values, and what the message names.
REFUSED = [
    ({"toleration": []}, "toleration"),
    ({"image": {"tagg": "1"}}, "/image", "tagg"),
    ({"imagePullSecrets": []}, "imagePullSecrets"),
    ({"serviceaccount": {"create": False}}, "serviceaccount"),
    ({"gpu": {"enable": True}}, "/gpu", "enable"),
    ({"gpu": {"enabled": "yes"}}, "/gpu/enabled"),
    ({"podMonitor": {"enabled": True, "intervall": "5s"}}, "intervall"),
    ({"podMonitor": {"interval": "5"}}, "/podMonitor/interval"),
    ({"pods": {"source": "apiserver"}}, "/pods/source"),
    ({"resources": {"limit": {}}}, "/resources", "limit"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"policies": {"policy": []}}, "/policies"),
    ({"livenessProbe": {"period": 1}}, "/livenessProbe", "period"),
    # An empty list of classes, which no API server takes.
    ({"priorityQuota": True, "priorityClassName": ""}, "priorityQuota", "priorityClassName"),
    ({"gpu": {"capping": True}}, "gpu.capping", "gpu.enabled", "capping.enabled"),
    ({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "twice"),
    ({"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}, "service.enabled"),
    ({"policies": POLICIES, "capping": {"enabled": True, "existingConfigMap": "a"}}, "existingConfigMap"),
    ({"capping": {"resources": "on"}}, "/capping/resources"),
    ({"capping": {"resources": "recommend"}}, "capping.enabled"),
    ({"controller": {"enabled": True}, "capping": {"enabled": True}}, "capping.resources"),
    ({"controller": {"climatik": {"bridge": True}}}, "controller.enabled"),
    ({**CONTROLLED, "service": {"enabled": False}}, "service.enabled"),
    ({**CONTROLLED, "webConfig": WEB}, "controller.extraArgs"),
    ({"controller": {"replica": 1}}, "/controller", "replica"),
    ({"controller": {"serviceAccount": {"nam": "a"}}}, "/controller/serviceAccount", "nam"),
    # What nothing would read.
    ({"policies": POLICIES}, "policies", "capping.enabled"),
    ({"capping": {"existingConfigMap": "a"}}, "capping.existingConfigMap", "capping.enabled"),
    ({"webConfig": {"scheme": "HTTP"}}, "webConfig.scheme", "webConfig.existingSecret"),
    ({"webConfig": {"probes": "tcpSocket"}}, "webConfig.probes", "webConfig.existingSecret"),
    ({"webConfig": {"probeHeaders": [{"name": "A", "value": "b"}]}}, "webConfig.probeHeaders", "webConfig.certificateSecret"),
    # Typing errors, one in each part.
    ({"webConfig": {"certSecret": "a"}}, "/webConfig", "certSecret"),
    ({"webConfig": {**WEB, "probes": "exec"}}, "/webConfig/probes"),
    ({"networkPolicy": {"namespaces": ["a"]}}, "/networkPolicy", "namespaces"),
    ({"dashboards": {"enable": True}}, "/dashboards", "enable"),
    ({"service": {"type": "LoadBalancer"}}, "/service", "type"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"updateStrategy": {"maxUnavailable": 1}}, "/updateStrategy", "maxUnavailable"),
    ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type"),
    ({"serviceMonitor": {"label": {}}}, "/serviceMonitor", "label"),
    ({"prometheusRule": {"interval": "5s"}}, "/prometheusRule", "interval"),
    ({"capping": {"enable": True}}, "/capping", "enable"),
    ({"serviceAccount": {"labels": {}}}, "/serviceAccount", "labels"),
    ({"rbac": {"enabled": False}}, "/rbac", "enabled"),
]

# Values, and a sentence that Helm prints after the installation with them. `not` before it: that it does not print.
NOTES = [
    ({}, "energy-agent 0.1.0 meters the nodes of this cluster."),
    ({}, "kubectl exec --namespace energy-agent daemonset/energy-agent -- energy-agent doctor"),
    ({}, "Nothing tells a Prometheus of these pods yet."),
    ({}, "kubectl exec --stdin --tty --namespace energy-agent daemonset/energy-agent -- energy-agent top"),
    ({}, "not", "daemonset/energy-agent-gpu"),
    ({"webConfig": {"certificateSecret": "tls"}}, "The port speaks HTTPS as web.yaml says"),
    ({"webConfig": {"certificateSecret": "tls"}}, "not", "energy-agent top"),
    ({"podMonitor": {"enabled": True}}, "The Prometheus operator scrapes the pods."),
    ({"podMonitor": {"enabled": True}}, "Recording rules and alerts: set prometheusRule.enabled=true."),
    ({"podMonitor": {"enabled": True}}, "not", "Nothing tells a Prometheus"),
    ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.labels (kube-prometheus-stack: release: NAME)."),
    ({"scrapeAnnotations": True}, "A Prometheus that discovers pods by the annotation prometheus.io/scrape finds them."),
    ({"gpu": {"enabled": True}}, "kubectl exec --namespace energy-agent daemonset/energy-agent-gpu -- energy-agent doctor"),
    ({"gpu": {"enabled": True}}, '- "RuntimeClass "nvidia" not found": helm upgrade ... --set gpu.runtimeClassName=""'),
    ({"capping": {"enabled": True}}, "There are no policies yet: nothing is capped."),
    ({"capping": {"enabled": True}, "policies": POLICIES}, "not", "There are no policies yet"),
]
