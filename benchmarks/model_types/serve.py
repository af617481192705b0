"""`python -m benchmarks.model_types.serve FOLDER`: vLLM samples from a written model; prints how far its log-probabilities are from the trainer's.

In: a checkpoint without a real tokenizer; prompts are token ids. Out: the greatest difference in nats. Called by `benchmarks.model_types`.
"""

import sys
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    import numpy as np
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder), skip_tokenizer_init=True, enforce_eager=True, kv_cache_memory_bytes=64 << 20, max_num_batched_tokens=2048,
        enable_chunked_prefill=False, dtype="float32", max_model_len=128,
    )  # fmt: skip
    sampling = SamplingParams(temperature=1.0, seed=1, max_tokens=24, logprobs=0, ignore_eos=True, detokenize=False)
    prompts = [[5, 9, 17], [30, 2, 41, 8, 11, 6, 3]]
    answers = [each.outputs[0] for each in engine.generate([{"prompt_token_ids": each} for each in prompts], sampling)]
    from shoal.training.batches import micro_batch
    from shoal.training.model import load_policy
    from shoal.training.rollouts import Sample

    samples, engines = [], []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        claimed = [float(at[token].logprob) for at, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        engines += claimed
        tokens = np.array([*prompt, *answer.token_ids])
        samples.append(
            Sample(
                str(number), tokens, len(prompt), np.ones(len(claimed), dtype=np.bool_), np.array(claimed, dtype=np.float32), 1.0, 0, 1.0, 0.0, 1.0
            )
        )  # fmt: skip
    found = load_policy(folder)(micro_batch([(sample, 1.0) for sample in samples]))[1]
    print(float(np.abs(found.numpy() - np.array(engines)).max()))


if __name__ == "__main__":
    main()
