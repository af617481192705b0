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

{{/* Reference of an image: (list $ .Values.operator.image). */}}
{{- define "shoal.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What the restricted pod security standard asks of a pod. */}}
{{- define "shoal.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
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
