"""Jobs whose workers come and go: which hosts there are, who is in the world, and what to do next.

``policy`` decides and touches nothing; ``job`` does what it says.
"""
