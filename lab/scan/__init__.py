"""`lab scan`: which pods and templates get another class on 1.34-1.36 than on 1.37, without a node."""
