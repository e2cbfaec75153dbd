"""The same platform on one machine, from real parts: what `make parts`, `make up` and so on run."""
