"""What the train.py of every workload may use; the workloads are in muster/workloads/."""
