"""Plans of ten runs, made before anything of that size ran, so that later rehearsals can be compared with them."""
