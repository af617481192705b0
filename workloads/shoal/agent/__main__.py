"""Entry point of the container `agent`: `python -m shoal.agent`."""

from shoal.agent.agent import main

if __name__ == "__main__":
    main()
