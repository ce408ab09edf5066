"""The experiment ``st-table6`` on table 6 of StableSSM: sequential CIFAR-10."""
