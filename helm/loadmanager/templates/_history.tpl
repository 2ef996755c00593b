{{- /* What a pod of the load history has, called with root, name, and args or script. */ -}}
{{- define "loadmanager.historyPod" -}}
{{- $root := .root -}}{{- $history := .root.Values.history -}}
{{- if ne .name "driver" }}
automountServiceAccountToken: false
{{- end }}
enableServiceLinks: false
securityContext: {{- include "loadmanager.podSecurity" $root | nindent 2 }}
containers:
  - name: {{ .name }}
    image: {{ include "loadmanager.image" (list $root $history.image) }}
    imagePullPolicy: {{ $history.image.pullPolicy }}
    {{- if .script }}
    command: [bash, -ec]
    args: [{{ .script | quote }}]
    {{- else }}
    args:
      {{- range .args }}
      - {{ . | quote }}
      {{- end }}
      {{- range $key, $value := $history.conf }}
      - {{ printf "--conf=%s=%v" $key $value | quote }}
      {{- end }}
    {{- end }}
    env:
      {{- include "loadmanager.environment" $root | nindent 6 }}
      - {name: LOADMANAGER_LAKE, value: {{ $history.lake | quote }}}
      - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
      - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}} # executors go when it goes
    {{- with $history.secret }}
    envFrom: [{secretRef: {name: {{ . }}}}]
    {{- end }}
    {{- if eq .name "ingest" }}
    ports: [{name: metrics, containerPort: 9108}]
    startupProbe: {httpGet: {path: /metrics, port: metrics}, periodSeconds: 5, failureThreshold: 60} # Spark starts first
    livenessProbe: {httpGet: {path: /metrics, port: metrics}, periodSeconds: 60, timeoutSeconds: 30, failureThreshold: 5}
    {{- end }}
    resources: {{- toYaml $history.resources | nindent 6 }}
    securityContext: {{- include "loadmanager.containerSecurity" $root | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- if $history.claim }}
      - {name: lake, mountPath: /lake}
      {{- end }}
      {{- with include "loadmanager.kafkaMount" $root }}
      {{- . | nindent 6 }}
      {{- end }}
volumes:
  - {name: tmp, emptyDir: {}}
  {{- with $history.claim }}
  - {name: lake, persistentVolumeClaim: {claimName: {{ . }}}}
  {{- end }}
  {{- with include "loadmanager.kafkaVolume" $root }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "loadmanager.nightly" -}}
loadmanager history maintain
loadmanager history analyse --from -7d
loadmanager history advise --from -7d
loadmanager history audit || broken=$?
loadmanager history report --from -7d
exit "${broken:-0}"
{{- end -}}

{{- define "loadmanager.replay" -}}
{{- $name := printf "%s-history" (include "loadmanager.fullname" .) -}}
{{- $history := .Values.history -}}
- replay
- --lake={{ $history.lake }}
- --from=-7d
- --master=k8s://https://kubernetes.default.svc
- --memory={{ $history.memory }}
- --conf=spark.kubernetes.namespace=$(NAMESPACE)
- --conf=spark.kubernetes.container.image={{ include "loadmanager.image" (list . $history.image) }}
- --conf=spark.kubernetes.authenticate.serviceAccountName={{ $name }}
- --conf=spark.kubernetes.driver.pod.name=$(POD)
- --conf=spark.driver.host={{ $name }}-replay.$(NAMESPACE).svc
- --conf=spark.driver.port=7078
- --conf=spark.driver.blockManager.port=7079
- --conf=spark.executor.instances={{ $history.replay.executors }}
- --conf=spark.executor.cores={{ $history.replay.cores }}
- --conf=spark.executor.memory={{ $history.replay.memory }}
- --conf=spark.executor.memoryOverhead={{ $history.replay.memoryOverhead }}
{{- with $history.claim }}
- --conf=spark.kubernetes.executor.volumes.persistentVolumeClaim.lake.options.claimName={{ . }}
- --conf=spark.kubernetes.executor.volumes.persistentVolumeClaim.lake.mount.path=/lake
{{- end }}
{{- end -}}
