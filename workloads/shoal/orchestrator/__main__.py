"""Entry point of the container `orchestrator`: `python -m shoal.orchestrator`."""

from shoal.orchestrator.http.service import main

if __name__ == "__main__":
    main()
