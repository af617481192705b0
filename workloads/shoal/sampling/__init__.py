"""The draw of prompts, lengths and seeds from public values (`draw`), and the rule by which a seed draws a token (`gumbel`). Pure."""
