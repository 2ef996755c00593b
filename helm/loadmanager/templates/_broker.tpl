{{- /* The broker's container. As a sidecar it has no startup probe: that would hold up the service, which attaches to it. */ -}}
{{- define "loadmanager.broker" -}}
name: broker
image: {{ include "loadmanager.image" (list . .Values.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if .Values.sidecar.enabled }}
restartPolicy: Always # it starts before the service, and ends after it
{{- end }}
command: [loadmanager]
args:
  - {{ ternary "sidecar" "broker" .Values.sidecar.enabled }}
  - --advertised=$(POD_ADDRESS):{{ .Values.port }}
  - --listen=0.0.0.0:{{ .Values.port }}
  {{- if .Values.sidecar.enabled }}
  - --control=127.0.0.1:{{ .Values.sidecar.port }}
  - --secret-file={{ include "loadmanager.sidecarSecret" . }}
  {{- end }}
  {{- with .Values.host }}
  - --host={{ . }}
  {{- end }}
  {{- range $protocol, $url := .Values.urls }}
  - --url={{ $protocol }}={{ $url }}
  {{- end }}
envFrom:
  - configMapRef: {name: {{ include "loadmanager.fullname" . }}}
env:
  {{- include "loadmanager.podNames" . | nindent 2 }}
  {{- if .Values.zoneLabel }}
  - {name: LOADMANAGER_FAILURE_DOMAIN, valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ .Values.zoneLabel }}']"}}}
  {{- end }}
  {{- include "loadmanager.environment" . | nindent 2 }}
  {{- with .Values.env }}
  {{- tpl (toYaml .) $ | nindent 2 }}
  {{- end }}
ports:
  - {name: admin, containerPort: {{ .Values.port }}}
  {{- if .Values.tls.clientRequired }}
  - {name: probes, containerPort: {{ .Values.probes.port }}}
  {{- end }}
  {{- if not .Values.sidecar.enabled }}
  {{- range .Values.servicePorts }}
  - {name: {{ .name }}, containerPort: {{ .port }}}
  {{- end }}
  {{- end }}
{{- $probes := dict "startupProbe" "ready" "readinessProbe" "health" "livenessProbe" "live" }}
{{- range $probe, $path := ternary (omit $probes "startupProbe") $probes .Values.sidecar.enabled }}
{{ $probe }}:
  {{- if $.Values.tls.clientRequired }}
  httpGet: {path: /admin/v2/brokers/{{ $path }}, port: probes, scheme: HTTP}
  {{- else }}
  httpGet: {path: /admin/v2/brokers/{{ $path }}, port: admin, scheme: {{ include "loadmanager.scheme" $ | upper }}}
  {{- end }}
  {{- toYaml (index $.Values.probes (trimSuffix "Probe" $probe)) | nindent 2 }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- include "loadmanager.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.sidecar.enabled }}
  {{- include "loadmanager.sidecarMount" . | nindent 2 }}
  {{- end }}
  {{- if include "loadmanager.tls" . }}
  - {name: tls, mountPath: /etc/loadmanager/tls, readOnly: true}
  {{- end }}
  {{- if .Values.tls.clientCaSecret }}
  - {name: client-ca, mountPath: /etc/loadmanager/client-ca, readOnly: true}
  {{- end }}
  {{- if .Values.tokens.keysSecret }}
  - {name: tokens, mountPath: /etc/loadmanager/tokens, readOnly: true}
  {{- end }}
  {{- if and .Values.history.enabled .Values.history.claim }}
  - {name: lake, mountPath: /lake, readOnly: true}
  {{- end }}
  {{- with include "loadmanager.kafkaMount" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* The pod's name, and its address, which is the broker's. */ -}}
{{- define "loadmanager.podNames" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_ADDRESS, value: "$(POD_NAME).{{ include "loadmanager.fullname" . }}-brokers.{{ .Release.Namespace }}.svc.cluster.local"}
{{- end -}}
