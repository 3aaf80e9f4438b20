{{/* The name of everything that belongs to this release alone. */}}
{{- define "regroup.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* The account that the operator runs as. values.schema.json asks for its name where the release makes none. */}}
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

{{/* Labels of each object. None of commonLabels takes the place of our own. */}}
{{- define "regroup.labels" -}}
{{- $own := include "regroup.selector" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion }}
{{- $_ := set $own "app.kubernetes.io/part-of" "regroup" }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- merge $own (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* Labels and annotations of an object: its own (`labels` and `annotations`, which may be absent) and those of all. */}}
{{- define "regroup.marks" -}}
labels: {{- merge (dict) (.labels | default dict) (include "regroup.labels" .in | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.in.Values.commonAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "regroup.operatorImage" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "regroup.trainerImage" -}}
{{ .Values.trainer.image.repository }}:{{ .Values.trainer.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Empty: nobody has said it, and the image is none of ours. A registry's mirror keeps the name. */}}
{{- define "regroup.trainerPython" -}}
{{ .Values.trainer.image.python | default (ternary "3.13" "" (hasSuffix "/regroup-trainer" .Values.trainer.image.repository)) }}
{{- end }}

{{/* Who may reach the status and metrics ports of isolated jobs: this operator and the scrapers. */}}
{{- define "regroup.peers" -}}
{{- $operator := dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace)) "podSelector" (dict "matchLabels" (include "regroup.selector" . | fromYaml)) }}
{{- concat (list $operator) .Values.networkPolicy.scrapers | toJson }}
{{- end }}

{{/* What the pods of the operator and of `helm test` have in common. */}}
{{- define "regroup.podSettings" -}}
serviceAccountName: {{ include "regroup.serviceAccount" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "regroup.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
