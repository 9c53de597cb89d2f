"""What the release's one file runs on the node; needs python3's standard library alone."""
