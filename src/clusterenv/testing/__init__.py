"""Tools for tests of code that uses ClusterEnv."""
