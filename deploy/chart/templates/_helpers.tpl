{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "holdfast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "holdfast.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if eq $tag "latest" -}}
{{- fail "image.tag is \"latest\", which may be another version tomorrow: name a version, or a digest." -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}
{{- end -}}

{{- define "holdfast.check" -}}
{{- if not .Values.key.existingSecret -}}
{{- fail "key.existingSecret is empty: make the key with `holdfast key create holdfast.key`, and a Secret of it. The chart has no default key." -}}
{{- end -}}
{{- if and (eq .Values.mode "replicated") (not .Values.store.existingSecret) -}}
{{- fail "store.existingSecret is empty: name a Secret with the address of PostgreSQL, or set mode: single." -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.replicas" -}}
{{- if eq .Values.mode "single" -}}1{{- else -}}{{ .Values.replicaCount }}{{- end -}}
{{- end -}}

{{- define "holdfast.toml" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- range $section, $keys := $settings }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{ end }}
{{- end -}}

{{- define "holdfast.pod" -}}
metadata:
  annotations:
    checksum/settings: {{ include "holdfast.toml" . | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
  labels:
    {{- include "holdfast.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  serviceAccountName: {{ include "holdfast.fullname" . }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- if eq .Values.mode "replicated" }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector: {matchLabels: {{ include "holdfast.selector" $ | fromYaml | toJson }}}
      matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: holdfast
      image: {{ include "holdfast.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/holdfast/holdfast.toml]
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - {name: HOLDFAST_STORE_DATA_DIR, value: /data}
        - {name: HOLDFAST_SERVER_LISTEN, value: "0.0.0.0:8630"}
        - {name: HOLDFAST_ACME_LISTEN, value: "0.0.0.0:8631"}
        - {name: HOLDFAST_LOG_FORMAT, value: json}
        - {name: HOLDFAST_KEYS_FILE, value: {{ printf "/run/holdfast/key/%s" .Values.key.item | quote }}}
        {{- if eq .Values.mode "replicated" }}
        - {name: HOLDFAST_STORE_URL_FILE, value: {{ printf "/run/holdfast/store/%s" .Values.store.item | quote }}}
        {{- end }}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: http, containerPort: 8630}
        - {name: acme, containerPort: 8631}
      # Migrations may take long: ten minutes for a start, with the phase it is at in the answer.
      startupProbe:
        httpGet: {path: /health/startup, port: http}
        periodSeconds: 5
        failureThreshold: 120
      readinessProbe:
        httpGet: {path: /health/ready, port: http}
        periodSeconds: 5
        failureThreshold: 3
      # Without the database: an outage of it must not start pods anew.
      livenessProbe:
        httpGet: {path: /health/live, port: http}
        periodSeconds: 10
        failureThreshold: 3
        timeoutSeconds: 5
      lifecycle:
        preStop: {sleep: {seconds: 5}}  # first the endpoints forget this pod
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources: {{ toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        - {name: settings, mountPath: /etc/holdfast, readOnly: true}
        - {name: key, mountPath: /run/holdfast/key, readOnly: true}
        {{- if eq .Values.mode "replicated" }}
        - {name: store, mountPath: /run/holdfast/store, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: settings
      configMap: {name: {{ include "holdfast.fullname" . }}}
    - name: key
      secret: {secretName: {{ .Values.key.existingSecret }}, defaultMode: 0400}
    {{- if eq .Values.mode "replicated" }}
    - name: data
      emptyDir: {}
    - name: store
      secret: {secretName: {{ .Values.store.existingSecret }}, defaultMode: 0400}
    {{- else if .Values.persistence.existingClaim }}
    - name: data
      persistentVolumeClaim: {claimName: {{ .Values.persistence.existingClaim }}}
    {{- end }}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
