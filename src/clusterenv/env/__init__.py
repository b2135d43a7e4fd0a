"""The head: ClusterEnv and what stands behind it."""
