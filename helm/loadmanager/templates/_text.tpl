{{- /* A value as text. Helm reads whole numbers of files as floating point, and would write 1e+06. */ -}}
{{- define "loadmanager.text" -}}
{{- ternary . (toJson .) (kindIs "string" .) -}}
{{- end -}}

{{- /* A map of texts, such as labels and annotations, whose values may be written as numbers or truth values. */ -}}
{{- define "loadmanager.texts" -}}
{{- $texts := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $texts $key (include "loadmanager.text" $value) -}}{{- end -}}
{{- end -}}
{{- toYaml $texts -}}
{{- end -}}

{{- /* A DNS label that begins with a letter and leaves 16 of the 52 characters of a CronJob's name: the text itself if it
is one, else a part of it and its hash. */ -}}
{{- define "loadmanager.dnsLabel" -}}
{{- $label := replace "." "-" . -}}
{{- if not (regexMatch "^[a-z]" $label) -}}{{- $label = printf "lm-%s" $label -}}{{- end -}}
{{- if or (ne $label .) (gt (len $label) 36) -}}
{{- $label = printf "%s-%s" ($label | trunc 27 | trimSuffix "-") (sha256sum . | trunc 8) -}}
{{- end -}}
{{- $label -}}
{{- end -}}
