{{- /* All pods of the chart are made here, also those of hooks and jobs and Spark's executors. Each gets what the values
give every pod; what it has itself counts. Called with (dict "root" $ "pod" SPEC). */ -}}
{{- define "loadmanager.pod" -}}
{{- $root := .root -}}{{- $values := .root.Values -}}{{- $own := deepCopy .pod -}}
{{- $everywhere := dict "env" (tpl (toYaml $values.env) $root | fromYamlArray) "volumeMounts" $values.volumeMounts -}}
{{- $tmp := dict "name" "tmp" "mountPath" "/tmp" -}}
{{- $containers := list -}}
{{- range $own.containers -}}
{{- $_ := set . "securityContext" (mergeOverwrite (include "loadmanager.containerSecurity" $root | fromYaml) (default dict .securityContext)) -}}
{{- $_ := set . "volumeMounts" (prepend (default list .volumeMounts) $tmp) -}}
{{- $containers = append $containers (include "loadmanager.overlaid" (list . $everywhere) | fromYaml) -}}
{{- end -}}
{{- $_ := set $own "containers" $containers -}}
{{- $_ := set $own "volumes" (prepend (default list $own.volumes) (dict "name" "tmp" "emptyDir" dict)) -}}
{{- $pod := dict "serviceAccountName" (include "loadmanager.serviceAccount" $root) "automountServiceAccountToken" false -}}
{{- /* A Service named loadmanager would set LOADMANAGER_PORT, which is not a setting */ -}}
{{- $_ := set $pod "enableServiceLinks" false -}}
{{- $_ := set $pod "securityContext" (include "loadmanager.podSecurity" $root | fromYaml) -}}
{{- range concat $values.image.pullSecrets (default list (default dict $values.global).imagePullSecrets) -}}
{{- $secret := ternary . (dict "name" .) (kindIs "map" .) -}}
{{- $_ := set $pod "imagePullSecrets" (append (default list $pod.imagePullSecrets) $secret | uniq) -}}
{{- end -}}
{{- range $field := list "priorityClassName" "affinity" -}}
{{- with index $values $field -}}{{- $_ := set $pod $field . -}}{{- end -}}
{{- end -}}
{{- with $values.nodeSelector -}}{{- $_ := set $pod "nodeSelector" (include "loadmanager.texts" . | fromYaml) -}}{{- end -}}
{{- range $values.tolerations -}}
{{- $toleration := merge (include "loadmanager.texts" (pick . "key" "value") | fromYaml) . -}}
{{- $_ := set $pod "tolerations" (append (default list $pod.tolerations) $toleration) -}}
{{- end -}}
{{- $volumes := tpl (toYaml $values.volumes) $root | fromYamlArray -}}
{{- include "loadmanager.overlaid" (list (mergeOverwrite $pod $own) (dict "volumes" $volumes)) -}}
{{- end -}}

{{- /* A container or a pod, laid over by another one: in lists, what has the same key counts instead. Values of variables
may be written as numbers or truth values. Called with (list under over). */ -}}
{{- define "loadmanager.overlaid" -}}
{{- $under := index . 0 -}}{{- $over := index . 1 -}}
{{- $result := mergeOverwrite (deepCopy $under) (deepCopy $over) -}}
{{- range $field, $key := dict "env" "name" "volumeMounts" "mountPath" "volumes" "name" -}}
{{- $given := default list (index $over $field) -}}
{{- $keys := list -}}{{- range $given -}}{{- $keys = append $keys (index . $key) -}}{{- end -}}
{{- $kept := list -}}
{{- range index $under $field -}}
{{- if not (has (index . $key) $keys) -}}{{- $kept = append $kept . -}}{{- end -}}
{{- end -}}
{{- with concat $kept $given -}}{{- $_ := set $result $field . -}}{{- end -}}
{{- end -}}
{{- range $result.env -}}
{{- if hasKey . "value" -}}{{- $_ := set . "value" (include "loadmanager.text" .value) -}}{{- end -}}
{{- end -}}
{{- toYaml $result -}}
{{- end -}}

{{- /* Whom a pod runs as. Namespaces of OpenShift have uids of their own, and pods get theirs from there. */ -}}
{{- define "loadmanager.podSecurity" -}}
{{- $security := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if not (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
{{- $security = merge $security (dict "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001) -}}
{{- end -}}
{{- range $field, $value := .Values.podSecurityContext -}}
{{- if kindIs "invalid" $value -}}
{{- $security = omit $security $field -}}
{{- else -}}
{{- $_ := set $security $field $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $security -}}
{{- end -}}

{{- /* What each container of ours may do: nothing that it does not need. */ -}}
{{- define "loadmanager.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
