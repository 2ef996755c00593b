{{- define "loadmanager.sidecarSecret" -}}
/var/run/loadmanager/secret
{{- end -}}

{{- define "loadmanager.sidecarMount" -}}
- {name: sidecar, mountPath: /var/run/loadmanager}
{{- end -}}

{{- /* What a container of the service needs to reach the broker beside it. */ -}}
{{- define "loadmanager.sidecarEnvironment" -}}
{{ include "loadmanager.podNames" . }}
- {name: LOADMANAGER_SIDECAR, value: "http://127.0.0.1:{{ .Values.sidecar.port }}"}
- {name: LOADMANAGER_SIDECAR_SECRET_FILE, value: {{ include "loadmanager.sidecarSecret" . }}}
{{- end -}}

{{- /* A container of the service: what its user wrote counts. Called with (list root container). */ -}}
{{- define "loadmanager.serviceContainer" -}}
{{- $root := index . 0 -}}{{- $given := index . 1 -}}
{{- $tmp := dict "name" "tmp" "mountPath" "/tmp" "subPath" $given.name -}}
{{- $ours := dict "env" (include "loadmanager.sidecarEnvironment" $root | fromYamlArray) -}}
{{- $_ := set $ours "volumeMounts" (append (include "loadmanager.sidecarMount" $root | fromYamlArray) $tmp) -}}
{{- $_ := set $ours "securityContext" (include "loadmanager.containerSecurity" $root | fromYaml) -}}
{{- include "loadmanager.overlaid" (list $ours $given) -}}
{{- end -}}
