{{- define "loadmanager.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- include "loadmanager.dnsLabel" (default $whole .Values.fullnameOverride) -}}
{{- end -}}

{{- define "loadmanager.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "loadmanager.selector" . }}
{{- end -}}

{{- define "loadmanager.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* Releases of one name in several namespaces are several clusters. */ -}}
{{- define "loadmanager.cluster" -}}
{{- default (printf "%s.%s" (include "loadmanager.fullname" .) .Release.Namespace) .Values.cluster -}}
{{- end -}}

{{- define "loadmanager.serviceAccount" -}}
{{- default (ternary (include "loadmanager.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* Called with (list root image). */ -}}
{{- define "loadmanager.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "loadmanager.tls" -}}
{{- if or .Values.tls.secret .Values.tls.certManager.enabled -}}true{{- end -}}
{{- end -}}

{{- define "loadmanager.tlsSecret" -}}
{{- default (printf "%s-tls" (include "loadmanager.fullname" .)) .Values.tls.secret -}}
{{- end -}}

{{- define "loadmanager.asks" -}}
{{- if or .Values.tokens.issuer .Values.tokens.keys .Values.tokens.keysSecret .Values.tls.clientCaSecret -}}true{{- end -}}
{{- end -}}

{{- define "loadmanager.scheme" -}}
{{- ternary "https" "http" (eq (include "loadmanager.tls" .) "true") -}}
{{- end -}}

{{- define "loadmanager.coordination" -}}
{{- if .Values.dev.enabled -}}zookeeper://{{ include "loadmanager.fullname" . }}-zookeeper:2181{{- else -}}{{ .Values.coordination.address }}{{- end -}}
{{- end -}}

{{- /* The environment of everything that opens the log or the coordination. */ -}}
{{- define "loadmanager.environment" -}}
- {name: HOME, value: /tmp}
{{- with include "loadmanager.kafkaEnvironment" . }}
{{ . }}
{{- end }}
{{- with .Values.coordination.secret }}
- name: LOADMANAGER_ZOOKEEPER
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: zookeeper}}
{{- end }}
{{- end -}}

{{- /* Values that contradict each other. Schema errors come first; these need more than one value. */ -}}
{{- define "loadmanager.refuse" -}}
{{- $v := .Values -}}
{{- if and $v.dev.enabled (or $v.log.address $v.coordination.address) -}}
{{- fail "dev.enabled brings its own Kafka and ZooKeeper: leave log.address and coordination.address empty" -}}
{{- end -}}
{{- if not $v.dev.enabled -}}
{{- if not (hasPrefix "kafka://" $v.log.address) -}}
{{- fail "log.address: give kafka://host:port[,host:port…], or set dev.enabled to try it with a Kafka of its own" -}}
{{- end -}}
{{- if not (hasPrefix "zookeeper://" $v.coordination.address) -}}
{{- fail "coordination.address: give zookeeper://host:port[,host:port…][/root], or set dev.enabled" -}}
{{- end -}}
{{- if not (or $v.coordination.secret $v.insecure) -}}
{{- fail "coordination.secret: name a Secret with the brokers' identity on ZooKeeper; without one everybody who reaches ZooKeeper could end a broker (or set insecure)" -}}
{{- end -}}
{{- if lt (int (default 3 $v.settings.replication)) 3 -}}
{{- if not $v.settings.development -}}
{{- fail "settings.replication below 3 can lose the channel with one disk; set settings.development if this cluster may lose it, or dev.enabled" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (or $v.insecure $v.dev.enabled) -}}
{{- if not (include "loadmanager.tls" .) -}}
{{- fail "tls: give tls.secret or tls.certManager.enabled; without TLS others read the tokens of clients (or set insecure)" -}}
{{- end -}}
{{- if not (include "loadmanager.asks" .) -}}
{{- fail "tokens: give tokens.issuer, tokens.keys, tokens.keysSecret or tls.clientCaSecret; otherwise anyone may do everything (or set insecure)" -}}
{{- end -}}
{{- end -}}
{{- if and (include "loadmanager.asks" .) (not $v.tokens.superusers) -}}
{{- fail "tokens.superusers: name at least one principal, who writes the first access policy" -}}
{{- end -}}
{{- if and $v.tls.secret $v.tls.certManager.enabled -}}
{{- fail "tls.secret and tls.certManager.enabled exclude each other: the certificate comes from one of them" -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuer.name) -}}
{{- fail "tls.certManager.issuer.name: name the issuer" -}}
{{- end -}}
{{- if and $v.tls.clientRequired (not $v.tls.clientCaSecret) -}}
{{- fail "tls.clientRequired needs tls.clientCaSecret: the authorities of the certificates that are required" -}}
{{- end -}}
{{- if and $v.tls.clientRequired (has (int $v.probes.port) (list (int $v.port) (int $v.sidecar.port))) -}}
{{- fail "probes.port must differ from port and sidecar.port: they are servers of one pod" -}}
{{- end -}}
{{- if and $v.tokens.keys $v.tokens.keysSecret -}}
{{- fail "tokens.keys and tokens.keysSecret exclude each other: keys come from one place" -}}
{{- end -}}
{{- if le (int $v.terminationGracePeriodSeconds) (int $v.drain.timeoutSeconds) -}}
{{- fail (printf "terminationGracePeriodSeconds (%d) must be above drain.timeoutSeconds (%d): the pod would be killed while it moves its bundles away" (int $v.terminationGracePeriodSeconds) (int $v.drain.timeoutSeconds)) -}}
{{- end -}}
{{- $least := ternary (int $v.autoscaling.minReplicas) (int $v.replicas) $v.autoscaling.enabled -}}
{{- if and (gt $least 1) (ge (int $v.maxUnavailable) $least) -}}
{{- fail (printf "maxUnavailable (%d) must be below the number of brokers (%d): evictions could take all of them at once" (int $v.maxUnavailable) $least) -}}
{{- end -}}
{{- if and (eq $least 1) (not $v.dev.enabled) -}}
{{- fail "replicas: at least 2. One broker cannot be moved away from, so every roll and every eviction is an outage; dev.enabled accepts it" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- fail "autoscaling.maxReplicas must not be below autoscaling.minReplicas" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (or $v.autoscaling.cpuPercent $v.autoscaling.bundles)) -}}
{{- fail "autoscaling: give cpuPercent or bundles, by which the number of brokers is chosen" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.host) -}}
{{- fail "ingress.host: give the name under which clients call it" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.tlsSecret) (not $v.insecure) -}}
{{- fail "ingress.tlsSecret: without TLS others read the tokens of clients (or set insecure)" -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) -}}
{{- fail "gateway.parentRefs: name the Gateway" -}}
{{- end -}}
{{- if and $v.strimzi.enabled $v.dev.enabled -}}
{{- fail "strimzi.enabled: dev.enabled brings a Kafka that is not Strimzi's" -}}
{{- end -}}
{{- if and $v.strimzi.enabled (not $v.strimzi.cluster) -}}
{{- fail "strimzi.cluster: name the Kafka of Strimzi in which the user and the topics belong" -}}
{{- end -}}
{{- if and $v.strimzi.enabled $v.log.secret -}}
{{- fail "log.secret and strimzi.enabled exclude each other: Strimzi makes the Secret of the KafkaUser" -}}
{{- end -}}
{{- if and $v.sidecar.enabled (not $v.sidecar.containers) -}}
{{- fail "sidecar.containers: give your service's containers; without them nothing would attach to the broker" -}}
{{- end -}}
{{- if and $v.sidecar.containers (not $v.sidecar.enabled) -}}
{{- fail "sidecar.enabled: set it for sidecar.containers; containers that need no broker beside them belong to `containers`" -}}
{{- end -}}
{{- if and $v.sidecar.enabled $v.host -}}
{{- fail "host and sidecar.enabled exclude each other: the service is in the broker's process, or attaches to it" -}}
{{- end -}}
{{- if and $v.sidecar.enabled (eq (int $v.sidecar.port) (int $v.port)) -}}
{{- fail "sidecar.port must differ from port: they are two servers in one pod" -}}
{{- end -}}
{{- if $v.sidecar.enabled -}}
{{- $ports := list -}}
{{- range $v.sidecar.containers -}}{{- range .ports -}}{{- $ports = append $ports (default "" .name) -}}{{- end -}}{{- end -}}
{{- range $v.servicePorts -}}
{{- if not (has .name $ports) -}}
{{- fail (printf "servicePorts: no container of sidecar.containers has a port that is called %s" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.history.enabled (hasPrefix "/" $v.history.lake) (not $v.history.claim) -}}
{{- fail "history.claim: a lake on a volume needs a PersistentVolumeClaim that pods share (ReadWriteMany)" -}}
{{- end -}}
{{- if and $v.history.enabled $v.history.claim (not (hasPrefix "/lake" $v.history.lake)) -}}
{{- fail "history.lake must be /lake or a folder below it: there the claim is mounted" -}}
{{- end -}}
{{- end -}}

{{- /* Where names of Services end. Without the cluster's domain pods find them in every cluster. */ -}}
{{- define "loadmanager.domain" -}}
{{ .Release.Namespace }}.svc{{ with .Values.clusterDomain }}.{{ . }}{{ end }}
{{- end -}}

{{- /* The families of addresses of a Service, unless the cluster's own are meant. */ -}}
{{- define "loadmanager.families" -}}
{{- $given := pick .Values.service "ipFamilyPolicy" "ipFamilies" -}}
{{- range $field, $value := $given -}}{{- if not $value -}}{{- $given = omit $given $field -}}{{- end -}}{{- end -}}
{{- if $given -}}{{- toYaml $given -}}{{- end -}}
{{- end -}}

{{- /* Names by which clients may call a broker, beside its own. */ -}}
{{- define "loadmanager.hosts" -}}
{{- $name := include "loadmanager.fullname" . -}}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s" $name (include "loadmanager.domain" .)) -}}
{{- if .Values.ingress.enabled -}}{{- $hosts = append $hosts .Values.ingress.host -}}{{- end -}}
{{- if .Values.gateway.enabled -}}{{- $hosts = concat $hosts .Values.gateway.hostnames -}}{{- end -}}
{{- join "," (uniq $hosts) -}}
{{- end -}}
