{{- /* The pod of a service or a job; takes a dict of root, name, program, restart, words. */ -}}
{{- define "gdpfed.labels" -}}
app.kubernetes.io/part-of: gdpfed
app.kubernetes.io/name: {{ .name }}
{{- range .program.networks }}
gdpfed.network/{{ . }}: member
{{- end }}
{{- range $claim, $_ := .program.claims }}
gdpfed.claim/{{ $claim }}: user
{{- end }}
{{- end }}

{{- define "gdpfed.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "gdpfed.pod" -}}
{{- $program := .program }}
{{- $image := index .root.Values.images $program.image }}
metadata:
  labels: {{- include "gdpfed.labels" . | nindent 4 }}
spec:
  restartPolicy: {{ .restart }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # The pause container takes the place of Docker's init: it reaps what programs leave behind.
  shareProcessNamespace: true
  securityContext:
    runAsNonRoot: true
    runAsUser: 49999
    runAsGroup: 49999
    fsGroup: 49999
    seccompProfile: {type: RuntimeDefault}
  {{- if $program.claims }}
  affinity:
    # A claim is of one host: whatever shares it is there, too.
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        {{- range $claim, $_ := $program.claims }}
        - topologyKey: kubernetes.io/hostname
          labelSelector: {matchLabels: {gdpfed.claim/{{ $claim }}: user}}
        {{- end }}
  {{- end }}
  {{- if $program.secrets }}
  initContainers:
    # Files of a Secret are root's and open to a group; a key is to be its user's alone.
    - name: credentials
      image: {{ $image }}
      command:
        - sh
        - -c
        - |
          umask 077
          for each in /secret/*; do
            own="/copied${each#/secret}"
            mkdir -p "$own"
            cp -L "$each"/* "$own"
            chmod 700 "$own"
          done
      securityContext: {{- include "gdpfed.confined" . | nindent 8 }}
      resources: {limits: {cpu: "0.5", memory: 64Mi}}
      volumeMounts:
        {{- range $target, $_ := $program.secrets }}
        - {name: secret{{ $target | replace "/" "-" }}, mountPath: /secret{{ $target }}, readOnly: true}
        {{- end }}
        - {name: copied, mountPath: /copied}
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ $image }}
      command: {{- concat $program.command .words | toYaml | nindent 8 }}
      env:
        {{- range $name, $value := $program.environment }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
      securityContext: {{- include "gdpfed.confined" . | nindent 8 }}
      resources:
        limits:
          cpu: {{ $program.cpu | quote }}
          memory: {{ $program.memory }}
          {{- if $program.gpu }}
          nvidia.com/gpu: 1
          {{- end }}
      {{- with $program.probe }}
      readinessProbe:
        exec: {command: {{ toJson . }}}
        initialDelaySeconds: 5
        periodSeconds: 30
        timeoutSeconds: 20
        failureThreshold: 3
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- range $target, $_ := $program.secrets }}
        - {name: copied, mountPath: {{ $target }}, subPath: {{ $target | trimPrefix "/" }}, readOnly: true}
        {{- end }}
        {{- range $claim, $each := $program.claims }}
        - {name: {{ $claim }}, mountPath: {{ $each.path }}, readOnly: {{ $each.read_only }}}
        {{- end }}
        {{- with $program.data }}
        - {name: data, mountPath: {{ . }}, readOnly: true}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {medium: Memory, sizeLimit: 1Gi}
    {{- if $program.secrets }}
    - name: copied
      emptyDir: {medium: Memory, sizeLimit: 1Mi}
    {{- end }}
    {{- $name := .name }}
    {{- range $target, $whose := $program.secrets }}
    - name: secret{{ $target | replace "/" "-" }}
      secret: {secretName: {{ eq $whose "own" | ternary $name $whose }}, defaultMode: 0440}
    {{- end }}
    {{- range $claim, $_ := $program.claims }}
    - name: {{ $claim }}
      persistentVolumeClaim: {claimName: {{ $claim }}}
    {{- end }}
    {{- if $program.data }}
    - name: data
      {{- if .root.Values.data }}
      persistentVolumeClaim: {claimName: {{ .root.Values.data }}, readOnly: true}
      {{- else if hasPrefix "server" .name }}
      emptyDir: {sizeLimit: 1Mi}
      {{- else }}
      {{- fail (printf "%s has no data: name the claim that holds it with --set data=CLAIM" .name) }}
      {{- end }}
    {{- end }}
{{- end }}
