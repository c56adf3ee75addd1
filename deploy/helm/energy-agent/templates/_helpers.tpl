{{- define "energy-agent.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Nine characters are left for what is added, such as -policies. */}}
{{- define "energy-agent.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else }}
{{- $name := include "energy-agent.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* What selects the pods of this release. An object keeps it for its life. */}}
{{- define "energy-agent.selector" -}}
app.kubernetes.io/name: {{ include "energy-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "energy-agent.labels" -}}
{{ include "energy-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of the controller. Its name is another one: the Service of the agents must not find it. */}}
{{- define "energy-agent.controller.selector" -}}
app.kubernetes.io/name: {{ include "energy-agent.name" . }}-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "energy-agent.controller.labels" -}}
{{ include "energy-agent.controller.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "energy-agent.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "energy-agent.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "energy-agent.controller.serviceAccount" -}}
{{- $account := .Values.controller.serviceAccount }}
{{- if $account.create }}
{{- $account.name | default (printf "%s-controller" (include "energy-agent.fullname" .)) }}
{{- else }}
{{- $account.name | default "default" }}
{{- end }}
{{- end }}

{{- define "energy-agent.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "energy-agent.policies" -}}
{{- .Values.capping.existingConfigMap | default (printf "%s-policies" (include "energy-agent.fullname" .)) }}
{{- end }}

{{/* The Secret with web.yaml; empty: plain HTTP. */}}
{{- define "energy-agent.web" -}}
{{- if .Values.webConfig.existingSecret }}
{{- .Values.webConfig.existingSecret }}
{{- else if .Values.webConfig.certificateSecret }}
{{- printf "%s-web" (include "energy-agent.fullname" .) }}
{{- end }}
{{- end }}

{{/* What pods, probes and monitors use. */}}
{{- define "energy-agent.scheme" -}}
{{- if include "energy-agent.web" . }}{{ .Values.webConfig.scheme }}{{ else }}HTTP{{ end }}
{{- end }}

{{/* A probe of a path; path, timing, root. */}}
{{- define "energy-agent.probe" -}}
{{- $web := .root.Values.webConfig }}
{{- if and (include "energy-agent.web" .root) (eq $web.probes "tcpSocket") -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: {{ .path }}
  port: metrics
  {{- if eq (include "energy-agent.scheme" .root) "HTTPS" }}
  scheme: HTTPS
  {{- end }}
  {{- if and (include "energy-agent.web" .root) $web.probeHeaders }}
  httpHeaders: {{ toYaml $web.probeHeaders | nindent 2 }}
  {{- end }}
{{- end }}
{{ toYaml .timing }}
{{- end }}

{{/*
The affinity that a user asks for, with these requirements in each of its node terms: terms are alternatives, so a requirement
that must hold stands in all of them. asked, requirements (of matchExpressions).
*/}}
{{- define "energy-agent.affinity" -}}
{{- $affinity := deepCopy .asked }}
{{- if .requirements }}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity }}
{{- $terms := list }}
{{- range $term := $required }}
{{- $expressions := concat (default (list) $term.matchExpressions) $.requirements }}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) $term) }}
{{- end }}
{{- $node := merge (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) (dig "nodeAffinity" dict $affinity) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- with $affinity }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* What PodMonitor and ServiceMonitor have in common; settings, root. */}}
{{- define "energy-agent.endpoint" -}}
port: metrics
{{- if eq (include "energy-agent.scheme" .root) "HTTPS" }}
scheme: https
{{- end }}
interval: {{ .settings.interval }}
{{- with .settings.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
# The metrics have the labels pod_name, pod_namespace and container_name of whom they are about.
honorLabels: true
{{- with .settings.tlsConfig }}
tlsConfig: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.basicAuth }}
basicAuth: {{ toYaml . | nindent 2 }}
{{- end }}
relabelings:
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
# Rules and dashboards find the agents by this name, whatever the objects are called.
- targetLabel: job
  replacement: energy-agent
{{- with .settings.relabelings }}
{{ toYaml . }}
{{- end }}
{{- with .settings.metricRelabelings }}
metricRelabelings: {{ toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Settings that contradict each other. */}}
{{- define "energy-agent.check" -}}
{{- if and .Values.priorityQuota (not .Values.priorityClassName) }}
{{- fail "priorityQuota=true needs the class that the quota is for: set priorityClassName, or priorityQuota=false" }}
{{- end }}
{{- if and .Values.gpu.capping (not (and .Values.gpu.enabled .Values.capping.enabled)) }}
{{- fail "gpu.capping=true needs gpu.enabled=true and capping.enabled=true" }}
{{- end }}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
{{- fail "podMonitor.enabled and serviceMonitor.enabled would scrape every pod twice: choose one" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) }}
{{- fail "serviceMonitor.enabled=true needs service.enabled=true, or use podMonitor.enabled" }}
{{- end }}
{{- if and (ne .Values.capping.resources "off") (not .Values.capping.enabled) }}
{{- fail "capping.resources needs capping.enabled=true: what objects say is kept by the same means" }}
{{- end }}
{{- if and .Values.controller.enabled (eq .Values.capping.resources "off") }}
{{- fail "controller.enabled=true needs capping.resources=recommend or enforce: agents that follow no objects tell it no power" }}
{{- end }}
{{- if and .Values.controller.climatik.bridge (not .Values.controller.enabled) }}
{{- fail "controller.climatik.bridge=true needs controller.enabled=true: the controller is what follows objects of Climatik" }}
{{- end }}
{{- if and .Values.controller.enabled (not .Values.service.enabled) }}
{{- fail "controller.enabled=true needs service.enabled=true: in the Service of the agents it finds their addresses" }}
{{- end }}
{{- if and .Values.controller.enabled (include "energy-agent.web" .) (eq .Values.webConfig.scheme "HTTPS") (not .Values.controller.extraArgs) (not .Values.controller.extraEnv) }}
{{- fail "agents with TLS: tell the controller how to ask them by controller.extraArgs (energy-agent controller --help)" }}
{{- end }}
{{- if and .Values.policies (not .Values.capping.enabled) }}
{{- fail "policies need capping.enabled=true: agents that do not cap read none" }}
{{- end }}
{{- if and .Values.capping.existingConfigMap (not .Values.capping.enabled) }}
{{- fail "capping.existingConfigMap needs capping.enabled=true: agents that do not cap read no policies" }}
{{- end }}
{{- if not (include "energy-agent.web" .) }}
{{- if or (eq .Values.webConfig.probes "tcpSocket") .Values.webConfig.probeHeaders (eq .Values.webConfig.scheme "HTTP") }}
{{- fail "webConfig.scheme, webConfig.probes and webConfig.probeHeaders belong to webConfig.existingSecret or webConfig.certificateSecret: set one of these, or none of those" }}
{{- end }}
{{- end }}
{{- if and .Values.capping.existingConfigMap .Values.policies }}
{{- fail "policies go into the ConfigMap of the chart, and capping.existingConfigMap names another: set only one of the two" }}
{{- end }}
{{- end }}
