"""The embedded platform: everything in one process, for a newcomer's first two minutes."""
