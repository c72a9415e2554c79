"""Jobs in Kubernetes: manifests, which ``horovodrun`` prints, and the launcher in their pods.

``options`` reads the command line, ``manifest`` writes the objects. ``pod`` is the launcher in each
pod of an Indexed Job, and connects the pods to one job.
"""
