"""The Shoal operator: four kinds reconciled into child objects, on a cluster or on one machine."""
