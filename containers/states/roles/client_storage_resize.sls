{#- Two quick states; the first one is the execution counter. -#}
{%- set bed = pillar['bed'] %}
bed-counts-this-execution:
  cmd.run:
    - name: echo "client_storage_resize {{ bed['canary'] }}" >> {{ bed['counter'] }}

bed-storage_resize-file:
  file.managed:
    - name: {{ bed['target'] }}/storage_resize.conf
    - makedirs: True
    - contents: "value = {{ bed['canary'] }}"
