"""What vLLM's server needs beside the command of `examples/serving` to serve the tests' tiny models on a CPU."""

ARGUMENTS = (
    "--enforce-eager --dtype float32 --max-model-len 64 --kv-cache-memory-bytes 67108864"
    " --no-enable-chunked-prefill --max-num-batched-tokens 2048"
)
VARIABLES = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
