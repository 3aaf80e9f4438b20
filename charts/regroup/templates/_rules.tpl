{{/* What the operator may do where jobs run. Each verb is used in operator/regroup_operator/controller: by cluster.py, or by a watch. */}}
{{- define "regroup.jobRules" -}}
# delete: ttlSecondsAfterFinished
- {apiGroups: [regroup.dev], resources: [trainingjobs], verbs: [get, list, watch, delete]}
- {apiGroups: [regroup.dev], resources: [trainingjobs/status], verbs: [patch]}
# Owner references that block deletion need it where that is enforced (OpenShift).
- {apiGroups: [regroup.dev], resources: [trainingjobs/finalizers], verbs: [update]}
- {apiGroups: [""], resources: [pods], verbs: [list, watch, create, delete]}
- {apiGroups: [""], resources: [services], verbs: [get, list, watch, create, patch, delete]}
# A token can be derived again: the Secrets of jobs are never read.
- {apiGroups: [""], resources: [secrets], verbs: [create]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, create]}
# list: those of a pod that waits for its volumes.
- {apiGroups: [""], resources: [events], verbs: [list, create]}
# delete: networkPolicy None
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [get, list, watch, create, patch]}
{{- end }}
