"""Jobs whose workers come and go: which hosts there are, which workers form the world.

``policy`` decides and touches nothing; ``driver`` carries its decisions out.
"""
