"""What a stage is, and the list of them in running order.

A stage's ``collect`` talks to a node and stores what the node said as text. ``parse`` and ``view`` are pure, so a
stored attempt can be judged again for ever without a node.
"""
