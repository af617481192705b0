"""The draw: which prompts, lengths and seeds a piece of work must use, from public values. Pure."""
