"""Small environments for experiments, registered with Gymnasium when clusterenv is imported.

| id | what it is for |
| --- | --- |
| `clusterenv/Catch-v0` | learned in seconds; shows whether a learner works at all |
| `clusterenv/Recall-v0` | a bit to remember; without memory the best return is 0 |
| `clusterenv/CartPoleNoVelocity-v0` | CartPole of which only positions are shown: control that needs memory |
| `clusterenv/AtariPong-v0`, ... | the 57 Atari games as agents are trained on them; `pip install "clusterenv[atari]"` |
| `clusterenv/Atari-v0` | any other, by `game=` |
"""

# In the info of the last step of an episode: it ends for the learner, but its return goes on in the next one. Of a
# chain of such episodes `Batch.episodes` tells the sum, once.
EPISODE_CONTINUES = "episode_continues"
