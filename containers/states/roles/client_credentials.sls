{#- Two quick states; the first one is the execution counter. -#}
{%- set bed = pillar['bed'] %}
bed-counts-this-execution:
  cmd.run:
    - name: echo "client_credentials {{ bed['canary'] }}" >> {{ bed['counter'] }}

bed-credentials-file:
  file.managed:
    - name: {{ bed['target'] }}/credentials.conf
    - makedirs: True
    - contents: "value = {{ bed['canary'] }}"
