{{- define "shoal.name" -}}shoal-operator{{- end }}

{{- define "shoal.labels" -}}
app.kubernetes.io/name: {{ include "shoal.name" . }}
app.kubernetes.io/part-of: shoal
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of objects that are not the operator's own: (list $ "name"). */}}
{{- define "shoal.labelsOf" -}}
{{- $root := index . 0 -}}
{{- include "shoal.labels" $root | replace (printf "name: %s" (include "shoal.name" $root)) (printf "name: %s" (index . 1)) -}}
{{- end }}

{{/* Digests of images by their names, and their registry, as JSON; the chart of a checkout has none. Those of earlier releases stay in it: what runs is of them. */}}
{{- define "shoal.lock" -}}
{{ .Files.Get "files/images.lock.json" | default "{}" }}
{{- end }}

{{/* Reference of an image: (list $ .Values.operator.image). The release's own goes by the lock; a repository, tag or digest of the values wins. */}}
{{- define "shoal.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $lock := include "shoal.lock" $root | fromJson -}}
{{- $locked := get ($lock.digests | default dict) (printf "%s:%s" $image.repository (toString $root.Chart.AppVersion)) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else if and $locked (not $image.tag) -}}
{{ $lock.registry }}/{{ $image.repository }}:{{ $root.Chart.AppVersion }}@{{ $locked }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What the restricted pod security standard asks of a pod. */}}
{{- define "shoal.podSecurity" -}}
runAsNonRoot: true
{{- if eq (include "shoal.userIds" .) "Fixed" }}
runAsUser: 10001
runAsGroup: 10001
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Fixed or Cluster: OpenShift's admission gives each namespace user ids of its own, and refuses others. */}}
{{- define "shoal.userIds" -}}
{{- if ne .Values.runs.userIds "Auto" }}{{ .Values.runs.userIds }}
{{- else if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}Cluster
{{- else }}Fixed
{{- end }}
{{- end }}

{{/* What differs from the operator's own defaults for runs, as JSON; empty for nothing. */}}
{{- define "shoal.runs" -}}
{{- $said := dict }}
{{- range $name, $value := omit .Values.runs "userIds" }}{{ if $value }}{{ $_ := set $said $name $value }}{{ end }}{{ end }}
{{- if ne (include "shoal.userIds" .) "Fixed" }}{{ $_ := set $said "userIds" (include "shoal.userIds" .) }}{{ end }}
{{- $lock := include "shoal.lock" . | fromJson }}
{{- with $lock.digests }}{{ $_ := set $said "imageDigests" . }}{{ end }}
{{- if and $lock.registry (not $said.imageRegistry) }}{{ $_ := set $said "imageRegistry" $lock.registry }}{{ end }}
{{- if $said }}{{ toJson $said }}{{ end }}
{{- end }}

{{- define "shoal.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{/* Namespaces in which the storage Secret is made, as JSON. */}}
{{- define "shoal.storageNamespaces" -}}
{{- if .Values.storage.namespaces -}}
{{ .Values.storage.namespaces | uniq | toJson }}
{{- else if .Values.operator.namespaces -}}
{{ .Values.operator.namespaces | uniq | toJson }}
{{- else -}}
{{ list .Release.Namespace | toJson }}
{{- end -}}
{{- end }}

{{- define "shoal.minioEndpoint" -}}
http://{{ .Release.Name }}-minio.{{ .Release.Namespace }}.svc:9000
{{- end }}

{{/* Not empty where a disruption budget is made: one that leaves no pod to evict would keep its nodes from ever being drained. */}}
{{- define "shoal.hasBudget" -}}
{{- with .Values.operator -}}
{{- if and .podDisruptionBudget.enabled (gt (int .replicas) (int .podDisruptionBudget.minAvailable)) }}true{{ end -}}
{{- end -}}
{{- end }}
