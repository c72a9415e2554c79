"""Jobs whose workers come and go: which hosts there are, who is in the world, and what to do next.

``director`` decides and touches nothing; ``job`` does what it says.
"""
