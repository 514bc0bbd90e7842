"""HTTP for people, monitors and metrics: what a job is doing, and what may be asked of it.

Nothing here decides about membership. Whatever a person or an alert wants becomes a request to the machine of
`protocol`, which may refuse it. A failure in here must never end a job.

Never imports torch. The only folder that imports FastAPI, uvicorn and prometheus-client (`pip install
'understudy[api]'`); a job without `--http` loads none of them.
"""
