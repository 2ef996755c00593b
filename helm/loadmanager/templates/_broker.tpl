{{- /* The broker's pod; as a sidecar, the service's containers come beside it. */ -}}
{{- define "loadmanager.brokerPod" -}}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
topologySpreadConstraints:
  {{- range $key, $when := dict "kubernetes.io/hostname" .Values.spread.nodes (default "topology.kubernetes.io/zone" .Values.zoneLabel) .Values.spread.zones }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $when }}
    labelSelector:
      matchLabels: {{- include "loadmanager.selector" $ | nindent 8 }}
        app.kubernetes.io/component: broker
  {{- end }}
containers:
  - {{ include "loadmanager.broker" . | indent 4 | trim }}
volumes:
  {{- if .Values.sidecar.enabled }}
  - {name: sidecar, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  {{- end }}
  {{- if include "loadmanager.tls" . }}
  - {name: tls, secret: {secretName: {{ include "loadmanager.tlsSecret" . | quote }}}}
  {{- end }}
  {{- with .Values.tls.clientCaSecret }}
  - {name: client-ca, secret: {secretName: {{ . | quote }}}}
  {{- end }}
  {{- with .Values.tokens.keysSecret }}
  - {name: tokens, secret: {secretName: {{ . | quote }}}}
  {{- end }}
  {{- if and .Values.history.enabled .Values.history.claim }}
  - {name: lake, persistentVolumeClaim: {claimName: {{ .Values.history.claim | quote }}, readOnly: true}}
  {{- end }}
  {{- include "loadmanager.kafkaVolume" . | nindent 2 }}
{{- end -}}

{{- /* The broker's container. As a sidecar it has no startup probe: that would hold up the service, which attaches to it. */ -}}
{{- define "loadmanager.broker" -}}
name: broker
image: {{ include "loadmanager.image" (list . .Values.image) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if .Values.sidecar.enabled }}
restartPolicy: Always # it starts before the service, and ends after it
{{- end }}
command: [loadmanager]
args:
  - {{ ternary "sidecar" "broker" .Values.sidecar.enabled }}
  - --advertised=$(POD_ADDRESS):{{ .Values.port }}
  - --listen={{ .Values.listen }}:{{ .Values.port }}
  {{- if .Values.sidecar.enabled }}
  - --control=127.0.0.1:{{ .Values.sidecar.port }}
  - --secret-file={{ include "loadmanager.sidecarSecret" . }}
  {{- end }}
  {{- with .Values.host }}
  - {{ printf "--host=%s" . | quote }}
  {{- end }}
  {{- range $protocol, $url := .Values.urls }}
  - {{ printf "--url=%s=%s" $protocol $url | quote }}
  {{- end }}
envFrom:
  - configMapRef: {name: {{ include "loadmanager.fullname" . }}}
env:
  {{- include "loadmanager.podNames" . | nindent 2 }}
  {{- if .Values.zoneLabel }}
  - {name: LOADMANAGER_FAILURE_DOMAIN, valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ .Values.zoneLabel }}']"}}}
  {{- end }}
  {{- include "loadmanager.environment" . | nindent 2 }}
ports:
  - {name: admin, containerPort: {{ .Values.port }}}
  {{- if .Values.tls.clientRequired }}
  - {name: probes, containerPort: {{ .Values.probes.port }}}
  {{- end }}
  {{- if not .Values.sidecar.enabled }}
  {{- range .Values.servicePorts }}
  - {name: {{ .name | quote }}, containerPort: {{ .port }}}
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
volumeMounts:
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
  {{- include "loadmanager.kafkaMount" . | nindent 2 }}
{{- end -}}

{{- /* The pod's name, and its address, which is the broker's. */ -}}
{{- define "loadmanager.podNames" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_ADDRESS, value: "$(POD_NAME).{{ include "loadmanager.fullname" . }}-brokers.{{ include "loadmanager.domain" . }}"}
{{- end -}}
