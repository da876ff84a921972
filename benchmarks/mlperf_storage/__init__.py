"""The workloads of MLPerf Storage, by the benchmark that runs them, with its own loaders and with dlio's."""
