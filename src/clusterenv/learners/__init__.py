"""Learners: they run on the head, in torch, and use only what any user of a ClusterEnv can use."""
