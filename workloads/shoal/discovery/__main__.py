"""Entry point of the container `discovery`: `python -m shoal.discovery`."""

from shoal.discovery.discovery import main

if __name__ == "__main__":
    main()
