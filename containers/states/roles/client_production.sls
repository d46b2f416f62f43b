{#- Four states; the third fails unless the pillar says `bed:production_fails: False`. -#}
{%- set bed = pillar['bed'] %}
bed-counts-this-execution:
  cmd.run:
    - name: echo "client_production {{ bed['canary'] }}" >> {{ bed['counter'] }}

bed-production-file:
  file.managed:
    - name: {{ bed['target'] }}/production.conf
    - makedirs: True
    - contents: "value = {{ bed['canary'] }}"

bed-production-check:
  cmd.run:
    - name: echo "check {{ bed['canary'] }}"; {{ 'false' if bed.get('production_fails', True) else 'true' }}

bed-production-last:
  test.succeed_without_changes:
    - name: last-{{ bed['canary'] }}
