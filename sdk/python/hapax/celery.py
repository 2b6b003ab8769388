# SPDX-License-Identifier: Apache-2.0
"""Celery: each task takes effect once for its key, though brokers deliver again and workers die.

    app = Celery(..., task_cls=hapax.celery.once(hx, on_expired="hold"))          # all tasks of the application
    @app.task(base=hapax.celery.once(hx, key=lambda task, args, kwargs: args[0]))  # one of them

Set acks_late and reject_on_worker_lost, so that the broker delivers again what a dead worker had.
"""
from __future__ import annotations

from .errors import InFlight, NotRun, NotRunElsewhere, StoreDown


def id_of(task, args, kwargs):
    """Celery's own id: the same in each delivery and in each retry of one apply_async()."""
    return task.request.id


def args_of(task, args, kwargs):
    return [list(args), kwargs]


def once(hapax, *, scope=None, key=id_of, fingerprint=args_of, again_s=5.0, **options):
    """A class of tasks.

    scope         str; by default the task's name
    key           a function of (task, args, kwargs); a task that it gives none fails
    fingerprint   a function of (task, args, kwargs), or as in hapax.run(); by default the arguments
    again_s       seconds after which a task is tried again that another worker runs, or whose store is down, where the
                  door does not say when
    others        as in hapax.run()

    What the task returned is its result in each repeat. Unknown and Mismatch fail the task. So does NotRun, of whatever
    class, as hapax.errors.NotRunElsewhere: the next delivery runs."""
    from celery import Task

    class Once(Task):
        abstract = True

        def __call__(self, *args, **kwargs):
            named = key(self, args, kwargs)
            if named is None and key is id_of:  # called as a function, not by a worker
                return super().__call__(*args, **kwargs)
            inner = super().__call__
            what = fingerprint(self, args, kwargs) if callable(fingerprint) else fingerprint
            try:
                return hapax.run(lambda op: inner(*args, **kwargs), scope=scope or self.name,
                                 key=None if named is None else str(named), fingerprint=what, **options)
            except (InFlight, StoreDown) as error:
                again = error.retry_after if error.retry_after is not None else again_s
                raise self.retry(exc=error, countdown=again, max_retries=None) from error
            except NotRun as error:  # who asks for this task's result may be a task
                raise NotRunElsewhere(*error.args) from error

    return Once
