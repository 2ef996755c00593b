{{- define "orders.name" -}}
{{ include "loadmanager.dnsLabel" (printf "%s-orders" .Release.Name) }}
{{- end -}}

{{- define "orders.configuration" -}}
{{ .Values.global.orders | toJson }}
{{- end -}}
