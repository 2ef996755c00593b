{{- define "orders.name" -}}
{{ .Release.Name }}-orders
{{- end -}}

{{- define "orders.configuration" -}}
{{ .Values.global.orders | toJson }}
{{- end -}}
