"""The workers of another host: ssh, the agent there, and the frames between."""
