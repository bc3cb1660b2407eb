{{/* varve.image is the reference of an image of the values. */}}
{{- define "varve.image" -}}
{{ .repository }}:{{ .tag }}
{{- end }}

{{/* varve.refuse ends Helm's run. Helm has changed nothing yet. */}}
{{- define "varve.refuse" -}}
{{ fail (print "refused, and nothing was changed: " .) }}
{{- end }}

{{/* varve.live says whether Helm asks a cluster, as it does not for `helm template`. */}}
{{- define "varve.live" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}yes{{ end -}}
{{- end }}

{{/* varve.owner says whose a kind is: varve, other, or nothing. The same rules as in deploy/owned-kinds.sh. */}}
{{- define "varve.owner" -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" . -}}
{{- if $found -}}
{{- $labels := $found.metadata.labels | default dict -}}
{{- $managers := list -}}
{{- range $found.metadata.managedFields }}{{ $managers = append $managers .manager }}{{ end -}}
{{- if or (eq (get $labels "app.kubernetes.io/managed-by") "virt-operator") (eq (get $labels "component") "velero") -}}
other
{{- else if or (eq (get $labels "app.kubernetes.io/part-of") "varve") (has "varve-install" $managers) -}}
varve
{{- else -}}
other
{{- end -}}
{{- end -}}
{{- end }}

{{/* varve.foreign lists the kinds of a group (list . "velero.io") that somebody else has installed. */}}
{{- define "varve.foreign" -}}
{{- $group := index . 1 -}}
{{- $foreign := list -}}
{{- range splitList " " (include "varve.kinds" (index . 0)) -}}
{{- if and (hasSuffix (print "." $group) .) (eq (include "varve.owner" .) "other") -}}
{{- $foreign = append $foreign . -}}
{{- end -}}
{{- end -}}
{{- join " " $foreign -}}
{{- end }}

{{/* varve.record lists the kinds that a release has which is upgraded. Helm deletes what a release had and has no
more, and the annotation that keeps it from that goes where somebody else replaces the kind: a release never gives a
kind back. */}}
{{- define "varve.record" -}}
{{- if .Release.IsUpgrade -}}
{{- dig "data" "kinds" "" (lookup "v1" "ConfigMap" "varve" "varve-chart" | default dict) -}}
{{- end -}}
{{- end }}

{{/* varve.origin says what the release has of a kind (list . "datauploads.velero.io"): the chart's own definition,
theirs if somebody else has replaced it, or nothing if it was there before. */}}
{{- define "varve.origin" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $theirs := eq (include "varve.owner" $kind) "other" -}}
{{- if has $kind (splitList " " (include "varve.record" $root)) -}}
{{- ternary "theirs" "own" $theirs -}}
{{- else -}}
{{- $left := or $theirs (and (eq $root.Values.profile "beside") (hasSuffix ".kubevirt.io" $kind)) -}}
{{- range $product, $group := dict "velero" ".velero.io" "harvester" ".harvesterhci.io" "longhorn" ".longhorn.io" -}}
{{- if and (has $product $root.Values.present) (hasSuffix $group $kind) }}{{ $left = true }}{{ end -}}
{{- end -}}
{{- if not $left }}own{{ end -}}
{{- end -}}
{{- end }}

{{/* varve.copy is a kind as the cluster has it, so that Helm changes nothing of it and keeps it. */}}
{{- define "varve.copy" -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" . -}}
{{- $kept := dict "helm.sh/resource-policy" "keep" -}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {{ . }}
  labels: {{ $found.metadata.labels | default dict | toJson }}
  annotations: {{ merge $kept ($found.metadata.annotations | default dict) | toJson }}
spec: {{ $found.spec | toJson }}
{{- end }}

{{/* varve.longhorn says whether the cluster has Longhorn. */}}
{{- define "varve.longhorn" -}}
{{- if or (has "longhorn" .Values.present) (include "varve.foreign" (list . "longhorn.io")) }}yes{{ end -}}
{{- end }}

{{/* varve.kubevirt names what the cluster has of KubeVirt: its operators, or else its kinds. */}}
{{- define "varve.kubevirt" -}}
{{- $operators := list -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- if eq (get (.metadata.labels | default dict) "kubevirt.io") "virt-operator" -}}
{{- $operators = append $operators (print .metadata.namespace "/" .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- join " " $operators | default (include "varve.foreign" (list . "kubevirt.io")) -}}
{{- end }}

{{/* varve.besideInstalled says whether there is a controller that was installed beside KubeVirt. */}}
{{- define "varve.besideInstalled" -}}
{{- $controller := lookup "apps/v1" "Deployment" "varve" "varve-controller" -}}
{{- if $controller -}}
{{- if has "--beside-kubevirt" (first $controller.spec.template.spec.containers).args }}yes{{ end -}}
{{- end -}}
{{- end }}
