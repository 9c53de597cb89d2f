"""The user's own machine as a node: borrowed, not made, and given back as it was."""
