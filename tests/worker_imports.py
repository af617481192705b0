"""What a worker has imported before it begins (`forked_python.WORKER`), with the settings of vLLM's log that it would have made by then."""

from shoal.inference.process_settings import set_log_variables

set_log_variables()

import shoal.inference.engine  # noqa: E402, F401 - behind the variables, and for those who are forked
