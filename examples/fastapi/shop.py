"""Orders by FastAPI, and their mails by Celery, each once: the middleware and the tasks share one door.

docs/recipes/fastapi.md says how to run it. REDIS is Celery's broker, and MAILS the file that "sent" mails are lines of.
"""
import os

import celery
import fastapi
import pydantic

import hapax
import hapax.asgi
import hapax.celery

hx = hapax.connect()
app = fastapi.FastAPI()
app.add_middleware(hapax.asgi.Idempotent, door=hx, scope="orders")
tasks = celery.Celery("shop", broker=os.environ["REDIS"], task_cls=hapax.celery.once(
    hx, key=lambda task, args, kwargs: args[0], on_expired="hold"))
tasks.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True)


class Order(pydantic.BaseModel):
    id: str
    item: str


@app.post("/orders", status_code=201)
def take(order: Order):
    mail.delay(order.id, order.item)
    return {"taken": order.id}


@tasks.task(name="mail")
def mail(order, item):
    with open(os.environ["MAILS"], "a", encoding="utf-8") as mails:
        mails.write(f"{order}: {item} is on its way\n")
