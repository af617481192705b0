"""The page of a run: a small web service that reads and never writes (docs/ui.md).

`watch` gathers from the same sources as the report and the live view, `documents`, `timeline` and `rollouts` make JSON of it, `access` decides who
may read, `app` is the service, `static/` the page: ES modules and one style sheet, without a build. Called by `shoal ui`.
"""
