"""The public page of a run's pools: what is asked and paid, in words; text of the run does nothing there."""

from samples import RUN_KEY, run_config
from shoal.contracts.pools import Admission, PoolTerms, Requirements
from shoal.discovery.discovery import offer
from shoal.discovery.pool_page import PAGE_HEADERS, admitted, asked_of, pool_page

WANTED = Requirements(gpus=2, gpu_memory_gib=80, gpu_types=["H100", "<b>H200"], disk_gib=200, uplink_mbps=50)


def page(*pools: PoolTerms, **changes: object) -> str:
    config = run_config(pools=list(pools), **changes)
    return pool_page(config, offer(config, config.roster))


def test_the_page_lists_what_a_pool_asks_what_is_paid_and_the_command_that_joins() -> None:
    code = "4f" * 32
    text = page(
        PoolTerms(name="big", open=True, requirements=WANTED, admission=Admission(codes=[code])),
        PoolTerms(name="any", open=True),
        PoolTerms(name="ours"),
    )
    assert "2 GPUs<br>80 GiB of memory in each GPU<br>GPUs: H100, &lt;b&gt;H200<br>200 GiB of free disk" in text
    assert "--pool big --invite-code-file FILE" in text
    assert "--pool any</code>" in text
    assert "one for each token of an accepted file" in text
    assert "Shoal pays no money" in text
    assert RUN_KEY.public in text
    assert "ours" not in text
    assert code not in text
    assert "<script" not in text
    assert PAGE_HEADERS["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_run_without_an_open_pool_says_so_and_a_models_name_is_text() -> None:
    text = page(model_id="<img src=x onerror=alert(1)>")
    assert "No pool is open to machines of strangers." in text
    assert "<img" not in text


def test_requirements_and_admission_in_words() -> None:
    assert asked_of(Requirements()) == []
    offered = offer(
        run_config(pools=[PoolTerms(name="a", open=True, admission=Admission(nodes=["4f" * 32]))]), run_config().roster
    )
    assert admitted(offered.pools[0]) == "machines whose key is listed"
