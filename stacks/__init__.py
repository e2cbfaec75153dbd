"""The Pulumi program: one region of the platform, in layers. `__main__.py` is where it begins."""
