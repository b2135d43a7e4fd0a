"""When weights move to a node, and how: pure decisions and pure bytes. Time comes as an argument."""
