"""The write and management API (W1, W2): FastAPI over `management`, one resource per link."""
