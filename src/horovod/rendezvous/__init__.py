"""N processes become authenticated peers: who am I, where is the store, who else is there.

``meeting`` is what others call. Nothing is imported here: launchers need the store alone.
"""
