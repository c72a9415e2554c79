"""Turns N processes into authenticated peers: their ranks, the store, the mesh.

Other packages call ``bootstrap``. Nothing is imported here, since launchers need the store alone.
"""
