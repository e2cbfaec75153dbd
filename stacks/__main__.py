"""Picks the layer by the stack's name: `pulumi up --stack own-eu-west-1-platform`, then `-apps`."""

import sys
from pathlib import Path

import pulumi

# Pulumi puts this folder on the path, as if it were the project; `stacks` is found beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stacks.layers.apps import deploy_apps
from stacks.layers.platform import deploy_platform
from stacks.names import Stack

LAYERS = {"platform": deploy_platform, "apps": deploy_apps}

stack = Stack.parse(pulumi.get_stack())
LAYERS[stack.layer](stack)
