"""What runs inside a sandbox before the program does. Standard library only: nothing else is there."""
