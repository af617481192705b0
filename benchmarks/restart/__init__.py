"""From the death of a rank to the next step: the rates of its parts."""
