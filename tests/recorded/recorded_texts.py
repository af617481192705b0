"""What is recorded as text, beside the documents of `recorded_documents`."""

from typing import Any

from recorded_documents import DIGEST, LEASE, NODE, sample

import samples
from shoal.contracts import keys
from shoal.contracts.protocol import RelayToken
from shoal.contracts.relay_token import encode
from shoal.crypto.http_signatures import sign_request

REQUEST: dict[str, Any] = {"method": "POST", "url": "http://127.0.0.1:8080/v1/leases", "body": b"{}"}
TEXTS: dict[str, str] = {
    "relay-token-word": encode(sample(RelayToken), samples.ORCHESTRATOR_KEY),
    "request-signature": "".join(
        f"{name}: {value}\n"
        for name, value in sign_request(
            **REQUEST, key=samples.NODE_KEY, created_unix=samples.NOW, nonce="abcdefghijklmnop"
        ).items()
    ),
    "store-keys": "".join(
        f"{key}\n"
        for key in (
            keys.PREPARED, keys.FILTER_REPORT, keys.BASE_MODEL, keys.FINAL_MODEL, keys.FINAL_SEAL, keys.ROSTER, keys.SFT_MANIFEST,
            keys.BEST_VERSION, keys.version(7), keys.version_open(7), keys.version_weights(7), keys.version_shard(7, 2),
            keys.version_descriptor(7, 2), keys.island("island-1"), keys.trainer_state(7), keys.staging(NODE, LEASE), keys.upload(NODE, DIGEST),
            keys.verdict(NODE, DIGEST), keys.lease(7, NODE, 2), keys.lease_file(LEASE), keys.submission(NODE, DIGEST),
            keys.opinions(NODE, DIGEST), keys.step_batch(7), keys.step_metrics(7), keys.evaluation(6, "sums"), keys.ledger_entry(9),
            keys.ledger_checkpoint(256), keys.ledger_segment(1), keys.task_table(DIGEST), keys.sft_shard("learnt-00000.parquet"),
            keys.dataset("traces"), keys.dataset_card("traces"), keys.dataset_part("traces", 1), keys.dataset_problems("traces", 1),
        )
    ),
}  # fmt: skip
"""A token as it travels, the headers of a signed request, and where documents lie in the store."""
