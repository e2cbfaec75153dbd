"""The platform: links (pure domain), ports and adapters around it, services on top."""
