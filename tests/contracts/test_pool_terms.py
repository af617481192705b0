"""Terms of pools as the ledger names them."""

from samples import NODE
from shoal.contracts.pools import Admission, PoolTerms
from shoal.ledger.facts import pools_digest


def test_the_digest_of_pools_is_of_all_their_terms_in_any_order() -> None:
    one, two = PoolTerms(name="a"), PoolTerms(name="b", open=True)
    assert pools_digest([one, two]) == pools_digest([two, one])
    listed = two.model_copy(update={"admission": Admission(nodes=[NODE])})
    assert len({pools_digest(each) for each in ([], [one], [one, two], [one, listed])}) == 4
