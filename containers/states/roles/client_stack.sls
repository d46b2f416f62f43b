{#- Sixty quick states. The first one is the execution counter: a line outside Salt for each execution. -#}
{%- set bed = pillar['bed'] %}
bed-counts-this-execution:
  cmd.run:
    - name: echo "client_stack {{ bed['canary'] }}" >> {{ bed['counter'] }}

{%- for n in range(1, 59) %}
{%- if n == 30 and bed.get('pause_s') %}
bed-stack-{{ n }}-pause:
  cmd.run:
    - name: sleep {{ bed['pause_s'] }}
{%- elif n % 3 == 0 %}
bed-stack-{{ n }}-file:
  file.managed:
    - name: {{ bed['target'] }}/stack-{{ n }}.conf
    - makedirs: True
    - contents: "value = {{ bed['canary'] }}-{{ n }}"
{%- elif n % 3 == 1 %}
bed-stack-{{ n }}-command:
  cmd.run:
    - name: sleep 0.1; echo "output {{ bed['canary'] }} {{ n }}"
{%- else %}
bed-stack-{{ n }}-change:
  test.succeed_with_changes:
    - name: change-{{ bed['canary'] }}-{{ n }}
{%- endif %}
{%- endfor %}

bed-stack-last:
  test.succeed_with_changes:
    - name: last-{{ bed['canary'] }}
