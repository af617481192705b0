"""What is made from the models of the four kinds: the CRDs and their reference page (`make crds`)."""
