#!/usr/bin/python3
"""A payments API in Django that completes its operations itself: payment and outcome are one transaction.

    shop.py PORT CONNINFO

docs/recipes/django.md puts `hapax serve` before it. With ?die in the URL it dies after COMMIT, before it has answered.
"""
import json
import os
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command

DB = urlsplit(sys.argv[2])
settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF="shop_urls", DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": DB.path[1:], "USER": DB.username,
                           "HOST": DB.hostname, "PORT": DB.port}})
django.setup()

from django.db import connection, models, transaction  # noqa: E402
from django.http import HttpResponse, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

import hapax.postgres  # noqa: E402


class Payment(models.Model):
    number = models.AutoField(primary_key=True)
    amount = models.IntegerField()

    class Meta:
        app_label, db_table = "shop", "payments"


def payments(request):
    if request.method == "GET":
        return JsonResponse({"payments": Payment.objects.count()})
    amount = json.loads(request.body)["amount"]
    with transaction.atomic():
        payment = Payment.objects.create(amount=amount)
        body = json.dumps({"receipt": payment.number, "amount": amount})
        hapax.postgres.complete(connection, request, 201, body, {"Content-Type": "application/json"})
    if "die" in request.GET:
        os._exit(1)
    return HttpResponse(body, status=201, content_type="application/json")


sys.modules["shop_urls"] = type(sys)("shop_urls")
sys.modules["shop_urls"].urlpatterns = [path("payments", payments)]
call_command("runserver", f"127.0.0.1:{sys.argv[1]}", use_reloader=False)
