"""How large a file may be that a node hands in: as large as an honest one of the run can get, and not much larger."""

from pathlib import Path

from run_states import Orchestrator
from servers import Redis
from shoal.contracts.completions import Sampling
from shoal.contracts.recipe import Recipe
from shoal.orchestrator.work.uploads import largest_file


def test_the_largest_file_grows_with_the_recipe(tmp_path: Path, redis_server: Redis) -> None:
    small = Orchestrator(tmp_path, redis_server.url).config
    large = small.model_copy(
        update={
            "recipe": Recipe(max_sequence_length=32_768, group_size=16),
            "sampling": Sampling(max_completion_tokens=30_720, groups_per_submission=4),
        }
    )
    assert largest_file(small) < 2 << 20
    assert 16 * 4 * 30_720 * 9 < largest_file(large) < 100 << 20
