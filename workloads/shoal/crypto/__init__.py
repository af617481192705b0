"""Keys, canonical bytes, request signatures and the hardware challenge. Pure; imports nothing of Shoal."""
