"""Pulumi's engine on this machine, and the plugins that an installation would bring along."""
