"""The parent of the job: ``ddiag run`` starts it, watches devices and host, and reports when it has ended.

Nothing here runs inside the training processes. The job is a child in the supervisor's own process group, with the
supervisor's own stdin, stdout and stderr; it goes on when the supervisor is killed.
"""
