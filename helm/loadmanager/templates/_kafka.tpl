{{- define "loadmanager.log" -}}
{{- if .Values.dev.enabled -}}kafka://{{ include "loadmanager.fullname" . }}-kafka:9092{{- else -}}{{ .Values.log.address }}{{- end -}}
{{- end -}}

{{- /* The client settings of everything that opens the log. */ -}}
{{- define "loadmanager.kafkaEnvironment" -}}
{{- if .Values.strimzi.enabled -}}
{{- $name := include "loadmanager.fullname" . -}}
{{- $settings := dict "security.protocol" "SASL_SSL" "sasl.mechanism" "SCRAM-SHA-512" "ssl.ca.location" "/etc/loadmanager/kafka/ca.crt" "sasl.username" $name "sasl.password" "$(KAFKA_PASSWORD)" -}}
- name: KAFKA_PASSWORD # made by Strimzi's User Operator: letters and digits
  valueFrom: {secretKeyRef: {name: {{ $name }}, key: password}}
- {name: LOADMANAGER_KAFKA, value: {{ $settings | toJson | quote }}}
{{- else if .Values.log.secret -}}
- name: LOADMANAGER_KAFKA
  valueFrom: {secretKeyRef: {name: {{ .Values.log.secret | quote }}, key: kafka}}
{{- end -}}
{{- end -}}

{{- define "loadmanager.kafkaMount" -}}
{{- if .Values.strimzi.enabled -}}
- {name: kafka-ca, mountPath: /etc/loadmanager/kafka, readOnly: true}
{{- end -}}
{{- end -}}

{{- define "loadmanager.kafkaVolume" -}}
{{- if .Values.strimzi.enabled -}}
- name: kafka-ca
  secret: {secretName: {{ .Values.strimzi.cluster }}-cluster-ca-cert, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}
{{- end -}}

{{- /* The topics that brokers open, and what their records need: `log` keeps all, `followed` each one for a day at least. */ -}}
{{- define "loadmanager.topics" -}}
bundle-state: log
bundle-state-snapshots: compacted
decisions: log
audit: log
operations: log
topics: log
settings: log
policies: log
plans: log
load-brokers: followed
load-bundles: followed
accusations: compacted
channel-readers: compacted
{{- if include "loadmanager.coordinates" . }}
consumer-groups: followed
group-lag: followed
{{- end }}
{{- end -}}

{{- /* Do brokers coordinate consumer groups? */ -}}
{{- define "loadmanager.coordinates" -}}
{{- if or .Values.strimzi.groups .Values.strimzi.groupTopics (hasPrefix "loadmanager.consumer.hosting:" .Values.host) -}}true{{- end -}}
{{- end -}}

{{- /* A resource of Kafka whose name may end with `*`. Called with (list type name). */ -}}
{{- define "loadmanager.kafkaResource" -}}
{{- $type := index . 0 -}}{{- $name := index . 1 -}}
{{- if and (hasSuffix "*" $name) (ne $name "*") -}}
{type: {{ $type }}, name: {{ trimSuffix "*" $name | quote }}, patternType: prefix}
{{- else -}}
{type: {{ $type }}, name: {{ $name | quote }}, patternType: literal}
{{- end -}}
{{- end -}}
