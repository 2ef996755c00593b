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

{{- /* A container of the service: what its user wrote counts; env and mounts are added to. Called with (list root container). */ -}}
{{- define "loadmanager.serviceContainer" -}}
{{- $root := index . 0 -}}{{- $given := deepCopy (index . 1) -}}
{{- $security := include "loadmanager.containerSecurity" $root | fromYaml -}}
{{- $mounts := include "loadmanager.sidecarMount" $root | fromYamlArray -}}
{{- $places := list -}}
{{- range $given.volumeMounts -}}{{- $places = append $places .mountPath -}}{{- end -}}
{{- if not (has "/tmp" $places) -}}
{{- $mounts = append $mounts (dict "name" "tmp" "mountPath" "/tmp" "subPath" $given.name) -}}
{{- end -}}
{{- $env := include "loadmanager.sidecarEnvironment" $root | fromYamlArray -}}
{{- $_ := set $given "env" (concat $env (default list $given.env)) -}}
{{- $_ := set $given "volumeMounts" (concat $mounts (default list $given.volumeMounts)) -}}
{{- $_ := set $given "securityContext" (mergeOverwrite $security (default dict $given.securityContext)) -}}
{{- toYaml $given -}}
{{- end -}}
