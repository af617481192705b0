"""From the end of a step to the announcement: the rates of its parts."""
