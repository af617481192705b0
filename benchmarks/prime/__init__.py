"""The pipeline of INTELLECT-MATH on a model that learns in minutes: traces of a strong policy, SFT, PRIME; against PRIME from the plain base."""
