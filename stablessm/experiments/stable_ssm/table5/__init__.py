"""The experiment ``st-table5`` on table 5 of StableSSM: sequential MNIST."""
