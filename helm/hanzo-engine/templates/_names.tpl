{{/* Names, labels and the numbers that several templates must agree on. */}}

{{- define "engine.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The longest suffix is "-headless", and a StatefulSet's pods add an ordinal and a revision. */}}
{{- define "engine.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "engine.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "engine.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "engine.selector" -}}
app.kubernetes.io/name: {{ include "engine.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods of the gateway, which are not those of the daemon. */}}
{{- define "engine.gatewayName" -}}
{{- printf "%s-gateway" (include "engine.fullname" .) -}}
{{- end -}}

{{- define "engine.daemonSelector" -}}
{{ include "engine.selector" . }}
app.kubernetes.io/component: engined
{{- end -}}

{{- define "engine.gatewaySelector" -}}
{{ include "engine.selector" . }}
app.kubernetes.io/component: gateway
{{- end -}}

{{/* The pod of `helm test`, which is no part of either. */}}
{{- define "engine.testSelector" -}}
{{ include "engine.selector" . }}
app.kubernetes.io/component: test
{{- end -}}

{{- define "engine.labels" -}}
{{ include "engine.selector" . }}
{{ include "engine.chartLabels" . }}
{{- end -}}

{{- define "engine.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "engine.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Most pods there can be. */}}
{{- define "engine.replicasMax" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicas .Values.autoscaling.enabled | int -}}
{{- end -}}

{{/*
preStop and drain count against one another's sum, and after the drain the last bytes are written (2 s) and the
process ends: 10 s more than both.
*/}}
{{- define "engine.gracePeriodSeconds" -}}
{{- add (int .Values.preStopSeconds) (int .Values.drainSeconds) 10 -}}
{{- end -}}

{{- define "engine.daemonConfig" -}}
server:
  host: {{ .Values.listenHost | quote }}
  grpc_port: 36901
  admin_port: 36902
  drain_s: {{ int .Values.drainSeconds }}
  {{- if .Values.keys.insecure }}
  insecure: true
  {{- end }}
  {{- if .Values.keys.fileSecret }}
  {{- if .Values.keys.insecure }}
  {{- fail "keys.fileSecret has keys that are wanted, and keys.insecure says that none is" }}
  {{- end }}
  api_keys_file: /etc/hanzo-engine-keys/keys.json
  {{- end }}
  {{- if .Values.inferencePool.enabled }}
  metrics_compat: vllm
  {{- end }}
  {{- with .Values.server }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if .Values.tls.engineSecret }}
  tls_cert: /etc/hanzo-engine-tls/tls.crt
  tls_key: /etc/hanzo-engine-tls/tls.key
  {{- end }}
store:
  dir: /var/lib/hanzo-engine/models
{{- with .Values.engine }}
engine:
  {{- toYaml . | nindent 2 }}
{{- end }}
log:
  {{- toYaml .Values.log | nindent 2 }}
{{- with .Values.traces }}
traces:
  {{- toYaml . | nindent 2 }}
{{- end }}
models:
  {{- toYaml .Values.models | nindent 2 }}
{{- end -}}

{{- define "engine.gatewayConfig" -}}
host: {{ .Values.listenHost | quote }}
port: 36900
# Each address of the name is a daemon that is ready.
upstreams:
  - {{ ternary "https" "http" (ne .Values.tls.engineSecret "") }}://{{ include "engine.fullname" . }}-engined:36901
{{- if .Values.tls.engineSecret }}
engine_ca: /etc/hanzo-engine-engine-tls/ca.crt
{{- end }}
{{- if .Values.tls.httpSecret }}
tls_cert: /etc/hanzo-engine-tls/tls.crt
tls_key: /etc/hanzo-engine-tls/tls.key
{{- end }}
drain_s: {{ int .Values.drainSeconds }}
{{- if .Values.keys.insecure }}
insecure: true
{{- end }}
{{- if .Values.keys.fileSecret }}
api_keys_file: /etc/hanzo-engine-keys/keys.json
{{- end }}
{{- range $key, $value := .Values.traces }}
traces_{{ $key }}: {{ $value | toJson }}
{{- end }}
{{- with .Values.gateway }}
{{ toYaml . }}
{{- end }}
{{- if .Values.mcpSecret }}
enable_mcp: true
mcp_config: /etc/hanzo-engine-mcp/mcp.json
{{- end }}
{{- end -}}

{{/* The secret that has the key. */}}
{{- define "engine.keySecret" -}}
{{- default (printf "%s-key" (include "engine.fullname" .)) .Values.keys.existingSecret -}}
{{- end -}}

{{/* Both programs ask for the key; the gateway shows it to the daemon too. */}}
{{- define "engine.keyEnv" -}}
{{- if .Values.keys.insecure -}}
[]
{{- else -}}
- name: HANZO_ENGINE_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "engine.keySecret" . }}
      key: api-key
{{- end -}}
{{- end -}}

{{- define "engine.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}
