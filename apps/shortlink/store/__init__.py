"""The store: its port in the domain's words, and the adapters that keep its promises."""
