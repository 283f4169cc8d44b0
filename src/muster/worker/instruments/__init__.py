"""What is measured and kept while a trainer of any workload trains: callbacks, blind to the workload."""
