# What the standard roles read. `pause_s: 20` makes client_stack sleep half-way; `production_fails: False` lets
# client_production succeed.
bed:
  canary: canary-compose
  counter: /var/lib/bed/executions.log
  target: /var/lib/bed/target
