{{/* The name of everything that belongs to this release alone. */}}
{{- define "regroup.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "regroup.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "regroup.name" .) }}
{{- end }}

{{- define "regroup.keySecret" -}}
{{ .Values.operatorKey.existingSecret | default (printf "%s-key" (include "regroup.name" .)) }}
{{- end }}

{{- define "regroup.lease" -}}
{{ printf "%s-operator" (include "regroup.name" .) }}
{{- end }}

{{- define "regroup.selector" -}}
app.kubernetes.io/name: regroup-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "regroup.labels" -}}
{{ include "regroup.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: regroup
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "regroup.operatorImage" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "regroup.trainerImage" -}}
{{ .Values.trainer.image.repository }}:{{ .Values.trainer.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Who may reach the status and metrics ports of isolated jobs: this operator and the scrapers. */}}
{{- define "regroup.peers" -}}
{{- $operator := dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace)) "podSelector" (dict "matchLabels" (include "regroup.selector" . | fromYaml)) }}
{{- concat (list $operator) .Values.networkPolicy.scrapers | toJson }}
{{- end }}
