"""What the services' processes share: how they open their parts, stop, and are looked at."""
