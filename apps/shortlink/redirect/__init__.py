"""The redirect service: GET /{code} -> 302, from memory when it can (R1-R4, K1, K3, K5)."""
