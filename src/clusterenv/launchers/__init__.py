"""Ways to get hosts: each launcher starts nodes somewhere and ends them again."""
