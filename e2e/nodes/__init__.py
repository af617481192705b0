"""One real Kubernetes node on this machine, from pinned programs and Debian's packages. `python -m e2e.nodes up` and `down`; tests use `node.Node`.

`layout` says where everything lies, `settings` what each program is told (pure), `daemons` starts and ends processes by pid, `host` changes this
machine's network and puts it back, `images` fills containerd, `agent` enforces NetworkPolicies and makes volumes, `node` does it all in order.
"""
