"""The store on Cassandra, a data centre for each region (S1): docs/architecture.md says how."""
