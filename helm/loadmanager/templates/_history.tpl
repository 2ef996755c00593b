{{- /* What a pod of the load history has, called with root, name, and args or script; an executor gets its command of
Spark, and no secret of Kafka or ZooKeeper. */ -}}
{{- define "loadmanager.historyPod" -}}
{{- $root := .root -}}{{- $history := .root.Values.history -}}
{{- if eq .name "ingest" }}
terminationGracePeriodSeconds: 120 # the batch under way is committed first
{{- else }}
restartPolicy: Never
{{- end }}
{{- if eq .name "driver" }}
serviceAccountName: {{ include "loadmanager.fullname" $root }}-history
automountServiceAccountToken: true
{{- end }}
containers:
  - name: {{ .name }}
    image: {{ include "loadmanager.image" (list $root $history.image) | quote }}
    imagePullPolicy: {{ $history.image.pullPolicy }}
    {{- if .script }}
    command: [bash, -ec]
    args: [{{ .script | quote }}]
    {{- else if .args }}
    args:
      {{- range .args }}
      - {{ . | quote }}
      {{- end }}
      {{- range $key, $value := include "loadmanager.texts" $history.conf | fromYaml }}
      - {{ printf "--conf=%s=%s" $key $value | quote }}
      {{- end }}
    {{- end }}
    env:
      {{- if eq .name "executor" }}
      - {name: HOME, value: /tmp}
      {{- else }}
      {{- include "loadmanager.environment" $root | nindent 6 }}
      - {name: LOADMANAGER_LAKE, value: {{ $history.lake | quote }}}
      - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
      - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}} # executors go when it goes
      - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
      {{- end }}
    {{- with $history.secret }}
    envFrom: [{secretRef: {name: {{ . | quote }}}}]
    {{- end }}
    {{- if eq .name "ingest" }}
    ports: [{name: metrics, containerPort: 9108}]
    startupProbe: {httpGet: {path: /metrics, port: metrics}, periodSeconds: 5, failureThreshold: 60} # Spark starts first
    livenessProbe: {httpGet: {path: /metrics, port: metrics}, periodSeconds: 60, timeoutSeconds: 30, failureThreshold: 5}
    {{- end }}
    {{- if ne .name "executor" }}
    resources: {{- toYaml $history.resources | nindent 6 }}
    {{- end }}
    volumeMounts:
      {{- if $history.claim }}
      - {name: lake, mountPath: /lake}
      {{- end }}
      {{- if eq .name "driver" }}
      - {name: executor, mountPath: /etc/loadmanager/executor, readOnly: true}
      {{- end }}
      {{- if ne .name "executor" }}
      {{- include "loadmanager.kafkaMount" $root | nindent 6 }}
      {{- end }}
volumes:
  {{- with $history.claim }}
  - {name: lake, persistentVolumeClaim: {claimName: {{ . | quote }}}}
  {{- end }}
  {{- if eq .name "driver" }}
  - {name: executor, configMap: {name: {{ include "loadmanager.fullname" $root }}-history-executor}}
  {{- end }}
  {{- if ne .name "executor" }}
  {{- include "loadmanager.kafkaVolume" $root | nindent 2 }}
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
- --conf=spark.kubernetes.executor.podTemplateFile=/etc/loadmanager/executor/pod.yaml
- --conf=spark.kubernetes.executor.podTemplateContainerName=executor
- --conf=spark.executor.instances={{ $history.replay.executors }}
- --conf=spark.executor.cores={{ $history.replay.cores }}
- --conf=spark.executor.memory={{ $history.replay.memory }}
- --conf=spark.executor.memoryOverhead={{ $history.replay.memoryOverhead }}
{{- end -}}
