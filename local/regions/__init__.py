"""Three regions on one machine: each a network namespace with a whole cluster in it."""
