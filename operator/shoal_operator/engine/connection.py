"""Where the API server is and who we are: from the pod's service account, or from a kubeconfig.

The one source for our own calls and, by `handlers.py`, for kopf's.
Proxy variables are ignored: an API server is never behind the proxy of a machine's other traffic. Called by `__main__.py`.
"""

import ssl
from pathlib import Path

import yaml
from kubernetes import config
from kubernetes.client import Configuration


class NoApiServer(RuntimeError):
    """There is no usable configuration; the text names the places that were tried."""


def load_configuration(kubeconfig: Path | None = None, context: str | None = None) -> Configuration:
    """The configuration of a kubeconfig that was named, else of the pod, else of `KUBECONFIG` or `~/.kube/config`.

    Raises:
        NoApiServer: none of these exists, or it cannot be read.
    """
    made: Configuration = type.__call__(Configuration)
    try:
        if kubeconfig is not None or context is not None:
            file = str(kubeconfig) if kubeconfig is not None else None
            config.load_kube_config(config_file=file, context=context, client_configuration=made, persist_config=False)
        else:
            try:
                config.load_incluster_config(client_configuration=made)
            except config.ConfigException:
                config.load_kube_config(client_configuration=made, persist_config=False)
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        where = (
            f"kubeconfig {kubeconfig}"
            if kubeconfig is not None
            else "the pod's service account, KUBECONFIG or ~/.kube/config"
        )
        raise NoApiServer(f"no API server is configured in {where}: {error}; give --kubeconfig FILE") from error
    made.proxy = None
    return made


def ssl_context(configuration: Configuration) -> ssl.SSLContext | None:
    """TLS as the configuration says; None for plain HTTP."""
    if not configuration.host.startswith("https:"):
        return None
    made = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Certificates of clusters come from many tools; some lack extensions that Python's strict mode wants and RFC 5280 does not enforce on roots.
    made.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if not configuration.verify_ssl:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        made.load_cert_chain(configuration.cert_file, configuration.key_file)
    return made


def authorization(configuration: Configuration) -> str | None:
    """The current `Authorization` header; a rotated token is read again in time."""
    return configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or None


def context_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace of a kubeconfig's context; `default` where there is none."""
    try:
        contexts, active = config.list_kube_config_contexts(
            config_file=str(kubeconfig) if kubeconfig is not None else None
        )
    except (config.ConfigException, yaml.YAMLError, OSError):
        return "default"
    found = next((each for each in contexts if each["name"] == context), active)
    return found["context"].get("namespace") or "default"
