"""Small environments for experiments, registered with Gymnasium when clusterenv is imported.

| id | what it is for |
| --- | --- |
| `clusterenv/Catch-v0` | learned in seconds; shows whether a learner works at all |
| `clusterenv/Recall-v0` | a bit to remember; without memory the best return is 0 |
| `clusterenv/CartPoleNoVelocity-v0` | CartPole of which only positions are shown: control that needs memory |
"""
