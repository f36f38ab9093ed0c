{{- define "megatron-operator.labels" -}}
app.kubernetes.io/name: megatron-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "megatron-operator.selector" -}}
app.kubernetes.io/name: megatron-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/*
Not megatron-operator, the account of release 0.2.0: that operator elects no leader, and an upgrade from it takes its
rights away before this one starts.
*/}}
{{- define "megatron-operator.serviceAccount" -}}
megatron-operator-controller
{{- end }}

{{- define "megatron-operator.uiSelector" -}}
app.kubernetes.io/name: megatron-ui
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "megatron-operator.uiLabels" -}}
{{ include "megatron-operator.uiSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What the page reads of a namespace with recipes. */}}
{{- define "megatron-operator.uiRules" -}}
- apiGroups: [megatron.training]
  resources: [megatronrecipes]
  verbs: [get, list, watch]
# The nodes of ranks.
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- if .Values.ui.logs }}
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
{{- end }}
{{- end }}

{{/* The Lease with which the replicas of a release elect their leader. */}}
{{- define "megatron-operator.lease" -}}
{{ .Release.Name }}-leader
{{- end }}

{{/* Name of what is not in a namespace: that of a namespaced release must differ from any other release's. */}}
{{- define "megatron-operator.clusterName" -}}
megatron-operator{{ if .Values.watchNamespaces }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/* platform.gangScheduling.scheduler; nothing where it is not set. */}}
{{- define "megatron-operator.gangScheduler" -}}
{{ get (get (.Values.platform | default dict) "gangScheduling" | default dict) "scheduler" }}
{{- end }}

{{/* The kind of job that the cluster was found to have when the release was installed, where the values name none and it
is not PyTorchJob. The choice is kept, as runs keep their kind: what is installed or missing later changes nothing. */}}
{{- define "megatron-operator.chosenJobBackend" -}}
{{- if not (dig "jobBackend" "" (.Values.platform | default dict)) }}
{{- $before := (lookup "v1" "ConfigMap" .Release.Namespace "megatron-platform").metadata }}
{{- $gangs := include "megatron-operator.gangScheduler" . | default "kubernetes" }}
{{- $has := .Capabilities.APIVersions }}
{{- $only := and (not ($has.Has "kubeflow.org/v1/PyTorchJob")) ($has.Has "jobset.x-k8s.io/v1alpha2/JobSet") }}
{{- if $before }}{{ dig "annotations" "megatron.training/chosen-job-backend" "" $before }}
{{- else if and $only (eq $gangs "kubernetes") }}jobset
{{- end }}
{{- end }}
{{- end }}

{{/* The kind of job of new runs. */}}
{{- define "megatron-operator.jobBackend" -}}
{{ dig "jobBackend" "" (.Values.platform | default dict) | default (include "megatron-operator.chosenJobBackend" .) | default "pytorchjob" }}
{{- end }}

{{/* Whether the operator handles JobSets: true or nothing. */}}
{{- define "megatron-operator.jobsets" -}}
{{ if or .Values.jobSets (eq (include "megatron-operator.jobBackend" .) "jobset") }}true{{ end }}
{{- end }}

{{/* Whether the operator handles TrainJobs: true or nothing. */}}
{{- define "megatron-operator.trainjobs" -}}
{{ if or .Values.trainJobs (eq (include "megatron-operator.jobBackend" .) "trainjob") }}true{{ end }}
{{- end }}

{{/* Whether gangs are those of Kubernetes' own scheduler. */}}
{{- define "megatron-operator.podGroups" -}}
{{- if eq (include "megatron-operator.gangScheduler" .) "kubernetes" }}true{{ end }}
{{- end }}

{{/* The ConfigMaps in which the operator records what runs have used. */}}
{{- define "megatron-operator.ledgers" -}}
[{{ range $at, $digit := splitList "" "0123456789abcdef" }}{{ if $at }}, {{ end }}megatron-ledger-{{ $digit }}{{ end }}]
{{- end }}

{{/* The operator's rights in a namespace with recipes. */}}
{{- define "megatron-operator.rules" -}}
- apiGroups: [megatron.training]
  resources: [megatronrecipes]
  verbs: [get, list, watch]
- apiGroups: [megatron.training]
  resources: [megatronrecipes/status]
  verbs: [patch]
# Required for owner references with blockOwnerDeletion where the API server enforces permissions on them.
- apiGroups: [megatron.training]
  resources: [megatronrecipes/finalizers]
  verbs: [update]
- apiGroups: [kubeflow.org]
  resources: [pytorchjobs]
  verbs: [get, list, watch, create, patch, delete]
{{- if include "megatron-operator.jobsets" . }}
# create only with platform.jobBackend jobset.
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, {{ if eq (include "megatron-operator.jobBackend" .) "jobset" }}create, {{ end }}delete]
{{- end }}
{{- if include "megatron-operator.trainjobs" . }}
# create and update only with platform.jobBackend trainjob.
{{- $create := eq (include "megatron-operator.jobBackend" .) "trainjob" }}
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [get, list, watch, {{ if $create }}create, {{ end }}delete]
- apiGroups: [trainer.kubeflow.org]
  resources: [trainingruntimes]
  verbs: [get{{ if $create }}, create, update{{ end }}, delete]
{{- if and $create (not (include "megatron-operator.jobsets" .)) }}
# A TrainJob is created once no JobSet of its name is left.
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get]
{{- end }}
{{- end }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
{{- range (.Values.platform | default dict).accelerators }}
{{- if .computeDomain }}
# platform.accelerators.*.computeDomain: each run of several nodes has a ComputeDomain of NVIDIA's DRA driver.
- apiGroups: [resource.nvidia.com]
  resources: [computedomains]
  verbs: [get, create]
{{- break }}
{{- end }}
{{- end }}
{{- if include "megatron-operator.podGroups" . }}
# platform.gangScheduling.scheduler kubernetes: each run has a PodGroup, and another one when its size changes.
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get, create, delete]
{{- end }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# Deletes none, which the admission policy refuses: API servers that enforce permissions on owner references require
# delete to change them, as an edit of checkpoint.retainOnDelete does.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create, patch, delete]
# The token of a gang; not to read any.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# list and delete also without the option: policies of runs are removed once it is switched off.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [{{ if dig "networkPolicies" "enabled" false (.Values.platform | default dict) }}get, create, patch, {{ end }}list, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
# Why Kueue does not admit a job.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list]
{{- end }}
